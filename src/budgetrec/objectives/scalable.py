r"""Scalable cross-entropy (SCE; Mezentsev et al., RecSys 2024): exact logits where they matter.

Random directions define buckets. Each takes the hidden states and the items that point its way most, and
cross-entropy is computed inside the bucket: its items, the target's own class masked, and the target's own
positive. A state that is in several buckets counts with the largest of its losses; states in no bucket do not
count.

Which rows and items meet is chosen without a gradient; the losses have one to both hidden states and item
vectors.
"""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from budgetrec.errors import ArgumentError
from budgetrec.objectives.checks import check_finite, check_inputs, real_ones

BLOCK_BYTES = 16 * 2**20


def scalable_cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    mask: Tensor | None = None,
    *,
    generator: torch.Generator,
    num_buckets: int,
    bucket_targets: int,
    bucket_items: int,
    mix: bool = False,
    lean: bool = False,
) -> Tensor:
    """Average SCE over the states that a bucket covers; hidden (G, T/G, d), targets and mask (G, T/G).

    `mix` makes directions as random mixtures of the hidden states, so that buckets lie where states are.
    `lean` computes a few buckets at a time and once more in the backward pass.
    """
    hidden, targets = check_inputs(hidden, targets, table, mask)
    states, wanted = real_ones(hidden, targets, mask)
    rows, items = choose_buckets(
        states,
        table,
        generator=generator,
        num_buckets=num_buckets,
        bucket_targets=bucket_targets,
        bucket_items=bucket_items,
        mix=mix,
    )
    positive = (states * table[wanted]).sum(-1)  # (T,)
    size = 4 * rows.shape[1] * items.shape[1]
    step = max(1, BLOCK_BYTES // size) if lean else len(rows)
    # Gathered once: a gather in every block would give a gradient of the size of the table in every block.
    near_states, near_vectors = states[rows], functional.embedding(items, table)
    losses = []
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        own = items[some, None] == wanted[rows[some]][..., None]
        parts = (near_states[some], near_vectors[some], positive[rows[some]], own)
        one = checkpoint(_bucket_losses, *parts, use_reentrant=False) if lean else _bucket_losses(*parts)
        losses.append(one)
    worst = positive.new_zeros(positive.shape).scatter_reduce(
        0, rows.flatten(), torch.cat(losses).flatten(), "amax", include_self=False
    )
    covered = torch.zeros_like(wanted, dtype=torch.bool)
    covered[rows.flatten()] = True
    return check_finite(worst[covered].mean(), hidden, table)


@torch.no_grad()
def choose_buckets(
    states: Tensor,
    table: Tensor,
    *,
    generator: torch.Generator,
    num_buckets: int,
    bucket_targets: int,
    bucket_items: int,
    mix: bool,
) -> tuple[Tensor, Tensor]:
    """Return the states (buckets, bucket_targets) and the items (buckets, bucket_items) of each bucket."""
    if not (num_buckets > 0 and bucket_targets > 0 and 1 < bucket_items <= table.shape[0]):
        raise ArgumentError(
            f"num_buckets is {num_buckets}, bucket_targets {bucket_targets} and bucket_items {bucket_items} "
            f"for a table of shape {tuple(table.shape)}; pass positive numbers, and from 2 items to the "
            "whole table."
        )
    length, dim = len(states) if mix else num_buckets, states.shape[1]
    shape = (num_buckets, length) if mix else (num_buckets, dim)
    noise = torch.randn(shape, generator=generator, device=generator.device).to(states) / dim**0.25
    directions = noise @ states if mix else noise
    step = max(1, BLOCK_BYTES // (4 * max(len(states), len(table))))
    rows, items = [], []
    for some in torch.split(directions, step):
        rows.append((some @ states.T).topk(min(bucket_targets, len(states)), dim=1).indices)
        items.append((some @ table.to(states.dtype).T).topk(bucket_items, dim=1).indices)
    return torch.cat(rows), torch.cat(items)


def _bucket_losses(states: Tensor, vectors: Tensor, positive: Tensor, own: Tensor) -> Tensor:
    """Return the losses (buckets, rows) of states (buckets, rows, d) against vectors (buckets, items, d)."""
    scores = (states @ vectors.transpose(1, 2)).to(torch.promote_types(states.dtype, torch.float32))
    scores = scores.masked_fill(own, -torch.inf)
    # At least two distinct items, of which at most one is the target's own: no row is empty.
    return torch.logaddexp(positive, scores.logsumexp(-1)) - positive
