"""How often each item comes up among the negatives that batches take from their own targets."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FEWEST = 1e-3  # an item that was never a target counts as a thousandth of one: log q stays finite
_AT_ONCE = 2**20  # targets that are counted together


def count_targets(
    targets_of_batches: Iterable[Tensor], num_items: int, *, num_slots: int | None = None
) -> NDArray[np.float64]:
    """Count how often each item fills one of `num_slots` slots, which are drawn from a batch's targets.

    A batch with fewer targets fills as many slots as it has (all do if `num_slots` is None). A target of a
    large batch has less of a chance to be drawn than one of a small batch, so counts depend on how batches
    are put together, and on nothing else: neither on powers of popularity nor on smoothing.

    >>> count_targets([torch.tensor([2, 2, 0, 0]), torch.tensor([1])], 3, num_slots=2).tolist()
    [1.0, 1.0, 1.0]
    """
    counts = np.zeros(num_items)
    ids: list[Tensor] = []
    weights: list[Tensor] = []
    held = 0
    for targets in targets_of_batches:
        share = 1.0 if num_slots is None else min(1.0, num_slots / max(1, len(targets)))
        ids.append(targets.cpu())
        weights.append(torch.full((len(targets),), share, dtype=torch.float64))
        held += len(targets)
        if held >= _AT_ONCE:
            counts += _sum(ids, weights, num_items)
            ids, weights, held = [], [], 0
    return counts + _sum(ids, weights, num_items) if ids else counts


def log_shares(counts: NDArray[np.float64]) -> Tensor:
    """Return the log of each item's share of the counts, (K,) in single precision.

    >>> log_shares(np.array([3.0, 1.0])).exp().tolist()
    [0.75, 0.25]
    """
    counts = np.maximum(counts, _FEWEST)
    return torch.from_numpy(np.log(counts / counts.sum())).float()


def _sum(ids: list[Tensor], weights: list[Tensor], num_items: int) -> NDArray[np.float64]:
    sums = np.bincount(torch.cat(ids).numpy(), torch.cat(weights).numpy(), minlength=num_items)
    return sums.astype(np.float64)
