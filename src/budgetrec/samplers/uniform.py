"""Every item is as likely as any other."""

import math

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.samplers.contract import Negatives, check_num_items, check_num_negatives, check_targets


def draw_distinct(num_groups: int, num_negatives: int, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw (G, k) distinct numbers per row, row g uniform over the k-subsets of range(sizes[g]).

    Repeats are drawn again until none is left. The rule never looks at the value of a number, only at its
    slot, so every subset is equally likely. While k is at most half of the range, a redraw succeeds at least
    every second time; above that a random permutation of the range is cheap and is used instead.
    """
    largest = int(sizes.max())
    if 2 * num_negatives > int(sizes.min()):
        keys = torch.rand(
            num_groups, largest, generator=generator, device=generator.device, dtype=torch.float64
        )
        beyond = torch.arange(largest, device=keys.device) >= sizes[:, None]
        return keys.masked_fill_(beyond, 2.0).topk(num_negatives, dim=1, largest=False).indices
    shape = (num_groups, num_negatives)
    ids = _uniform_below(sizes[:, None].expand(shape), generator)
    while True:
        ordered, slots = ids.sort(dim=1, stable=True)
        repeated = torch.zeros_like(ids, dtype=torch.bool)
        repeated.scatter_(1, slots[:, 1:], ordered[:, 1:] == ordered[:, :-1])
        if not bool(repeated.any()):
            return ids
        ids[repeated] = _uniform_below(sizes[:, None].expand(shape)[repeated], generator)


def _uniform_below(sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw integers below `sizes`: 62 random bits and a remainder, uniform to within K / 2^62."""
    bits = torch.randint(2**62, sizes.shape, generator=generator, device=generator.device)
    return bits.remainder_(sizes)


def distinct_targets(targets: Tensor, num_items: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each group's distinct targets in order, padded far above K, and how many there are.

    >>> distinct_targets(torch.tensor([[7, 3, 7]]), 10, None)
    (tensor([[ 3,  7, 23]]), tensor([2]))
    """
    targets = check_targets(targets, num_items, mask)
    far = 2 * num_items + targets.shape[1]
    if mask is not None:
        targets = targets.masked_fill(~mask, far)
    ordered = targets.sort(dim=1).values
    ordered[:, 1:] = ordered[:, 1:].masked_fill(ordered[:, 1:] == ordered[:, :-1], far)
    ordered = ordered.sort(dim=1).values
    return ordered, (ordered < far).sum(1)


def step_over(excluded: Tensor, ranks: Tensor) -> Tensor:
    """Turn ranks among the classes that are left into ids: add the excluded classes at or below each.

    >>> step_over(torch.tensor([[3, 7, 23]]), torch.tensor([[2, 3, 5, 6]]))
    tensor([[2, 4, 6, 8]])
    """
    places = torch.arange(excluded.shape[1], device=excluded.device)
    return ranks + torch.searchsorted(excluded - places, ranks, right=True)


class Uniform:
    r"""Draws classes with $q = 1/K$, or from the classes outside the group's targets.

    `replacement=False` gives distinct classes in a group. `exclude_targets=True` leaves the group's own
    targets out, with $q = 1/(K - u)$ for $u$ distinct targets; it is exact for one target a group, while in a
    larger group the other targets' classes are never met as negatives, which biases the corrected loss. The
    default leaves positives in and lets the objective mask them.

    >>> generator = torch.Generator().manual_seed(0)
    >>> negatives = Uniform(1000, 4).draw(torch.tensor([[7, 8], [9, 9]]), generator)
    >>> negatives.ids.shape, round(float(negatives.log_q.exp()), 6)
    (torch.Size([2, 4]), 0.001)
    """

    def __init__(
        self, num_items: int, num_negatives: int, *, replacement: bool = True, exclude_targets: bool = False
    ) -> None:
        self.num_items = check_num_items(num_items)
        self.num_negatives = check_num_negatives(num_negatives)
        self.replacement = replacement
        self.exclude_targets = exclude_targets
        if not replacement and num_negatives >= num_items:
            raise ArgumentError(
                f"num_negatives is {num_negatives} without replacement but there are {num_items} items; draw "
                "fewer than that, or use full_softmax."
            )

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw (G, k) classes for targets of shape (G, T/G)."""
        device, num_groups = targets.device, targets.shape[0]
        if self.exclude_targets:
            excluded, sizes = self._excluded(targets, mask)
        else:
            sizes = torch.full((num_groups,), self.num_items)
        ids = self._draw_below(sizes.to(generator.device), generator).to(device)
        if not self.exclude_targets:
            log_q = torch.full((1, 1), -math.log(self.num_items), device=device)
            return Negatives(ids, log_q, log_q)
        ids = step_over(excluded, ids)
        log_q = -sizes.float().log()[:, None]
        return Negatives(ids, log_q, torch.full((1, 1), -math.inf, device=device))

    def _draw_below(self, sizes: Tensor, generator: torch.Generator) -> Tensor:
        shape = (sizes.shape[0], self.num_negatives)
        if not self.replacement:
            return draw_distinct(*shape, sizes, generator)
        if not self.exclude_targets:
            return torch.randint(self.num_items, shape, generator=generator, device=generator.device)
        return _uniform_below(sizes[:, None].expand(shape), generator)

    def _excluded(self, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        excluded, counts = distinct_targets(targets, self.num_items, mask)
        sizes = self.num_items - counts
        smallest = int(sizes.min())
        if smallest < 1 or (not self.replacement and smallest < self.num_negatives):
            raise ArgumentError(
                f"targets of shape {tuple(targets.shape)} leave {smallest} of {self.num_items} items to draw "
                f"{self.num_negatives} negatives from; draw fewer, or pass exclude_targets=False and let the "
                "loss mask."
            )
        return excluded, sizes
