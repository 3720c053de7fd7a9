"""Whether settings differ: paired over seeds, with the size of the effect, for many pairs at once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from budgetrec.evaluation.intervals import compare_seeds


def compare_pairs(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[int, float], Mapping[int, float]]],
) -> list[dict[str, Any]]:
    """Compare each `first` with its `second`, values by seed; give a row for each that shares two seeds.

    `effect` is the mean difference over the deviation of the differences (Cohen's d_z), None where nothing
    varies. `p_adjusted` is Holm's, over all rows.
    """
    rows = []
    for about, first, second in pairs:
        difference = compare_seeds(first, second)
        if difference is None:
            continue
        shared = sorted(first.keys() & second.keys())
        deviation = float(np.std([second[seed] - first[seed] for seed in shared], ddof=1))
        rows.append(
            {
                **about,
                "seeds": difference.count,
                "first": float(np.mean([first[seed] for seed in shared])),
                "second": float(np.mean([second[seed] for seed in shared])),
                "difference": difference.mean,
                "low": difference.low,
                "high": difference.high,
                "effect": difference.mean / deviation if deviation > 0 else None,
                "p_value": difference.p_value,
            }
        )
    adjusted = holm([row["p_value"] for row in rows])
    return [{**row, "p_adjusted": p} for row, p in zip(rows, adjusted, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that the chance of one false finding among all stays below the level.

    >>> holm([0.01, 0.04, 0.03])  # 3 * 0.01, then 2 * 0.03, and never less than the one before
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
