"""Walker's alias table, built by prefix sums: any distribution, one draw in constant time."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class AliasTable:
    r"""Draws item $i$ with probability $w_i / \sum_j w_j$ in constant time.

    Scale the weights to mean one. Light items ($w < 1$) have a deficit, heavy ones an excess, and the two
    sums are equal. Walk over both lists in order: a heavy item fills light ones until what is left of it is
    below one, is then light itself, and the next heavy item fills it. With prefix sums $D$ of the deficits
    and $E$ of the excesses the walk needs no loop: light $i$ is filled by the first heavy $j$ with $E_j >
    D_{i-1}$, and heavy $j$ keeps $1 + E_j - D_{i(j)}$ where $i(j)$ is the first light with $D_i > E_j$. (The
    sweep of Hübschle-Schneider and Sanders, "Parallel Weighted Random Sampling", 2019.)

    Twelve bytes per item: a double for the share that a slot keeps, an int32 for the item that owns the rest.
    Unlike `torch.multinomial`, no limit at 2^24 items.

    >>> table = AliasTable(np.array([1.0, 2.0, 5.0]))
    >>> table.probabilities().tolist()
    [0.125, 0.25, 0.625]
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        keep, alias = _build(weights)
        self.keep = torch.from_numpy(keep)
        self.alias = torch.from_numpy(alias)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw items, int64, with replacement."""
        device = generator.device
        slots = torch.randint(self.keep.shape[0], shape, generator=generator, device=device)
        shares = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        slots, shares = slots.to(self.keep.device), shares.to(self.keep.device)
        return torch.where(shares < self.keep[slots], slots, self.alias[slots].long())

    def probabilities(self) -> Tensor:
        """Sum what each item owns over all slots: what the table really draws, for checking."""
        owned = self.keep.clone().index_add_(0, self.alias.long(), 1 - self.keep)
        return owned / self.keep.shape[0]

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self.keep.nbytes + self.alias.nbytes


def _build(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    keep = weights * (len(weights) / weights.sum())
    alias = np.arange(len(weights), dtype=np.int32)
    is_light = keep < 1.0
    light, heavy = alias[is_light], alias[~is_light]
    if len(light) == 0 or len(heavy) == 0:  # all equal, to rounding
        return np.ones_like(keep), alias
    deficits = np.zeros(len(light) + 1)  # D_0 = 0, D_1, ...
    np.cumsum(1.0 - keep[light], out=deficits[1:])
    excesses = np.cumsum(keep[heavy] - 1.0)
    last = len(heavy) - 1
    # Both lists ascend, so these searches are a merge and stay in cache.
    filler = np.searchsorted(excesses, deficits[:-1], side="right")
    alias[light] = heavy[np.minimum(filler, last, out=filler)]
    del filler
    # A heavy item that ends exactly where a light one does stays full, and so does what rounding leaves over.
    crossing = np.searchsorted(deficits, excesses, side="right")
    crossed = (crossing < len(deficits)) & (deficits[crossing - 1] < excesses)
    left = 1.0 + excesses - deficits[np.minimum(crossing, len(light))]
    keep[heavy] = np.where(crossed, np.clip(left, 0.0, 1.0), 1.0)
    alias[heavy] = heavy[np.minimum(np.arange(len(heavy)) + 1, last)]
    return keep, alias
