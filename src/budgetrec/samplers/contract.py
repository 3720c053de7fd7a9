"""What every sampler takes and returns: targets in, drawn classes and their log-probabilities out."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError

# Alias tables and the prepared datasets hold item ids in 32 bits.
MAX_ITEMS = 2**31 - 1


@dataclass(frozen=True)
class Negatives:
    r"""Drawn classes: one row of $k$ slots for each of $G$ groups of targets.

    `log_q` is the log-probability that a slot holds the class it holds, so that $k q_j$ is how often class
    $j$ is expected among the $k$ slots. `log_q_targets` is the same probability for each target; a target
    that the sampler never draws has $-\infty$ there. `valid` is False for slots that hold no class at all,
    and None when every slot holds one. `num_draws` is how many of a group's slots are draws from $q$ to each
    of its targets, where that differs from the number of slots that hold a class: among a batch's own targets
    one slot is the target itself, whatever $q$ is.

    Shapes: `ids` (G, k), `log_q` broadcasts to it, `log_q_targets` broadcasts to (G, T/G), `valid` is (G, k).

    >>> log_q = torch.full((1, 1), 0.2).log()  # uniform over five classes
    >>> Negatives(torch.tensor([[3, 1, 3]]), log_q, log_q).num_negatives
    3
    """

    ids: Tensor
    log_q: Tensor
    log_q_targets: Tensor
    valid: Tensor | None = None
    num_draws: float | None = None

    def __post_init__(self) -> None:
        if self.ids.dim() != 2 or self.ids.dtype != torch.int64 or self.ids.shape[1] == 0:
            raise ArgumentError(
                f"negative ids have shape {tuple(self.ids.shape)} and type {self.ids.dtype}; "
                "pass int64 of shape (groups, negatives) with at least one negative."
            )
        for name, value in (("log_q", self.log_q), ("log_q_targets", self.log_q_targets)):
            if value.dim() != 2 or value.shape[0] not in (1, self.ids.shape[0]):
                raise ArgumentError(
                    f"{name} has shape {tuple(value.shape)} for ids of shape {tuple(self.ids.shape)}; "
                    "pass two axes, the first of size 1 or the number of groups."
                )
        if self.log_q.shape[1] not in (1, self.ids.shape[1]):
            raise ArgumentError(
                f"log_q has shape {tuple(self.log_q.shape)} and does not broadcast to ids of shape "
                f"{tuple(self.ids.shape)}; its last axis is 1 or the number of negatives."
            )
        if self.valid is not None and (self.valid.shape != self.ids.shape or self.valid.dtype != torch.bool):
            raise ArgumentError(
                f"valid has shape {tuple(self.valid.shape)} and type {self.valid.dtype} for ids of shape "
                f"{tuple(self.ids.shape)}; pass booleans of the same shape."
            )

    @property
    def num_groups(self) -> int:
        """Groups of targets that have their own draws, $G$."""
        return self.ids.shape[0]

    @property
    def num_negatives(self) -> int:
        """Slots in a group, $k$."""
        return self.ids.shape[1]

    def count_draws(self) -> Tensor:
        """Count the draws from q that each target of a group meets, hits included, (G or 1, 1).

        >>> log_q, three = torch.full((1, 1), 0.5).log(), torch.tensor([[True, True, True, False]])
        >>> Negatives(torch.tensor([[0, 1, 1, 0]]), log_q, log_q, three).count_draws()
        tensor([[3.]], dtype=torch.float64)
        """
        if self.num_draws is None and self.valid is not None:
            return self.valid.sum(1, keepdim=True, dtype=torch.float64)
        count = self.num_negatives if self.num_draws is None else self.num_draws
        return torch.full((1, 1), count, dtype=torch.float64, device=self.ids.device)

    def part(self, groups: slice, targets: slice) -> "Negatives":
        """Take some of the groups, and some of the targets of each."""
        log_q, log_q_targets = self.log_q, self.log_q_targets
        if log_q_targets.shape[1] > 1:
            log_q_targets = log_q_targets[:, targets]
        return Negatives(
            self.ids[groups],
            log_q if log_q.shape[0] == 1 else log_q[groups],
            log_q_targets if log_q_targets.shape[0] == 1 else log_q_targets[groups],
            None if self.valid is None else self.valid[groups],
            self.num_draws,
        )


class _Sized(Protocol):
    @property
    def num_items(self) -> int:
        """Catalogue size, $K$."""

    @property
    def num_negatives(self) -> int | None:
        """Slots per group, $k$; None if as many as the batch has targets."""


class Sampler(_Sized, Protocol):
    """Draws one row of negatives for each group of targets."""

    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        """Draw for `targets` of shape (G, T/G); `mask` is True where a target is real.

        The ids returned share no memory: not even the rows of groups that meet the same items.
        """


class AdaptiveSampler(_Sized, Protocol):
    """Looks at the hidden states before it draws."""

    def given(self, hidden: Tensor, mask: Tensor | None = None) -> Sampler:
        """Fix the queries, (G, T/G, d), that the next draw serves."""


def check_num_items(num_items: int) -> int:
    """Refuse catalogues that 32-bit item ids cannot name."""
    if not 2 <= num_items <= MAX_ITEMS:
        raise ArgumentError(
            f"num_items is {num_items}; item ids are 32-bit, so pass between 2 and {MAX_ITEMS} items "
            "(shard a larger catalogue)."
        )
    return num_items


def check_num_negatives(num_negatives: int) -> int:
    """Refuse to draw nothing."""
    if num_negatives < 1:
        raise ArgumentError(f"num_negatives is {num_negatives}; draw at least 1.")
    return num_negatives


def check_targets(targets: Tensor, num_items: int, mask: Tensor | None = None) -> Tensor:
    """Check shape, type and range, and return targets whose masked entries are a harmless 0.

    >>> check_targets(torch.tensor([[4, -100]]), 5, torch.tensor([[True, False]]))
    tensor([[4, 0]])
    """
    if targets.dim() != 2 or targets.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(
            f"targets have shape {tuple(targets.shape)} and type {targets.dtype}; "
            "pass integers of shape (groups, targets in the group)."
        )
    targets = targets.long()
    if mask is not None:
        if mask.shape != targets.shape or mask.dtype != torch.bool:
            raise ArgumentError(
                f"mask has shape {tuple(mask.shape)} and type {mask.dtype} for targets of shape "
                f"{tuple(targets.shape)}; pass booleans of the same shape, True where a target is real."
            )
        if not bool(mask.any()):
            raise ArgumentError(
                f"the mask of shape {tuple(mask.shape)} leaves no target; drop such batches before the loss."
            )
        targets = targets.masked_fill(~mask, 0)
    if targets.numel() == 0:
        raise ArgumentError(f"targets of shape {tuple(targets.shape)} hold no target; pass at least one.")
    low, high = (int(bound) for bound in torch.aminmax(targets))
    if low < 0 or high >= num_items:
        raise ArgumentError(
            f"targets of shape {tuple(targets.shape)} run from {low} to {high} but there are {num_items} "
            "items; ids go from 0 to one below that, and padding belongs under the mask."
        )
    return targets


def check_log_q(log_q: Tensor, num_items: int | None = None) -> Tensor:
    """Check a proposal over the whole catalogue: one axis, every class possible, sums to one."""
    if log_q.dim() != 1 or not log_q.is_floating_point() or log_q.shape[0] != (num_items or log_q.shape[0]):
        wanted = "(items,)" if num_items is None else f"({num_items},)"
        raise ArgumentError(
            f"log_q has shape {tuple(log_q.shape)} and type {log_q.dtype}; pass one log-probability per item,"
            f" {wanted}."
        )
    impossible = int(log_q.isneginf().sum())
    if impossible:
        first = int(log_q.isneginf().nonzero()[0])
        raise ArgumentError(
            f"q is zero for {impossible} of {log_q.shape[0]} items (the first is item {first}), which no "
            "draw can stand for; smooth the counts or leave those items out."
        )
    total = float(log_q.double().logsumexp(0).exp())
    if not abs(total - 1) < 1e-3:
        raise ArgumentError(
            f"q of shape {tuple(log_q.shape)} sums to {total:.6g}; pass log-probabilities that sum to 1."
        )
    return log_q


AnySampler = Sampler | AdaptiveSampler


class LastingSampler(Protocol):
    """A sampler that changes while a model trains, so that a checkpoint must keep what it is."""

    refresh_steps: int  # it takes in the item table this often

    def refresh(self, table: Tensor) -> None:
        """Adopt the item vectors (K, d) as they are now."""

    def state(self) -> dict[str, Tensor]:
        """Return what the next draws depend on."""

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
