"""Interactions as arrays of codes, with the labels of the codes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

_Number = TypeVar("_Number", np.int32, np.int64)
_BLOCK_ROWS = 1 << 20


@dataclass
class Events:
    """Interactions in the order of the source. Labels are the ids of users and items in the source."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    times: NDArray[np.int64] | None  # None: the order of the source is the order in time
    ratings: NDArray[np.float64] | None
    user_labels: pl.Series
    item_labels: pl.Series
    time_unit: str

    def __len__(self) -> int:
        return len(self.users)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Keep only these rows."""
        self.users = self.users[rows]
        self.items = self.items[rows]
        self.times = None if self.times is None else self.times[rows]
        self.ratings = None if self.ratings is None else self.ratings[rows]


def count_codes(codes: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    """Count how often each code below `size` occurs; in blocks, because numpy would copy them all to int64.

    >>> count_codes(np.array([0, 2, 2], np.int32), 4)
    array([1, 0, 2, 0])
    """
    counts = np.zeros(size, np.int64)
    for begin in range(0, len(codes), _BLOCK_ROWS):
        counts += np.bincount(codes[begin : begin + _BLOCK_ROWS], minlength=size)
    return counts


def renumber(codes: NDArray[np.int32], numbers: NDArray[np.int32]) -> None:
    """Replace each code by its number, in place and in blocks to save memory."""
    for begin in range(0, len(codes), _BLOCK_ROWS):
        block = codes[begin : begin + _BLOCK_ROWS]
        block[:] = numbers[block]


def encode(frame: pl.DataFrame, time_unit: str) -> Events:
    """Turn a frame with user, item and perhaps time and rating into events. Ids are int64 or categories."""
    # Most of the time is spent on first-touched pages, so two columns run in parallel.
    with ThreadPoolExecutor(2) as pool:
        users = pool.submit(_number, frame["user"])
        items = pool.submit(_number, frame["item"])
        times = pool.submit(_copy, frame["time"], np.dtype(np.int64)) if "time" in frame.columns else None
        ratings = frame["rating"].to_numpy(writable=True) if "rating" in frame.columns else None
    return Events(
        users=users.result()[0],
        items=items.result()[0],
        times=None if times is None else times.result(),
        ratings=ratings,
        user_labels=users.result()[1],
        item_labels=items.result()[1],
        time_unit=time_unit,
    )


def _number(ids: pl.Series) -> tuple[NDArray[np.int32], pl.Series]:
    """Return the number of each id, from 0, and the label of each number."""
    if ids.dtype.is_integer():
        dense = _number_by_table(ids)
        if dense is not None:
            return dense
        ids = ids.cast(pl.String).cast(pl.Categorical(pl.Categories.random()))
    codes = ids.to_physical()
    count = int(codes.max()) + 1  # type: ignore[arg-type]
    labels = pl.Series(np.arange(count, dtype=np.uint32)).cat.to(ids.dtype).cast(pl.String)
    return _copy(codes, np.dtype(np.int32)), labels


def _number_by_table(ids: pl.Series) -> tuple[NDArray[np.int32], pl.Series] | None:
    """Return the same for integer ids through a lookup table; None if their range is too wide."""
    lowest, highest = int(ids.min()), int(ids.max())  # type: ignore[arg-type]
    span = highest - lowest + 1
    if span > max(4 * len(ids), 1 << 22):
        return None
    present = np.zeros(span, bool)
    for chunk in ids.get_chunks():
        present[chunk.to_numpy() - lowest] = True
    numbers = np.cumsum(present, dtype=np.int32)
    numbers -= 1
    codes = np.empty(len(ids), np.int32)
    begin = 0
    for chunk in ids.get_chunks():
        codes[begin : begin + len(chunk)] = numbers[chunk.to_numpy() - lowest]
        begin += len(chunk)
    return codes, pl.Series(np.flatnonzero(present) + lowest)


def _copy(column: pl.Series, dtype: np.dtype[_Number]) -> NDArray[_Number]:
    """Copy a column, chunk by chunk, into a writable array."""
    array = np.empty(len(column), dtype)
    begin = 0
    for chunk in column.get_chunks():
        array[begin : begin + len(chunk)] = chunk.to_numpy()
        begin += len(chunk)
    return array
