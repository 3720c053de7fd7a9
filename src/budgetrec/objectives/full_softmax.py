r"""Exact softmax cross-entropy over the whole catalogue, $-s_p + \log \sum_{j=1}^{K} e^{s_j}$.

Materialised it takes $T K$ logits, and as many again for the gradient. Lean, memory does not grow with $T K$:
torch's `linear_cross_entropy` works in blocks of targets, each against all items, which is fine while a block
of 64 MiB holds enough targets for fast products; for larger catalogues both targets and items are cut here,
with a running log-sum-exp in the forward pass and the logits computed again in the backward pass (as in cut
cross-entropy, Wijmans et al. 2024).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import LinearCrossEntropyOptions, functional

from budgetrec.objectives.blocks import TILE_TARGETS, in_tiles
from budgetrec.objectives.blocks import tile_items as tile_items_of
from budgetrec.objectives.checks import check_finite, check_inputs, check_options, real_ones
from budgetrec.objectives.specification import TABLE_BLOCK_BYTES

Floats = NDArray[np.float64]


def full_softmax(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    cosine: bool = False,
    lean: bool = False,
    block_bytes: int = TABLE_BLOCK_BYTES,
) -> Tensor:
    """Average the exact loss over the targets; hidden (G, T/G, d), targets and mask (G, T/G), table (K, d).

    Lean, about `block_bytes` of logits exist at a time.

    >>> full_softmax(torch.zeros(1, 1, 2), torch.tensor([[0]]), torch.eye(2))  # log 2
    tensor(0.6931)
    """
    check_options(temperature)
    hidden, targets = check_inputs(hidden, targets, table, mask)
    states, wanted = real_ones(hidden, targets, mask)
    kind = hidden.device.type
    product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else table.dtype
    with torch.autocast(kind, enabled=False):
        vectors = table
        if cosine:
            states, vectors = functional.normalize(states, dim=-1), functional.normalize(vectors, dim=-1)
        states, vectors = (states / temperature).to(product), vectors.to(product)
        if not lean:
            logits = states @ vectors.T
            loss = functional.cross_entropy(logits.to(torch.promote_types(product, torch.float32)), wanted)
        else:
            loss = _lean(states, vectors, wanted, block_bytes)
    return check_finite(loss, hidden, table)


def _lean(states: Tensor, vectors: Tensor, wanted: Tensor, block_bytes: int) -> Tensor:
    num_items, element_size = vectors.shape[0], vectors.element_size()
    if in_tiles(num_items, element_size, block_bytes) or vectors.dtype not in (torch.float32, torch.float64):
        return full_softmax_in_tiles(states, vectors, wanted, tile_items=tile_items_of(block_bytes))
    block = min(block_bytes // (num_items * element_size), states.shape[0])
    options = LinearCrossEntropyOptions(batch_chunk_size=block, allow_retain_graph=True)
    return functional.linear_cross_entropy(states, vectors, wanted, options=options)


def full_softmax_in_tiles(
    states: Tensor, vectors: Tensor, wanted: Tensor, *, tile_items: int | None = None
) -> Tensor:
    """Average over states (T, d) against vectors (K, d), a tile of targets and items at a time."""
    tile_items = tile_items or tile_items_of(TABLE_BLOCK_BYTES)
    loss: Tensor = _Tiles.apply(states, vectors, wanted, tile_items)  # type: ignore[no-untyped-call]
    return loss


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, vectors: Tensor, wanted: Tensor, tile_items: int) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        log_sums = states.new_full(wanted.shape, -torch.inf, dtype=wide)
        for start in range(0, len(wanted), TILE_TARGETS):
            rows = slice(start, start + TILE_TARGETS)
            for items in range(0, len(vectors), tile_items):
                logits = (states[rows] @ vectors[items : items + tile_items].T).to(wide)
                log_sums[rows] = torch.logaddexp(log_sums[rows], logits.logsumexp(1))
        ctx.save_for_backward(states, vectors, wanted, log_sums)
        ctx.tile_items = tile_items
        own = (states.to(wide) * vectors[wanted]).sum(1)
        return (log_sums - own).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        states, vectors, wanted, log_sums = ctx.saved_tensors
        wide, tile_items, scale = log_sums.dtype, ctx.tile_items, grad_output / len(wanted)
        of_states = torch.zeros_like(states, dtype=wide)
        of_vectors = torch.zeros_like(vectors, dtype=wide)
        for start in range(0, len(wanted), TILE_TARGETS):
            rows = slice(start, start + TILE_TARGETS)
            for first in range(0, len(vectors), tile_items):
                items = slice(first, first + tile_items)
                logits = (states[rows] @ vectors[items].T).to(wide)
                shares = logits.sub_(log_sums[rows, None]).exp_().to(states.dtype)
                of_states[rows] += shares @ vectors[items]
                of_vectors[items] += shares.T @ states[rows]
        of_states -= vectors[wanted]
        of_vectors.index_add_(0, wanted, states.to(wide), alpha=-1)
        return (of_states * scale).to(states.dtype), (of_vectors * scale).to(vectors.dtype), None, None
