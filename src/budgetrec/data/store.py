"""The prepared dataset: a folder of flat arrays that are memory-mapped, never read whole.

::

    items.npy               int32, all sequences concatenated
    offsets.npy             int64, sequence u is items[offsets[u]:offsets[u + 1]]
    train_stops.npy         int64, its training part is items[offsets[u]:train_stops[u]]
    validation_targets.npy  int64, positions in items of the targets
    test_targets.npy        int64, the same for the test
    users.parquet           row u: the source's id of user u
    items.parquet           row i: the source's id of item i, and its training count
    dataset.json            statistics, filters, split, source checksum, format version
"""

import hashlib
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict, cast, get_type_hints

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.scanning import POLARS_ERRORS
from budgetrec.errors import DataError, first_line
from budgetrec.files import write_parquet
from budgetrec.options import has_type

FORMAT = "budgetrec-dataset"
VERSION = 1
MARKER = "dataset.json"
FILES = (MARKER, "*.npy", "*.parquet")  # the files of such a folder, which overwriting may replace


class Statistics(TypedDict, total=False):
    """What a dataset is like in numbers; `time` holds the unit, the first and the last time."""

    users: int
    items: int
    interactions: int
    density: float
    mean_length: float
    median_length: float
    max_length: int
    train_interactions: int
    validation_users: int
    test_users: int
    time: dict[str, str | int]


class Source(TypedDict, total=False):
    """What a dataset was made from."""

    files: list[str]
    bytes: int
    sha256: str
    layout: str
    columns: dict[str, str]


class Repeats(TypedDict):
    """How many targets a part holds out, and how many of them are items that the user had before."""

    targets: int
    repeated: int


class StepInfo(TypedDict):
    """A step of cleaning and the rows before and after it."""

    name: str
    rows_in: int
    rows_out: int


class DatasetInfo(TypedDict, total=False):
    """What `dataset.json` says: what a dataset is like, and how it was made."""

    statistics: Statistics
    repeated_targets: dict[str, Repeats]  # by part
    split: dict[str, object]
    source: Source
    reading: dict[str, object]
    cleaning: dict[str, object]
    steps: list[StepInfo]


@dataclass(frozen=True)
class Targets:
    """Items to predict, by position. The history of each is its sequence from `begins` up to it."""

    users: NDArray[np.int64]
    begins: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Dataset:
    """Sequences of items, split into training, validation and test.

    Users and items are numbered from 0; items by training count, the most frequent first.
    """

    items: NDArray[np.int32]
    offsets: NDArray[np.int64]
    train_stops: NDArray[np.int64]
    validation_targets: NDArray[np.int64]
    test_targets: NDArray[np.int64]
    user_labels: pl.Series
    item_labels: pl.Series
    train_counts: NDArray[np.int64]
    info: DatasetInfo
    folder: Path | None = None  # the folder it is mapped from

    def __repr__(self) -> str:
        return (
            f"Dataset({self.num_users:,} users, {self.num_items:,} items, {len(self.items):,} interactions)"
        )

    @property
    def num_users(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        """The size of the catalogue (K)."""
        return len(self.item_labels)

    @property
    def identity(self) -> str:
        """A short hash of the source, cleaning and split, which determine the numbering."""
        made = {key: self.info.get(key) for key in ("statistics", "split", "cleaning")}
        made["source"] = self.info.get("source", {}).get("sha256")
        text = json.dumps(made, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def train_ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and end in `items` of the training part of each sequence."""
        return self.offsets[:-1], self.train_stops

    def validation(self) -> Targets:
        """Return the validation targets."""
        return self._targets(self.validation_targets)

    def test(self) -> Targets:
        """Return the test targets."""
        return self._targets(self.test_targets)

    def _targets(self, places: NDArray[np.int64]) -> Targets:
        users = np.searchsorted(self.offsets, places, side="right") - 1
        return Targets(users, self.offsets[users], places)

    def save(self, folder: Path) -> None:
        """Write all files into an existing folder."""
        for name in _ARRAYS:
            _write_array(folder / f"{name}.npy", getattr(self, name))
        items = {"item": self.item_labels, "train_count": self.train_counts}
        write_parquet(pl.DataFrame({"user": self.user_labels}), folder / "users.parquet")
        write_parquet(pl.DataFrame(items), folder / "items.parquet")
        document = {"format": FORMAT, "version": VERSION, **self.info}
        (folder / MARKER).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Map a prepared dataset into memory."""
        folder = Path(folder)
        info = _read_info(folder)
        try:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
            users = pl.read_parquet(folder / "users.parquet")
            items = pl.read_parquet(folder / "items.parquet")
            dataset = cls(
                **arrays,
                user_labels=users["user"],
                item_labels=items["item"],
                train_counts=items["train_count"].to_numpy(),
                info=info,
                folder=folder,
            )
        except _UNREADABLE as error:
            raise DataError(f"{folder} is damaged: {first_line(error)}. Prepare it again.") from error
        fault = _fault(dataset)
        if fault is not None:
            raise DataError(f"{folder} is damaged: {fault}. Prepare it again.")
        return dataset


_ARRAYS = {
    "items": np.int32,
    "offsets": np.int64,
    "train_stops": np.int64,
    "validation_targets": np.int64,
    "test_targets": np.int64,
}

# What numpy and polars raise for a damaged file.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    *POLARS_ERRORS,
)
_READ_AT_ONCE = 1 << 20  # items


def _read_info(folder: Path) -> DatasetInfo:
    try:
        info: Any = json.loads((folder / MARKER).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{folder} is not a prepared dataset: it has no {MARKER}. Make one with budgetrec prepare."
        ) from None
    except (OSError, ValueError) as error:
        told = f"{folder / MARKER} cannot be read: {first_line(error)}."
        raise DataError(f"{told} Prepare it again.") from error
    if not isinstance(info, dict) or info.pop("format", None) != FORMAT:
        raise DataError(
            f"{folder / MARKER} does not belong to a prepared dataset. Make one with budgetrec prepare."
        )
    version = info.pop("version", None)
    if version != VERSION:
        raise DataError(
            f"{folder} has format version {version}, but this budgetrec reads {VERSION}. Prepare it again."
        )
    missing = [key for key in ("statistics", "steps", "split", "source") if key not in info]
    if missing:
        raise DataError(f"{folder} is damaged: {MARKER} has no {missing[0]!r}. Prepare it again.")
    for key, kind in get_type_hints(DatasetInfo).items():
        if key in info and not has_type(info[key], kind):
            raise DataError(f"{folder} is damaged: {MARKER} has an odd {key!r}. Prepare it again.")
    return cast("DatasetInfo", info)


def _fault(dataset: Dataset) -> str | None:
    """Say what is wrong with a dataset that was read, so that nothing reads beyond its arrays later."""
    for name, dtype in _ARRAYS.items():
        if getattr(dataset, name).dtype != dtype or getattr(dataset, name).ndim != 1:
            return f"{name}.npy is not a vector of {dtype.__name__}"
    for name, labels in (("users", dataset.user_labels), ("items", dataset.item_labels)):
        if labels.dtype not in (pl.Int64, pl.String) or labels.has_nulls():
            return f"the labels in {name}.parquet are neither numbers nor text"
    if dataset.train_counts.dtype.kind not in "iu" or (dataset.train_counts < 0).any():
        return "items.parquet has counts that are none"
    expected = dataset.info["statistics"]
    seen = {"users": dataset.num_users, "items": dataset.num_items, "interactions": len(dataset.items)}
    for name, count in seen.items():
        if expected.get(name) != count:
            return f"{MARKER} has {expected.get(name)} {name}, the arrays have {count}"
    if len(dataset.user_labels) != dataset.num_users:
        return f"users.parquet has {len(dataset.user_labels)} users, the arrays have {dataset.num_users}"
    begins, ends = dataset.offsets[:-1], dataset.offsets[1:]
    if dataset.offsets[0] != 0 or dataset.offsets[-1] != len(dataset.items) or (begins > ends).any():
        return "its offsets do not fit its items"
    stops = dataset.train_stops
    if len(stops) != len(ends) or (stops < begins).any() or (stops > ends).any():
        return "its train_stops do not fit its offsets"
    for targets in (dataset.validation_targets, dataset.test_targets):
        if ((targets < 0) | (targets >= len(dataset.items))).any():
            return "its targets do not fit its items"
    return None if _items_are_within(dataset) else "items.npy has items that items.parquet lacks"


def _items_are_within(dataset: Dataset) -> bool:
    """Whether all items are in the catalogue; read piece by piece, to leave the map of the file untouched."""
    mapped = cast("np.memmap[Any, Any]", dataset.items)
    for start in range(0, len(mapped), _READ_AT_ONCE):
        place = mapped.offset + start * mapped.itemsize
        count = min(_READ_AT_ONCE, len(mapped) - start)
        piece = np.fromfile(str(mapped.filename), mapped.dtype, count, offset=place)
        if piece.min() < 0 or piece.max() >= dataset.num_items:
            return False
    return True


def _write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file through a Python file, whose errors report a full disk."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
