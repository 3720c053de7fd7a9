"""Negatives taken from the batch's own targets."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.samplers.contract import (
    Negatives,
    check_log_q,
    check_num_items,
    check_num_negatives,
    check_targets,
)
from budgetrec.samplers.uniform import distinct_targets, draw_distinct, step_over

LogQ = Tensor | Callable[[Tensor], Tensor]


class InBatch:
    r"""Uses the targets of the whole batch as negatives: all of them, or `num_negatives` at random a group.

    Targets follow the popularity of items, so `log_q` must be given: log-probabilities of all items, or a
    function of ids such as `StreamingFrequency.log_q`. With `unique=False` each slot follows $q$. With
    `unique=True` an item fills one slot however often it occurs, so an item is there with probability $\pi_j
    = 1 - (1 - q_j)^{P - 1}$ for the $P - 1$ other targets of the batch, and the slot probability is $\pi_j$
    over the number of distinct items. Slots that are left over when the batch has fewer targets than
    `num_negatives` are marked invalid, and of the others a target meets a share of $(P - 1)/P$ as draws: one
    of the $P$ is the target itself.

    What is drawn is how often items are targets, which `count_targets` counts: neither training counts nor
    a power or smoothing of them.

    >>> log_q = torch.tensor([0.5, 0.25, 0.25]).log()
    >>> sampler = InBatch(3, log_q, unique=True)
    >>> sampler.draw(torch.tensor([[2, 0], [2, 2]]), torch.Generator()).ids
    tensor([[0, 2],
            [0, 2]])
    """

    def __init__(
        self, num_items: int, log_q: LogQ, num_negatives: int | None = None, *, unique: bool = False
    ) -> None:
        self.num_items = check_num_items(num_items)
        self.num_negatives = None if num_negatives is None else check_num_negatives(num_negatives)
        self.unique = unique
        self.log_q = log_q_lookup(log_q, num_items)

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw from the valid targets of all groups, for targets of shape (G, T/G)."""
        targets = check_targets(targets, self.num_items, mask)
        pool = targets.flatten() if mask is None else targets[mask]
        num_targets = pool.shape[0]
        if self.unique:
            pool = torch.unique(pool)
        slots, valid = self._slots(targets.shape[0], pool.shape[0], generator)
        ids = pool[slots.to(pool.device)]
        log_q, log_q_targets = self.log_q(ids), self.log_q(targets)
        filled = ids.shape[1] if valid is None else min(pool.shape[0], ids.shape[1])
        num_draws = filled * (num_targets - 1) / num_targets
        if self.unique:
            num_draws = float(filled)  # in the probability of a slot already
            log_q, log_q_targets = (
                _log_inclusion(value, max(1, num_targets - 1)) - math.log(pool.shape[0])
                for value in (log_q, log_q_targets)
            )
        valid = None if valid is None else valid.to(ids.device)
        return Negatives(ids, log_q, log_q_targets, valid, num_draws)

    def _slots(
        self, num_groups: int, pool_size: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        if self.num_negatives is None or self.num_negatives >= pool_size:
            slots = torch.arange(pool_size).expand(num_groups, -1)
            empty = (self.num_negatives or pool_size) - pool_size
            if empty == 0:
                return slots, None
            slots = torch.nn.functional.pad(slots, (0, empty))
            return slots, (torch.arange(slots.shape[1]) < pool_size).expand(num_groups, -1)
        sizes = torch.full((num_groups,), pool_size, device=generator.device)
        return draw_distinct(num_groups, self.num_negatives, sizes, generator), None


class ForcedPositives:
    r"""The set $S$ of the paper: positives forced in, filled up with uniform draws to `num_negatives`.

    Given the batch, its $u$ distinct positives are in $S$ for certain and every other class with probability
    $\frac{k - u}{K - u}$, so the corrected loss weighs the former by 1 and the latter by the inverse of that:
    the partition function is then estimated without bias. All classes of a set are distinct. The positives
    are those of the group, so one group is the paper's batch-wide set.

    >>> sampler = ForcedPositives(100, 4)
    >>> negatives = sampler.draw(torch.tensor([[7, 3, 7]]), torch.Generator().manual_seed(0))
    >>> negatives.ids[0, :2].tolist(), negatives.log_q.exp()[0, 0].item() * 4
    ([3, 7], 1.0)
    """

    def __init__(self, num_items: int, num_negatives: int) -> None:
        self.num_items = check_num_items(num_items)
        self.num_negatives = check_num_negatives(num_negatives)
        if num_negatives >= num_items:
            raise ArgumentError(
                f"num_negatives is {num_negatives} distinct classes but there are {num_items} items; "
                "draw fewer than that, or use full_softmax."
            )

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Force in each group's targets of shape (G, T/G) and fill up with distinct uniform draws."""
        positives, counts = distinct_targets(targets, self.num_items, mask)
        fewest, most = int(counts.min()), int(counts.max())
        if most > self.num_negatives:
            raise ArgumentError(
                f"targets of shape {tuple(targets.shape)} have {most} distinct classes in one group but "
                f"num_negatives is {self.num_negatives}; forced-in positives need at least as many."
            )
        places = torch.arange(self.num_negatives, device=targets.device)
        forced = places < counts[:, None]  # (G, k)
        ids = torch.nn.functional.pad(positives, (0, self.num_negatives))[:, : self.num_negatives]
        if fewest < self.num_negatives:
            sizes = (self.num_items - counts).to(generator.device)
            shape = (targets.shape[0], self.num_negatives - fewest)
            others = step_over(positives, draw_distinct(*shape, sizes, generator).to(targets.device))
            ranks = (places - counts[:, None]).clamp_(min=0)  # a group with more positives needs fewer others
            ids = torch.where(forced, ids, others.gather(1, ranks))
        left = (self.num_negatives - counts) / (self.num_items - counts)
        log_inclusion = left.log()[:, None].masked_fill(forced, 0.0)
        log_q = torch.full((1, 1), -math.log(self.num_negatives), device=targets.device)
        return Negatives(ids, log_inclusion + log_q, log_q)


def log_q_lookup(log_q: LogQ, num_items: int) -> Callable[[Tensor], Tensor]:
    """Turn a proposal, given as a vector or as a function of ids, into a function of ids."""
    if not isinstance(log_q, Tensor):
        return log_q
    vector = check_log_q(log_q, num_items)
    return lambda ids: vector[ids.to(vector.device)].to(ids.device)


def _log_inclusion(log_q: Tensor, num_draws: int) -> Tensor:
    """Return log(1 - (1 - q)^n) without cancellation."""
    return (-torch.expm1(num_draws * torch.log1p(-log_q.double().exp()))).log().to(log_q.dtype)
