"""How many different items a number of draws meets."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BIN = 0.02  # items whose weights are alike to about so much are taken together


def expected_distinct(draws: Floats, num_items: int) -> Floats:
    """Return how many of `num_items` items uniform draws are expected to meet."""
    met: Floats = -num_items * np.expm1(-draws / num_items)
    return met


@dataclass(frozen=True)
class Frequencies:
    """How likely a draw is each item: `shares` (V,), and how many items have each, `numbers` (V,)."""

    shares: Floats
    numbers: Floats

    @classmethod
    def by_weight(cls, weights: Floats) -> Self:
        """Draw items in proportion to positive `weights` (K,)."""
        _, places = np.unique(np.round(np.log(weights) / _BIN), return_inverse=True)
        numbers = np.bincount(places).astype(np.float64)
        return cls(np.bincount(places, weights) / numbers / weights.sum(), numbers)

    def expected_distinct(self, draws: Floats) -> Floats:
        r"""Return $\sum_i 1 - (1 - q_i)^m$ for $m$ draws.

        >>> items = Frequencies.by_weight(np.array([1.0, 1.0, 2.0]))
        >>> items.expected_distinct(np.array(2.0))  # 7/16 + 7/16 + 3/4
        np.float64(1.625)
        """
        missed = np.exp(np.asarray(draws)[..., None] * np.log1p(-np.minimum(self.shares, 1 - 1e-12)))
        met: Floats = ((1 - missed) * self.numbers).sum(-1)
        return met
