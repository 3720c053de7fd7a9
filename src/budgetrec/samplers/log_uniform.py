"""Zipf-like draws for catalogues whose ids are sorted from frequent to rare."""

import math

import torch
from torch import Tensor

from budgetrec.samplers.contract import Negatives, check_num_items, check_num_negatives, check_targets


class LogUniform:
    r"""Draws class $i$ with $q_i = \log\frac{i + 2}{i + 1} / \log(K + 1)$, with replacement.

    Right only when ids descend in frequency: id 0 is the most frequent item. No table is needed. Repeats
    stay: a list made unique and cut to length, as some libraries do, keeps the lowest ids and no longer
    follows $q$.

    >>> sampler = LogUniform(3, 2)
    >>> sampler.log_q(torch.arange(3)).exp().sum().item()
    1.0
    """

    def __init__(self, num_items: int, num_negatives: int) -> None:
        self.num_items = check_num_items(num_items)
        self.num_negatives = check_num_negatives(num_negatives)

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probability of each id."""
        ids = ids.double()
        return (torch.log1p(1 / (ids + 1)).log() - math.log(math.log(self.num_items + 1))).float()

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw (G, k) classes for targets of shape (G, T/G)."""
        targets = check_targets(targets, self.num_items, mask)
        shape = (targets.shape[0], self.num_negatives)
        shares = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        # u = log(x) / log(K + 1) is uniform on [0, 1), so class floor(x) - 1 has the mass of [i + 1, i + 2).
        ids = shares.mul_(math.log(self.num_items + 1)).exp_().long().sub_(1).clamp_(0, self.num_items - 1)
        ids = ids.to(targets.device)
        return Negatives(ids, self.log_q(ids), self.log_q(targets))
