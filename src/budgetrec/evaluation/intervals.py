"""How sure an average is: bootstrap intervals over users, and paired tests over users and over seeds."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from budgetrec.errors import ArgumentError

Floats = NDArray[np.float64]

LEVEL = 0.95
_RESAMPLES = 1000
# More users than this are resampled in as many random groups: the spread is the same, the work bounded.
_MOST_UNITS = 2**16
_BLOCK_DRAWS = 2**21


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies with 95% confidence."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean difference, where it lies with 95% confidence, and how likely one so large comes by chance.

    `count` pairs were compared; `p_value` is of the two-sided paired t-test.
    """

    mean: float
    low: float
    high: float
    p_value: float
    count: int


def bootstrap_intervals(
    values: Mapping[str, Floats], *, seed: int, num_resamples: int = _RESAMPLES
) -> dict[str, Interval]:
    """Return percentile intervals of the means over users; all metrics see the same resamples.

    Users are drawn with replacement, as many as there are, `num_resamples` times; the interval runs from the
    2.5th to the 97.5th percentile of the means.
    """
    if not values:
        return {}
    if seed < 0:
        raise ArgumentError(f"seed is {seed}. Pass 0 or more.")
    if num_resamples < 1:
        raise ArgumentError(f"num_resamples is {num_resamples}. Pass at least 1.")
    matrix = np.stack(
        [np.asarray(column, np.float64) for column in values.values()], axis=1
    )  # (users, metrics)
    if len(matrix) == 0:
        raise ArgumentError("there are no users to average over.")
    means = _resampled_means(matrix, np.random.default_rng(seed), num_resamples)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return {
        name: Interval(float(matrix[:, column].mean()), float(low[column]), float(high[column]))
        for column, name in enumerate(values)
    }


def compare_users(first: Floats, second: Floats, *, seed: int) -> Difference:
    """Compare two runs over the same users: how much `second` is above `first`, user by user.

    The interval is a bootstrap of the difference (pairs stay together), the p-value of the paired t-test.
    """
    if first.shape != second.shape:
        raise ArgumentError(
            f"{len(first):,} users cannot be paired with {len(second):,}. Evaluate both on the same part."
        )
    differences = second - first
    interval = bootstrap_intervals({"difference": differences}, seed=seed)["difference"]
    return Difference(
        interval.mean, interval.low, interval.high, _paired_p_value(differences), len(differences)
    )


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Compare two settings over the seeds that both have; None with fewer than two.

    Interval and p-value are of the paired t-test: seeds are too few to resample.

    >>> compare_seeds({0: 1.0, 1: 2.0}, {0: 1.5, 1: 3.0, 9: 0.0}).mean  # 0.5 and 1
    0.75
    """
    shared = sorted(first.keys() & second.keys())
    if len(shared) < 2:
        return None
    differences = np.array([second[seed] - first[seed] for seed in shared])
    interval = t_interval(differences)
    return Difference(interval.mean, interval.low, interval.high, _paired_p_value(differences), len(shared))


def t_interval(values: Floats) -> Interval:
    """Return Student's interval of the mean of a few values."""
    mean = float(np.mean(values))
    if len(values) < 2:
        raise ArgumentError("one value has no spread. Pass two or more.")
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * _standard_error(values)
    return Interval(mean, mean - half, mean + half)


def _resampled_means(matrix: Floats, random: np.random.Generator, num_resamples: int) -> Floats:
    sums, sizes = _grouped(matrix, random)
    count = len(sums)
    means = np.empty((num_resamples, matrix.shape[1]))
    block = max(1, _BLOCK_DRAWS // count)
    for start in range(0, num_resamples, block):
        rows = min(block, num_resamples - start)
        drawn = random.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
        means[start : start + rows] = (times @ sums) / (times @ sizes)[:, None]
    return means


def _grouped(matrix: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Return sums (units, metrics) and sizes (units,) of what is resampled: users or random groups."""
    if len(matrix) <= _MOST_UNITS:
        return matrix, np.ones(len(matrix))
    starts = np.arange(_MOST_UNITS) * len(matrix) // _MOST_UNITS
    sums = np.add.reduceat(matrix[random.permutation(len(matrix))], starts, axis=0)
    return sums, np.diff(starts, append=len(matrix)).astype(np.float64)


def _paired_p_value(differences: Floats) -> float:
    """Return the two-sided p-value that the mean difference is 0; 1 when nothing differs."""
    mean, error = float(differences.mean()), _standard_error(differences)
    if mean == 0 or len(differences) < 2:
        return 1.0
    if error == 0:
        return 0.0
    return float(2 * stats.t.sf(abs(mean) / error, len(differences) - 1))


def _standard_error(values: Floats) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
