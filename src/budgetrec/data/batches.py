"""Batches of padded sequences, gathered from the flat arrays without a loop over sequences.

Sequences are padded on the right: position 0 is the earliest item of a window. Only the mask marks padding,
whose ids are 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.store import Dataset, Targets
from budgetrec.errors import ArgumentError
from budgetrec.options import check_choice, check_positive

_POOL_BATCHES = 64  # batches whose sequences are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Training inputs, each with the item that follows it.

    `ids`, `targets` and `mask` are (n, width) with width at most `max_length`; `targets[s, t]` follows
    `ids[s, t]`, and both are real where `mask[s, t]` is true.
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor

    @property
    def num_targets(self) -> int:
        """The number of valid targets (T)."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class HistoryBatch:
    """Histories (n, width) with the next item, the user and the row of the target of each (n,)."""

    ids: Tensor
    mask: Tensor
    targets: Tensor
    users: Tensor
    rows: Tensor


class TrainingBatches:
    """The training part of a dataset in batches of n sequences.

    `windows` is "last" (the last `max_length` + 1 items of a sequence, as in SASRec) or "all" (long sequences
    are cut into windows, so that every item but the first is a target once). To reduce padding, a batch has
    sequences of similar length: sequences are shuffled, sorted by length within pools of 64 batches, and the
    batches are shuffled again. `group_by_length=False` skips the sorting.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        max_length: int,
        windows: str = "last",
        group_by_length: bool = True,
    ) -> None:
        check_positive(batch_size=batch_size, max_length=max_length)
        check_choice("windows", windows, ("last", "all"))
        self.batch_size = batch_size
        self.max_length = max_length
        self._items = np.asarray(dataset.items)  # still memory-mapped, but not a slow np.memmap
        self._begins, self._lengths = _windows(dataset, max_length, every=windows == "all")
        self._group_by_length = group_by_length
        if len(self._begins) == 0:
            raise ArgumentError(
                "no training sequence has two items, so there is nothing to predict; prepare longer ones."
            )

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self._begins) // self.batch_size)

    @property
    def num_sequences(self) -> int:
        """The number of sequences (windows) per epoch."""
        return len(self._begins)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of targets of each sequence (window)."""
        return self._lengths.astype(np.int64) - 1

    @property
    def num_targets(self) -> int:
        """The number of targets per epoch."""
        return int(self._lengths.sum()) - self.num_sequences

    def epoch(self, generator: torch.Generator, *, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of one epoch in the order drawn by the generator, without the first `skip`.

        The order depends only on the generator's state at the call, so a run can resume within an epoch.
        """
        sequences, bounds = self._order(generator)
        return (self._gather(sequences[begin:end]) for begin, end in bounds[skip:])

    def _order(self, generator: torch.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        count = len(self._begins)
        order = torch.randperm(count, generator=generator).numpy()
        starts = np.arange(0, count, self.batch_size)
        bounds = np.stack([starts, np.minimum(starts + self.batch_size, count)], axis=1)
        if self._group_by_length:
            pool_size = self.batch_size * _POOL_BATCHES
            for pool in (order[begin : begin + pool_size] for begin in range(0, count, pool_size)):
                pool[:] = pool[np.argsort(self._lengths[pool], kind="stable")]
        return order, bounds[torch.randperm(len(bounds), generator=generator).numpy()]

    def _gather(self, sequences: NDArray[np.int64]) -> Batch:
        lengths = self._lengths[sequences]
        width = int(lengths.max())
        ids = _gather(self._items, self._begins[sequences], width)
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if lengths.min() == width:
            mask = np.ones(inputs.shape, bool)
        else:
            mask = np.arange(width - 1) < lengths[:, None] - 1
            inputs, targets = inputs * mask, targets * mask
        return Batch(
            torch.from_numpy(inputs.astype(np.int64)),
            torch.from_numpy(targets.astype(np.int64)),
            torch.from_numpy(mask),
        )


def history_batches(
    dataset: Dataset, targets: Targets, *, batch_size: int, max_length: int
) -> Iterator[HistoryBatch]:
    """Yield the last `max_length` items before each target, shortest histories first."""
    for rows, ids, mask in windows_before(
        dataset.items, targets.begins, targets.places, batch_size=batch_size, max_length=max_length
    ):
        yield HistoryBatch(
            ids,
            mask,
            torch.from_numpy(dataset.items[targets.places[rows]].astype(np.int64)),
            torch.from_numpy(targets.users[rows]),
            torch.from_numpy(rows),
        )


def windows_before(
    items: NDArray[np.int32],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    *,
    batch_size: int,
    max_length: int,
) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
    """Yield rows, ids and mask: the last `max_length` items of each `items[begin:end]`, shortest first.

    `rows` (n,) are the places of the sequences in `begins`; ids and mask are (n, width).
    """
    check_positive(batch_size=batch_size, max_length=max_length)
    lengths = np.minimum(ends - begins, max_length)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        width = int(lengths[rows].max())
        ids = _gather(items, ends[rows] - lengths[rows], width)
        mask = np.arange(width) < lengths[rows][:, None]
        yield rows, torch.from_numpy((ids * mask).astype(np.int64)), torch.from_numpy(mask)


def _windows(
    dataset: Dataset, max_length: int, *, every: bool
) -> tuple[NDArray[np.int64], NDArray[np.unsignedinteger[Any]]]:
    """Return the start and length of each window of 2 to `max_length` + 1 items."""
    begins, ends = dataset.train_ranges()
    num_targets = np.maximum(ends - begins - 1, 0)
    per_sequence = -(-num_targets // max_length) if every else np.minimum(num_targets, 1)
    begins, ends = np.repeat(begins, per_sequence), np.repeat(ends, per_sequence)
    # Windows are counted from the end of a sequence, so only its earliest one can be short.
    first_of_sequence = np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
    from_end = np.arange(len(ends)) - first_of_sequence
    window_ends = ends - from_end * max_length
    window_begins = np.maximum(window_ends - max_length - 1, begins)
    # numpy sorts 8- and 16-bit integers by radix, which is fast.
    return window_begins, (window_ends - window_begins).astype(np.min_scalar_type(max_length + 1))


def _gather(items: NDArray[np.int32], begins: NDArray[np.int64], width: int) -> NDArray[np.int32]:
    """Return the `width` items from `begins[s]` on as row s."""
    if int(begins.max()) + width > len(items):  # beyond the end is padding, so any value will do
        return np.take(items, begins[:, None] + np.arange(width), mode="clip")
    # A view of records of `width` items, one starting at each item, copies a row at once: three times faster.
    records = np.ndarray(
        len(items) - width + 1, f"V{items.itemsize * width}", buffer=items, strides=(items.itemsize,)
    )
    return records[begins].view(np.int32).reshape(-1, width)
