"""A summary of a dataset: sequence lengths, the skew of popularity, and items that users have again."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgetrec.data.repeats import count_repeats
from budgetrec.data.store import Dataset


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Return histograms over powers of two, the share of the most frequent items, and repeated targets."""
    counts = np.sort(dataset.train_counts)[::-1]
    total = max(int(counts.sum()), 1)
    top = {f"top_{share}_percent": _top_share(counts, share, total) for share in (1, 10, 50)}
    return {
        "sequence_lengths": histogram(np.diff(dataset.offsets)),
        "item_train_counts": histogram(dataset.train_counts),
        "share_of_training": top,
        "repeated_targets": count_repeats(dataset),
    }


def histogram(values: NDArray[np.int64]) -> list[dict[str, int]]:
    """Count values by powers of two: 0, 1, 2 to 3, 4 to 7 and so on.

    >>> histogram(np.array([1, 1, 3, 5]))[-1]
    {'from': 4, 'to': 7, 'count': 1}
    """
    exponents = np.where(values > 0, np.log2(np.maximum(values, 1)).astype(np.int64), -1)
    bins = np.arange(exponents.min(), exponents.max() + 1)
    counts = np.bincount(exponents - bins[0], minlength=len(bins))
    return [
        {"from": 2**b if b >= 0 else 0, "to": 2 ** (b + 1) - 1 if b >= 0 else 0, "count": int(count)}
        for b, count in zip(bins.tolist(), counts, strict=True)
    ]


def _top_share(sorted_counts: NDArray[np.int64], percent: int, total: int) -> float:
    head = max(1, len(sorted_counts) * percent // 100)
    return float(sorted_counts[:head].sum() / total)
