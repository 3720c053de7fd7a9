"""Scores of targets against their positive and their group's negatives: all at once, or lean.

Every sampled objective is a function of the same scores, a `RowLoss`. This module makes the scores and sums
the losses, so that an objective is only its formula, and lean mode is written once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from budgetrec.objectives.blocks import block_steps
from budgetrec.objectives.checks import Table, check_finite, check_inputs, check_options
from budgetrec.objectives.specification import BLOCK_BYTES
from budgetrec.samplers.contract import Negatives


@dataclass(frozen=True)
class Scores:
    """What a row loss sees: scores, and which negatives are the target's own positive or no item at all.

    Scores are float32 or wider whatever the matrices were multiplied in. `negatives` holds -inf where
    `dropped`.
    """

    positive: Tensor  # (G, m)
    negatives: Tensor  # (G, m, k)
    dropped: Tensor  # (G, m, k), True where the slot does not count
    log_q: Tensor  # (G or 1, 1, k or 1)
    log_q_targets: Tensor  # (G or 1, m or 1)
    num_draws: Tensor  # (G or 1, 1), draws from q that a target meets: hits count, empty slots do not

    def num_kept(self) -> Tensor:
        """How many negatives count for each target, k - hits, (G, m).

        Hits are rare and summing booleans is slow, so only rows that have one are summed.
        """
        counts = torch.full_like(self.positive, self.negatives.shape[2], requires_grad=False)
        rows = self.dropped.any(-1)
        counts[rows] -= self.dropped[rows].sum(-1).to(counts.dtype)
        return counts


RowLoss = Callable[[Scores], Tensor]


@dataclass(frozen=True)
class Scoring:
    r"""How scores are made of vectors: $\langle h, w \rangle / \tau$, of unit vectors when `cosine`."""

    temperature: float = 1.0
    cosine: bool = False


def mean_loss(
    row_loss: RowLoss,
    hidden: Tensor,
    targets: Tensor,
    table: Table,
    negatives: Negatives,
    mask: Tensor | None,
    *,
    options: Scoring,
    lean: bool,
    sparse_grad: bool,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Average `row_loss` over the targets under the mask; lean, a block takes about `block_bytes`."""
    check_options(options.temperature)
    hidden, targets = check_inputs(hidden, targets, table, mask, negatives)
    weights = _weights(targets, mask, hidden)
    dtype = _autocast_dtype(hidden)
    if lean:
        rows, targets, ids = _gather(table, targets, negatives.ids, compact=True, sparse_grad=sparse_grad)
        parts = _Parts(row_loss, options, dtype, ids, negatives, block_bytes)
        loss: Tensor = _LeanSum.apply(hidden, rows, targets, weights, parts)  # type: ignore[no-untyped-call]
    else:
        parts = _Parts(row_loss, options, dtype, negatives.ids, negatives)
        vectors = _gather_both(table, targets, negatives.ids, sparse_grad=sparse_grad)
        losses = parts.losses(hidden, *vectors, targets, slice(None), slice(None))
        loss = (losses * weights).sum()
    return check_finite(loss, hidden, table)


def _weights(targets: Tensor, mask: Tensor | None, hidden: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    if mask is None:
        return torch.full(targets.shape, 1 / targets.numel(), dtype=dtype, device=targets.device)
    return mask.to(dtype) / mask.sum()


def _gather(
    table: Table, targets: Tensor, ids: Tensor, *, compact: bool, sparse_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix of vectors, and the places in it of the targets and negatives.

    Usually the table and the ids themselves. When the table is a function, when the gradient is to be
    row-sparse, or when lean mode would hold a whole table of gradients for a few rows, it is the distinct
    rows of this step.
    """
    if isinstance(table, Tensor) and not sparse_grad:
        few = 2 * (ids.numel() + targets.numel()) < table.shape[0]
        if not (compact and few):
            return table, targets, ids
    distinct, places = torch.unique(torch.cat([targets.flatten(), ids.flatten()]), return_inverse=True)
    rows = (
        functional.embedding(distinct, table, sparse=sparse_grad)
        if isinstance(table, Tensor)
        else table(distinct)
    )
    target_places, id_places = torch.split(places, [targets.numel(), ids.numel()])
    return rows, target_places.view_as(targets), id_places.view_as(ids)


def _gather_both(table: Table, targets: Tensor, ids: Tensor, *, sparse_grad: bool) -> tuple[Tensor, Tensor]:
    """Gather the positives (G, m, d) and the negatives (G, k, d).

    A function is asked only for these. With torch's gradients, each gather from a table gives one of the size
    of the table, and splitting one gather copies its gradient: take the cheaper.
    """
    if not isinstance(table, Tensor):
        return table(targets), table(ids)
    if sparse_grad:
        rows, targets, ids = _gather(table, targets, ids, compact=True, sparse_grad=True)
        return functional.embedding(targets, rows), functional.embedding(ids, rows)
    if targets.numel() + ids.numel() >= table.shape[0]:
        return functional.embedding(targets, table), functional.embedding(ids, table)
    both = functional.embedding(torch.cat([targets.flatten(), ids.flatten()]), table)
    own, drawn = torch.split(both, [targets.numel(), ids.numel()])
    return own.view(*targets.shape, -1), drawn.view(*ids.shape, -1)


def _autocast_dtype(hidden: Tensor) -> torch.dtype | None:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@dataclass(frozen=True)
class _Parts:
    """What the losses of any block of groups and targets need besides vectors."""

    row_loss: RowLoss
    options: Scoring
    product_dtype: torch.dtype | None
    ids: Tensor
    negatives: Negatives
    block_bytes: int = BLOCK_BYTES

    def losses(
        self,
        hidden: Tensor,
        positives: Tensor,
        others: Tensor,
        targets: Tensor,
        groups: slice,
        columns: slice,
    ) -> Tensor:
        """Losses (g, m) of hidden (g, m, d) against positives (g, m, d) and negatives (g, k, d)."""
        drawn = self.negatives.part(groups, columns)
        dropped = self.ids[groups, None] == targets[..., None]
        if drawn.valid is not None:
            dropped |= ~drawn.valid[:, None]
        with torch.autocast(hidden.device.type, enabled=False):
            positive, scores = self._score(hidden, positives, others)
            scores = scores.masked_fill_(dropped, -torch.inf)
            log_q, log_q_targets, num_draws = (
                each.to(scores.dtype)
                for each in (drawn.log_q[:, None], drawn.log_q_targets, drawn.count_draws())
            )
            losses = self.row_loss(Scores(positive, scores, dropped, log_q, log_q_targets, num_draws))
            # A negative whose logit is -inf vanishes from the loss and spoils the gradient; this brings it
            # back.
            return losses + 0 * others.detach().sum(dtype=losses.dtype)

    def _score(self, hidden: Tensor, positives: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        if self.options.cosine:
            hidden, positives, others = (functional.normalize(x, dim=-1) for x in (hidden, positives, others))
        if self.options.temperature != 1.0:
            hidden = hidden / self.options.temperature
        common = torch.promote_types(hidden.dtype, others.dtype)
        product = self.product_dtype or common
        hidden, positives, others = (x.to(product) for x in (hidden, positives, others))
        positive = (hidden * positives).sum(-1, dtype=torch.promote_types(product, torch.float32))
        scores: Tensor = _Products.apply(hidden, others)  # type: ignore[no-untyped-call]  # (g, m, k)
        return positive, scores.to(torch.promote_types(product, torch.float32))


class _LeanSum(torch.autograd.Function):
    r"""The weighted sum of losses, block by block, with the gradient taken while a block's logits exist.

    The loss is a scalar, so its gradient is `grad_output` times numbers that are known in the forward pass.
    Computing them there costs no second matrix product, where recomputing the logits in the backward pass
    would; what is kept is one gradient for hidden, (T, d), and one for the rows, and never more than a block
    of logits.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, parts: _Parts
    ) -> Tensor:
        total = weights.new_zeros(())
        with_grad = any(ctx.needs_input_grad[:2])
        hidden_grad = torch.empty_like(hidden) if with_grad else None
        rows_grad = torch.zeros_like(rows) if with_grad else None
        for groups, columns_list in _blocks(
            hidden.shape, parts.ids.shape[1], hidden.element_size(), parts.block_bytes
        ):
            ids = parts.ids[groups]
            others = functional.embedding(ids, rows).requires_grad_(with_grad)
            others_grad: Tensor | None = None
            for columns in columns_list:
                block = hidden[groups, columns].detach().requires_grad_(with_grad)
                own = targets[groups, columns]
                positives = functional.embedding(own, rows).requires_grad_(with_grad)
                with torch.set_grad_enabled(with_grad):
                    losses = parts.losses(block, positives, others, own, groups, columns)
                    loss = (losses * weights[groups, columns]).sum()
                total += loss.detach()
                if hidden_grad is None or rows_grad is None:
                    continue
                of_hidden, of_positives, of_others = torch.autograd.grad(loss, (block, positives, others))
                hidden_grad[groups, columns] = of_hidden
                rows_grad.index_add_(0, own.flatten(), of_positives.flatten(0, 1))
                others_grad = of_others if others_grad is None else others_grad.add_(of_others)
            if others_grad is not None and rows_grad is not None:
                rows_grad.index_add_(0, ids.flatten(), others_grad.flatten(0, 1))
        if with_grad:
            ctx.save_for_backward(hidden_grad, rows_grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, rows_grad = ctx.saved_tensors
        wanted = (hidden_grad, rows_grad)
        first, second = (
            (grad * grad_output).to(grad.dtype) if needed else None
            for grad, needed in zip(wanted, ctx.needs_input_grad[:2], strict=True)
        )
        return first, second, None, None, None


def _blocks(
    hidden_shape: torch.Size, num_negatives: int, element_size: int, block_bytes: int
) -> list[tuple[slice, list[slice]]]:
    """Cut groups, and a group's targets where it is too large, so that a block stays below `block_bytes`."""
    num_groups, size, dim = hidden_shape
    group_step, column_step = (
        int(step) for step in block_steps(size, dim, num_negatives, element_size, block_bytes)
    )
    columns = [slice(start, start + column_step) for start in range(0, size, column_step)]
    return [(slice(start, start + group_step), columns) for start in range(0, num_groups, group_step)]


def log_sum_exp(scores: Tensor, kept: Tensor) -> Tensor:
    """Sum over the last axis where -inf counts as nothing; a row of nothing gives -inf and no gradient.

    `torch.logsumexp` gives NaN as the gradient of such a row, and takes twice the memory. `scores` is
    overwritten. `kept` is how many entries each row has.
    """
    sums: Tensor = _LogSumExp.apply(scores, kept == 0)  # type: ignore[no-untyped-call]
    return sums


class _Products(torch.autograd.Function):
    """Batched products (g, m, d) x (g, k, d) -> (g, m, k), whose gradients come out contiguous."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left @ right.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return grad @ right, grad.transpose(1, 2) @ left


class _LogSumExp(torch.autograd.Function):
    """Log-sum-exp in place: exponentials take the place of the scores, as the gradient needs only them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, empty: Tensor) -> Tensor:
        largest = scores.amax(-1, keepdim=True).masked_fill_(empty[..., None], 0.0)
        shares = scores.detach().sub_(largest).exp_()
        sums = shares.sum(-1)
        ctx.save_for_backward(shares, sums)
        return sums.log().add_(largest.squeeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares, sums = ctx.saved_tensors
        factor = torch.where(sums > 0, grad / sums, 0.0)
        return shares * factor[..., None], None
