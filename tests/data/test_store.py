"""The prepared dataset comes back as it was written, or is refused."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

from budgetrec import Dataset, prepare
from budgetrec.errors import DataError
from tests.conftest import frame_of

ROWS = [(u, i, u * 10 + i) for u in range(5) for i in range(u + 1)]


@pytest.fixture
def folder(tmp_path):
    """Prepare a small dataset."""
    frame_of(ROWS).write_parquet(tmp_path / "e.parquet")
    prepare(tmp_path / "e.parquet", tmp_path / "d")
    return tmp_path / "d"


def test_arrays_are_mapped_not_read(folder):
    """Opening a dataset of any size is instant and takes no memory."""
    dataset = Dataset.open(folder)
    for name in ("items", "offsets", "train_stops"):
        assert isinstance(getattr(dataset, name), np.memmap)
    assert dataset.items.dtype == np.int32
    assert dataset.offsets.dtype == np.int64
    assert dataset.num_users == 5
    assert dataset.num_items == 5


def test_the_same_source_gives_the_same_bytes(folder, tmp_path):
    """Nothing in the folder hangs on the clock, the machine or the order of threads."""
    prepare(tmp_path / "e.parquet", tmp_path / "again")
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_saving_an_opened_dataset_gives_the_same_files(folder, tmp_path):
    """What was read is what was written."""
    (tmp_path / "copy").mkdir()
    Dataset.open(folder).save(tmp_path / "copy")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["items.npy", "offsets.npy", "users.parquet", "items.parquet"])
@pytest.mark.parametrize("damage", ["cut", "missing", "nonsense"])
def test_damage_is_seen_on_opening(folder, name, damage):
    """A cut, missing or overwritten file is one sentence."""
    path = folder / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="damaged"):
        Dataset.open(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("items", lambda array: array + 1000),
        ("items", lambda array: array - 1000),
        ("offsets", lambda array: array[::-1].copy()),
        ("offsets", lambda array: array[:0]),
        ("train_stops", lambda array: array + 1000),
        ("train_stops", lambda array: array[1:]),
        ("validation_targets", lambda array: array - 1000),
        ("test_targets", lambda array: array + 1000),
    ],
)
def test_arrays_that_point_outside_each_other_are_refused(folder, name, change):
    """Nothing reads beyond an array later: every offset, stop, target and item is looked at."""
    path = folder / f"{name}.npy"
    np.save(path, change(np.load(path)))
    with pytest.raises(DataError, match="is damaged: "):
        Dataset.open(folder)


@pytest.mark.parametrize("head", [b"(" * 20, b"{'descr': '<i8', 'shape': (3"])
def test_an_array_with_a_spoiled_head_is_refused(folder, head):
    """What numpy's reader of heads raises, errors of Python's own tokenizer among them, is one sentence."""
    whole = bytearray((folder / "items.npy").read_bytes())
    whole[10 : 10 + len(head)] = head
    (folder / "items.npy").write_bytes(whole)
    with pytest.raises(DataError, match="is damaged"):
        Dataset.open(folder)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("users", lambda frame: frame.with_columns(user=pl.lit(True))),
        ("users", lambda frame: frame.head(1)),
        ("items", lambda frame: frame.with_columns(item=pl.lit(None, pl.Int64))),
        ("items", lambda frame: frame.with_columns(train_count=pl.lit("many"))),
        ("items", lambda frame: frame.with_columns(train_count=-1)),
    ],
)
def test_labels_and_counts_of_another_kind_are_refused(folder, table, change):
    """Labels are whole numbers or text, one for each user and item, and counts are counts."""
    path = folder / f"{table}.parquet"
    change(pl.read_parquet(path)).write_parquet(path)
    with pytest.raises(DataError, match="is damaged"):
        Dataset.open(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("source", 3), ("statistics", {"users": "many"}), ("split", []), ("steps", [{"name": 1}])],
)
def test_a_description_of_another_kind_is_refused(folder, key, value):
    """What dataset.json says is of the kinds that are written there."""
    document = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(DataError, match=f"has an odd '{key}'"):
        Dataset.open(folder)


def test_a_pickle_in_an_array_is_never_loaded(folder):
    """Arrays of objects would run code on loading; they are refused."""
    np.save(folder / "items.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="damaged"):
        Dataset.open(folder)


def test_other_folders_and_versions_are_refused(folder, tmp_path):
    """A folder without dataset.json, one of another kind, and one of a later version."""
    with pytest.raises(DataError, match="not a prepared dataset"):
        Dataset.open(tmp_path)
    later = tmp_path / "later"
    shutil.copytree(folder, later)
    document = json.loads((later / "dataset.json").read_text())
    (later / "dataset.json").write_text(json.dumps({**document, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        Dataset.open(later)
    (later / "dataset.json").write_text("[]")
    with pytest.raises(DataError, match="does not belong to a prepared dataset"):
        Dataset.open(later)


def test_only_the_named_files_are_left(folder):
    """Nothing temporary stays in the folder or beside it."""
    assert sorted(path.name for path in folder.iterdir()) == [
        "dataset.json", "items.npy", "items.parquet", "offsets.npy", "test_targets.npy",
        "train_stops.npy", "users.parquet", "validation_targets.npy",
    ]  # fmt: skip
    assert sorted(path.name for path in folder.parent.iterdir()) == ["d", "e.parquet"]
