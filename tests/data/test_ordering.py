"""Rows are ordered by user, time and place in the source."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.data import ordering
from budgetrec.data.ordering import sort_into_sequences


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5), st.integers(-(2**62), 2**62) | st.integers(0, 3)),
        min_size=1,
        max_size=80,
    ),
    block=st.sampled_from([1, 4, 1 << 14]),
)
def test_the_order_is_that_of_a_stable_sort_by_user_and_time(rows, block):
    """Any times, any number of ties, blocks smaller and larger than a user."""
    users = np.array([user for user, _ in rows], np.int32)
    times = np.array([time for _, time in rows], np.int64)
    places = np.arange(len(rows), dtype=np.int32)
    before = ordering._BLOCK_ROWS
    ordering._BLOCK_ROWS = block
    try:
        columns = sort_into_sequences(users.copy(), places.copy(), times.copy())
    finally:
        ordering._BLOCK_ROWS = before
    expected = sorted(zip(users, times, places, strict=True))
    assert list(zip(columns[0], columns[2], columns[1], strict=True)) == expected


@pytest.mark.parametrize("unit", [1, 1000, 10**9])
def test_large_unsorted_data_is_ordered(unit):
    """Many blocks, packed keys (seconds, milliseconds) and the two-key sort (nanoseconds)."""
    random = np.random.default_rng(0)
    users = random.integers(0, 3000, 200_000).astype(np.int32)
    times = random.integers(0, 600_000_000, 200_000) * unit
    _, places, _ = sort_into_sequences(users, np.arange(200_000, dtype=np.int32), times.copy())
    assert np.array_equal(places, np.lexsort((times, users)))


def test_rows_without_times_are_grouped_by_user():
    """The order of the source stays."""
    places = np.arange(4, dtype=np.int32)
    assert sort_into_sequences(np.array([2, 1, 2, 1], np.int32), places, None)[1].tolist() == [1, 3, 0, 2]
    assert sort_into_sequences(np.array([1, 1, 2, 3], np.int32), places, None)[1].tolist() == [0, 1, 2, 3]
