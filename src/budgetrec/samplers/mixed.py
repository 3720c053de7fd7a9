"""Half from the batch, half from the whole catalogue."""

import math

import torch
from torch import Tensor

from budgetrec.samplers.contract import Negatives, check_num_items, check_num_negatives, check_targets
from budgetrec.samplers.in_batch import InBatch, LogQ, log_q_lookup


class Mixed:
    r"""Mixed negative sampling: $n$ in-batch slots and $m$ uniform ones (Yang et al., WWW 2020).

    Every slot, whichever half it came from, is weighed by the mixture $q_j = \frac{n}{n + m} q^{\text{pop}}_j
    + \frac{m}{n + m} \frac{1}{K}$. Using the unigram $q^{\text{pop}}$ for both halves is a known slip, and it
    over-weighs rare items without bound.

    >>> log_q = torch.tensor([0.8, 0.2]).log()
    >>> Mixed(2, log_q, num_in_batch=1, num_uniform=1).log_q(torch.arange(2)).exp()
    tensor([0.6500, 0.3500])
    """

    def __init__(self, num_items: int, log_q: LogQ, *, num_in_batch: int, num_uniform: int) -> None:
        self.num_items = check_num_items(num_items)
        self.num_in_batch = check_num_negatives(num_in_batch)
        self.num_uniform = check_num_negatives(num_uniform)
        self.num_negatives = num_in_batch + num_uniform
        self._popularity = log_q_lookup(log_q, num_items)
        self._in_batch = InBatch(num_items, log_q, num_in_batch)

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probability of each id under the mixture."""
        return self._mixture(ids, self.num_in_batch)

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw (G, n + m) classes for targets of shape (G, T/G)."""
        targets = check_targets(targets, self.num_items, mask)
        in_batch = self._in_batch.draw(targets, generator, mask=mask)
        shape = (targets.shape[0], self.num_uniform)
        uniform = torch.randint(self.num_items, shape, generator=generator, device=generator.device)
        ids = torch.cat([in_batch.ids, uniform.to(targets.device)], dim=1)
        valid = None
        if in_batch.valid is not None:
            valid = torch.nn.functional.pad(in_batch.valid, (0, self.num_uniform), value=True)
        # A small batch fills fewer slots, and the mixture leans to uniform.
        drawn = float(in_batch.count_draws())
        log_q, log_q_targets = self._mixture(ids, drawn), self._mixture(targets, drawn)
        return Negatives(ids, log_q, log_q_targets, valid, drawn + self.num_uniform)

    def _mixture(self, ids: Tensor, num_in_batch: float) -> Tensor:
        total = num_in_batch + self.num_uniform
        log_uniform = math.log(self.num_uniform / total / self.num_items)
        uniform = torch.full(ids.shape, log_uniform, device=ids.device)
        if num_in_batch == 0:
            return uniform
        return torch.logaddexp(self._popularity(ids) + math.log(num_in_batch / total), uniform)
