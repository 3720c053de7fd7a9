"""How large the parts of a step are, for batches as the data makes them.

Sequences have different lengths, so the largest part of a step is found by drawing batches of windows with a
fixed seed, and cutting them as training does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from budgetrec.stepping.gradients import cut, cut_for_cache

Floats = NDArray[np.float64]
_DRAWN_SEQUENCES = 20_000  # in all batches of one size
_FEWEST_BATCHES, _MOST_BATCHES = 8, 128


@dataclass(frozen=True)
class Windows:
    """What each training window has: positions that are read, and targets."""

    positions: NDArray[np.int64]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Shapes:
    """Sizes of whole batches, (4,), and of their parts, (parts, 4): sequences, positions, places, targets.

    Positions and places count padding. Of the parts only those are kept that are not smaller in every respect
    than another.
    """

    batch: Floats
    parts: Floats


def draw_shapes(windows: Windows, batch_size: int, cutting: Callable[[torch.Tensor], list[slice]]) -> Shapes:
    """Draw batches of `batch_size` windows, cut them, and keep the largest sizes."""
    random = np.random.default_rng(0)
    size = min(batch_size, len(windows))
    count = int(np.clip(_DRAWN_SEQUENCES // size, _FEWEST_BATCHES, _MOST_BATCHES))
    batches: list[tuple[float, ...]] = []
    parts: list[tuple[float, ...]] = []
    for _ in range(count):
        drawn = random.integers(len(windows), size=size)
        if size == len(windows):
            drawn = np.arange(size)
        drawn = drawn[np.argsort(-windows.positions[drawn], kind="stable")]
        positions, targets = windows.positions[drawn], windows.targets[drawn]
        batches.append(_shape(positions, targets))
        parts.extend(_shape(positions[part], targets[part]) for part in cutting(torch.from_numpy(positions)))
    return Shapes(np.array(batches).max(0), largest(np.array(parts)))


def _shape(positions: NDArray[np.int64], targets: NDArray[np.int64]) -> tuple[float, float, float, float]:
    count = len(positions)
    return count, count * float(positions.max()), count * float(targets.max()), float(targets.sum())


def largest(rows: Floats) -> Floats:
    """Keep the rows that no other row is at least as large as in every column."""
    rows = np.unique(rows, axis=0)[::-1]
    kept: list[Floats] = []
    for row in rows[np.argsort(-rows.sum(1), kind="stable")]:
        if not any((other >= row).all() for other in kept):
            kept.append(row)
    return np.array(kept)


def cutting_for(micro_batches: int | None, *, whole: bool) -> Callable[[torch.Tensor], list[slice]]:
    """Return the way that training cuts: for the cache, into a number of parts, or not at all (`whole`)."""
    if micro_batches is not None:
        return lambda lengths: cut(lengths, micro_batches)
    return (lambda lengths: [slice(0, len(lengths))]) if whole else cut_for_cache


@cache
def grid(largest_size: int) -> NDArray[np.int64]:
    """Return the batch sizes between which memory is interpolated: all small ones, then by an eighth."""
    sizes = [1]
    while sizes[-1] < largest_size:
        sizes.append(max(sizes[-1] + 1, sizes[-1] + sizes[-1] // 8))
    return np.array(sizes, np.int64)
