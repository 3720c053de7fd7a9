"""Shapes, ranges and finite numbers, checked once at the start of every objective."""

from collections.abc import Callable

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError, NotFiniteError
from budgetrec.samplers.contract import MAX_ITEMS, Negatives, check_targets

# The item table itself, or a function from ids to vectors such as a model's `item_vectors`.
Table = Tensor | Callable[[Tensor], Tensor]


def check_inputs(
    hidden: Tensor, targets: Tensor, table: Table, mask: Tensor | None, negatives: Negatives | None = None
) -> tuple[Tensor, Tensor]:
    """Check that the parts fit, and return hidden and targets with masked places set to zero.

    A masked place may hold anything, NaN included: it is overwritten, so it reaches neither loss nor
    gradient.
    """
    if hidden.dim() != 3 or hidden.shape[:2] != targets.shape:
        raise ArgumentError(
            f"hidden has shape {tuple(hidden.shape)} and targets {tuple(targets.shape)}; "
            "pass (groups, targets in the group, dim) and (groups, targets in the group)."
        )
    num_items = MAX_ITEMS
    if isinstance(table, Tensor):
        if table.dim() != 2 or table.shape[1] != hidden.shape[2]:
            raise ArgumentError(
                f"the table has shape {tuple(table.shape)} and hidden {tuple(hidden.shape)}; "
                "pass one vector per item, (items, dim), of the width of hidden."
            )
        num_items = table.shape[0]
    targets = check_targets(targets, num_items, mask)
    if negatives is not None:
        if negatives.num_groups != targets.shape[0] or negatives.log_q_targets.shape[1] not in (
            1,
            targets.shape[1],
        ):
            raise ArgumentError(
                f"negatives of shape {tuple(negatives.ids.shape)} with log_q_targets of shape "
                f"{tuple(negatives.log_q_targets.shape)} do not fit targets of shape {tuple(targets.shape)}; "
                "draw them for these targets."
            )
        low, high = (int(bound) for bound in torch.aminmax(negatives.ids))
        if low < 0 or high >= num_items:
            raise ArgumentError(
                f"negatives of shape {tuple(negatives.ids.shape)} run from {low} to {high} but the table has "
                f"{num_items} items; use a sampler made for this catalogue."
            )
    if mask is not None:
        hidden = hidden.masked_fill(~mask[..., None], 0.0)
    return hidden, targets


def real_ones(hidden: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the states (T, d) and the targets (T,) under the mask, groups forgotten."""
    if mask is None:
        return hidden.flatten(0, 1), targets.flatten()
    return hidden[mask], targets[mask]


def check_options(temperature: float) -> None:
    """Refuse a temperature that flips the sign of logits or makes them infinite."""
    if not temperature > 0:
        raise ArgumentError(
            f"temperature is {temperature}; logits are divided by it, so pass a positive number."
        )


def check_finite(loss: Tensor, hidden: Tensor, table: Table) -> Tensor:
    """Refuse a loss that is NaN or infinite, and say where that came from.

    Finite hidden states and vectors give a finite loss unless a logit overflows, so one look at the loss is
    enough in the common case; the search for the cause runs only after a failure.
    """
    if bool(loss.detach().isfinite()):
        return loss
    wrong_hidden = int((~hidden.isfinite()).sum())
    seen = f"{wrong_hidden} of the numbers in hidden of shape {tuple(hidden.shape)} are NaN or infinite"
    if isinstance(table, Tensor):
        wrong_table = int((~table.isfinite()).sum())
        seen += f" and {wrong_table} of those in the table of shape {tuple(table.shape)}"
    raise NotFiniteError(
        f"logits are NaN or infinite (the loss is {loss.item()}): {seen}; lower the learning rate, clip "
        "gradients or normalise."
    )
