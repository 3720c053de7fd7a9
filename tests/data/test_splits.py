"""Splits keep what is predicted after, and apart from, what is trained on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec import LeaveOneOut, Temporal, TemporalUsers, prepare
from budgetrec.data.splits import Part, Rows
from budgetrec.errors import DataError
from tests.conftest import frame_of, sequences

SPLITS = st.sampled_from(
    [LeaveOneOut(), Temporal(test_share=0.3, validation_share=0.3), Temporal(), TemporalUsers(test_share=0.4)]
)


def _rows(draw_rows):
    ordered = sorted(draw_rows, key=lambda row: (row[0], row[2]))
    users = np.array([row[0] for row in ordered])
    starts = np.flatnonzero(np.diff(users, prepend=-1))
    return Rows(
        offsets=np.append(starts, len(users)),
        items=np.array([row[1] for row in ordered], np.int32),
        times=np.array([row[2] for row in ordered], np.int64),
        num_items=10,
    )


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=80
    ),
    split=SPLITS,
)
@settings(max_examples=300, deadline=None)
def test_no_target_leaks_into_training(rows, split):
    """In each sequence training comes first, then history, then at most one target of each kind, in order.

    So the training part never holds a target nor anything after it. With a split by time, moreover, all that
    is trained on is earlier than every test target, and every item predicted was trained on by someone.
    """
    rows = _rows(rows)
    try:
        parts = split.parts(rows)
    except DataError as error:
        assert "nothing is left to train on" in str(error)
        return
    for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        own = parts[begin:end]
        own = own[own != Part.DROPPED]
        assert np.all(np.diff(own.astype(int)) >= 0)
        assert np.count_nonzero(own == Part.VALIDATION_TARGET) <= 1
        assert np.count_nonzero(own == Part.TEST_TARGET) <= 1
        if own.size and own[-1] >= Part.VALIDATION_TARGET:
            assert own[0] <= Part.HISTORY  # something stands before the first target
    targets = parts >= Part.VALIDATION_TARGET
    if not isinstance(split, LeaveOneOut):
        trained = parts == Part.TRAIN
        assert set(rows.items[targets]) <= set(rows.items[trained])
        tests = parts == Part.TEST_TARGET
        if tests.any() and trained.any():
            assert rows.times[trained].max() < rows.times[tests].min()


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=80
    ),
    split=SPLITS,
)
@settings(max_examples=40, deadline=None)
def test_the_stored_dataset_keeps_the_promise(tmp_path_factory, rows, split):
    """What the store calls the training part of a sequence ends before each of its targets."""
    folder = tmp_path_factory.mktemp("split")
    frame_of(rows).write_parquet(folder / "e.parquet")
    try:
        dataset = prepare(folder / "e.parquet", folder / "d", split=split)
    except DataError:
        return
    begins, ends = dataset.train_ranges()
    for targets in (dataset.validation(), dataset.test()):
        assert np.all(targets.places >= ends[targets.users])
        assert np.all(targets.places > targets.begins)
        assert np.all(targets.begins == begins[targets.users])
    counts = np.zeros(dataset.num_items, int)
    for begin, end in zip(begins, ends, strict=True):
        np.add.at(counts, dataset.items[begin:end], 1)
    assert counts.tolist() == dataset.train_counts.tolist()
    assert np.all(np.diff(counts) <= 0)  # items are numbered by how often they are trained on


def _targets(dataset, targets):
    users, items = dataset.user_labels, dataset.item_labels
    return {
        users[int(u)]: items[int(dataset.items[p])]
        for u, p in zip(targets.users, targets.places, strict=True)
    }


def test_leave_one_out_by_hand(tmp_path):
    """The last item is the test target, the one before the validation target; short ones only train."""
    rows = [(1, item, t) for t, item in enumerate("abcd")] + [(2, "a", 1), (2, "b", 2), (3, "c", 1)]
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d")
    assert _targets(dataset, dataset.validation()) == {1: "c"}
    assert _targets(dataset, dataset.test()) == {1: "d"}
    assert dataset.train_stops.tolist() == [2, 6, 7]


def test_temporal_by_hand(tmp_path):
    """Ten rows, the last three are the test period; nobody is drawn for validation with so few users."""
    rows = [
        (1, "a", 1), (1, "b", 2), (2, "a", 3), (2, "c", 4), (3, "b", 5), (3, "a", 6), (3, "c", 7),
        (1, "c", 8), (2, "new", 9), (4, "a", 10),
    ]  # fmt: skip
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    split = Temporal(test_share=0.3, validation_share=0.1)
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d", split=split)
    # User 2 meets only an item nobody trained on, user 4 was never trained on: neither is tested.
    assert _targets(dataset, dataset.test()) == {1: "c"}
    assert sequences(dataset) == {1: ["a", "b", "c"], 2: ["a", "c"], 3: ["b", "a", "c"]}
    assert len(dataset.validation()) == 0


def test_temporal_holds_validation_users_out_whole(tmp_path):
    """A tenth of the users of the training period is drawn; none of their rows is trained on."""
    rows = [(u, f"i{(u + t) % 7}", t) for u in range(40) for t in range(10)]
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    split = Temporal(test_share=0.2, validation_share=0.1, seed=1)
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d", split=split)
    validation = dataset.validation()
    assert len(validation) == 4
    begins, ends = dataset.train_ranges()
    assert np.all(ends[validation.users] == begins[validation.users])
    assert np.all(validation.places - validation.begins == 7)  # 8 rows before the cut, the last is the target
    assert len(dataset.test()) == 36
    other = prepare(tmp_path / "e.parquet", tmp_path / "d2", split=Temporal(seed=2, validation_share=0.1))
    assert set(other.validation().users) != set(validation.users)


def test_temporal_users_by_hand(tmp_path):
    """Users seen in the test period are held out, with what they did in it alone."""
    rows = [(1, i, t) for t, i in enumerate("abcde")] + [
        (2, "a", 0), (2, "b", 10), (2, "c", 11), (2, "d", 12), (3, "e", 10), (3, "new", 13),
    ]  # fmt: skip
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d", split=TemporalUsers(test_share=0.45))
    assert _targets(dataset, dataset.test()) == {2: "d"}
    assert _targets(dataset, dataset.validation()) == {2: "c"}
    assert sequences(dataset)[2] == ["b", "c", "d"]


def test_a_split_by_time_needs_times(tmp_path):
    """Without times there is nothing to cut at."""
    frame_of([(1, "a", 1)]).write_parquet(tmp_path / "e.parquet")
    with pytest.raises(DataError, match="needs times"):
        prepare(tmp_path / "e.parquet", tmp_path / "d", split=Temporal(), file_order=True)


@pytest.mark.parametrize(("share", "trained"), [(0.9, 1), (0.3, 7), (1e-17, 9)])
def test_the_share_is_taken_as_it_is_written(tmp_path, share, trained):
    """Of 10 rows 0.9 leaves one; a tiny share still tests the last row."""
    frame_of([(u, "a", u) for u in range(10)]).write_parquet(tmp_path / "e.parquet")
    split = TemporalUsers(test_share=share)
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d", split=split)
    assert dataset.info["statistics"]["train_interactions"] == trained


def test_rows_that_a_split_drops_are_reported(tmp_path):
    """The split is a step like any other: rows in, rows out."""
    rows = [(1, "a", 1), (1, "b", 2), (2, "a", 3), (2, "new", 9), (2, "a", 10)]
    frame_of(rows).write_parquet(tmp_path / "e.parquet")
    steps = prepare(tmp_path / "e.parquet", tmp_path / "d", split=TemporalUsers(test_share=0.4)).info["steps"]
    assert steps[-1] == {"name": "split temporal-users", "rows_in": 5, "rows_out": 3}
