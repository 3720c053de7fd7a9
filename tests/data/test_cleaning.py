"""Filters take what they say and report it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec import Cleaning, prepare
from tests.conftest import frame_of, sequences

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


def _core(rows, min_user, min_item):
    """Remove rare users and items until nothing changes, the slow and plain way."""
    while True:
        users = Counter(user for user, *_ in rows)
        items = Counter(item for _, item, *_ in rows)
        left = [row for row in rows if users[row[0]] >= min_user and items[row[1]] >= min_item]
        if left == rows:
            return rows
        rows = left


@given(pairs=PAIRS, min_user=st.integers(1, 4), min_item=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_core_is_the_largest_set_where_all_are_frequent(tmp_path_factory, pairs, min_user, min_item):
    """The fast filter keeps the same rows as removing rare ones by hand until nothing changes."""
    folder = tmp_path_factory.mktemp("core")
    rows = [(user, item, time) for time, (user, item) in enumerate(pairs)]
    frame_of(rows).write_parquet(folder / "e.parquet")
    expected: dict[int, list[int]] = {}
    for user, item, _ in _core(rows, min_user, min_item):
        expected.setdefault(user, []).append(item)
    if not expected:
        return
    cleaning = Cleaning(min_user=min_user, min_item=min_item)
    assert sequences(prepare(folder / "e.parquet", folder / "d", cleaning=cleaning)) == expected


def test_one_pass_filters_items_then_users_once(tmp_path):
    """Item x has 1 row and goes; user 2 then has 1 and goes; item b is left with 1, and stays."""
    rows = [(1, "a", 1), (1, "b", 2), (2, "b", 3), (2, "x", 4), (3, "a", 5), (3, "a", 6)]
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    once = Cleaning(min_user=2, min_item=2, one_pass=True)
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "once", cleaning=once)
    assert sequences(dataset) == {1: ["a", "b"], 3: ["a", "a"]}
    assert [(s["rows_in"], s["rows_out"]) for s in dataset.info["steps"]] == [(6, 6), (6, 5), (5, 4)]
    until_fixed = Cleaning(min_user=2, min_item=2)
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "fixed", cleaning=until_fixed)
    assert sequences(dataset) == {3: ["a", "a"]}


def test_repeats_are_kept_or_the_first_in_time_is(tmp_path):
    """`first` keeps the earliest of each pair, not the first in the file."""
    rows = [(1, "a", 9), (1, "b", 5), (1, "a", 1), (2, "a", 2)]
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    kept = prepare(tmp_path / "e.parquet", tmp_path / "keep")
    assert sequences(kept) == {1: ["a", "b", "a"], 2: ["a"]}
    first = prepare(tmp_path / "e.parquet", tmp_path / "first", cleaning=Cleaning(repeats="first"))
    assert sequences(first) == {1: ["a", "b"], 2: ["a"]}


@pytest.mark.parametrize("threshold", [3, 3.0, 2.99])
def test_rating_above_is_strict(tmp_path, threshold):
    """A rating of exactly 3 is not above 3."""
    frame_of([(1, "a", 1), (1, "b", 2)]).with_columns(rating=3.0).write_parquet(tmp_path / "e.parquet")
    cleaning = Cleaning(rating_above=threshold)
    if threshold == 2.99:
        assert len(prepare(tmp_path / "e.parquet", tmp_path / "d", cleaning=cleaning).items) == 2
    else:
        with pytest.raises(Exception, match="dropped the last 2 rows"):
            prepare(tmp_path / "e.parquet", tmp_path / "d", cleaning=cleaning)
