"""Items are drawn by a power of how often they occur."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.samplers.alias import AliasTable
from budgetrec.samplers.contract import Negatives, check_num_items, check_num_negatives, check_targets


class Popularity:
    r"""Draws class $i$ with $q_i \propto c_i^\alpha$ for counts $c$, with replacement.

    `alpha` 1 is the unigram distribution, 0.75 the one of word2vec, 0 the uniform one. `smoothing` is added
    to every count; without it a count of zero is refused, as an item that is never drawn cannot be corrected
    for.

    >>> counts = torch.tensor([1, 1, 2])
    >>> sampler = Popularity(counts, 5, alpha=1.0)
    >>> sampler.log_q.exp().tolist()
    [0.25, 0.25, 0.5]
    """

    def __init__(
        self,
        counts: Tensor | NDArray[np.int64],
        num_negatives: int,
        *,
        alpha: float = 1.0,
        smoothing: float = 0.0,
    ) -> None:
        if counts.ndim != 1:
            raise ArgumentError(f"counts have shape {tuple(counts.shape)}; pass one per item, (items,).")
        self.num_items = check_num_items(counts.shape[0])
        self.num_negatives = check_num_negatives(num_negatives)
        counts = counts.detach().cpu().numpy() if isinstance(counts, Tensor) else counts
        weights = counts.astype(np.float64)
        weights += smoothing
        if not (weights.min() > 0 and weights.sum() < np.inf):
            wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
            raise ArgumentError(
                f"q is zero or undefined for {len(wrong)} of {self.num_items} items (the first is item "
                f"{wrong[0]} with count {float(counts[int(wrong[0])]):g}); pass smoothing=1, or leave those "
                "items out."
            )
        if alpha != 1.0:
            np.power(weights, alpha, out=weights)
        self._table = AliasTable(weights)
        weights /= weights.sum()
        self.log_q = torch.from_numpy(np.log(weights, out=weights).astype(np.float32))

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw (G, k) classes for targets of shape (G, T/G)."""
        targets = check_targets(targets, self.num_items, mask)
        ids = self._table.draw((targets.shape[0], self.num_negatives), generator)
        log_q, log_q_targets = self.log_q[ids], self.log_q[targets.to(self.log_q.device)]
        return Negatives(ids.to(targets.device), log_q.to(targets.device), log_q_targets.to(targets.device))

    @property
    def num_bytes(self) -> int:
        """Memory of the alias table and of log q."""
        return self._table.num_bytes + self.log_q.nbytes
