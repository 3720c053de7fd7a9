r"""Reduced cross-entropy (RECE; Gusak et al., CIKM 2024): each state meets the items that hash near it.

In each round random anchors order the states and the items (by the anchor they point to most); both orders
are cut into the same number of chunks, and a chunk of states meets its chunk of items and the neighbouring
ones. Rounds are joined: an item that a state meets in $c$ rounds has $\log c$ taken off its score each time,
so that it counts once. The target's own class is masked and its positive added.

Whether a state meets an item in a round is a comparison of two chunk numbers, so the counts need no sorting.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from budgetrec.errors import ArgumentError
from budgetrec.objectives.checks import check_finite, check_inputs, real_ones

BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Rounds:
    """Which chunk every state and item is in, one row per round."""

    of_states: Tensor  # (rounds, T)
    of_items: Tensor  # (rounds, K)
    num_chunks: int
    num_neighbors: int


def reduced_cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    mask: Tensor | None = None,
    *,
    generator: torch.Generator,
    num_chunks: int,
    num_neighbors: int = 1,
    num_rounds: int = 1,
    num_anchors: int | None = None,
    lean: bool = False,
) -> Tensor:
    """Average RECE over the targets; hidden (G, T/G, d), targets and mask (G, T/G), table (K, d).

    `num_anchors` is the number of random directions of a round, `num_chunks` unless given. `lean` computes a
    few chunks at a time and once more in the backward pass.
    """
    hidden, targets = check_inputs(hidden, targets, table, mask)
    states, wanted = real_ones(hidden, targets, mask)
    if not 1 <= num_chunks <= table.shape[0] or num_neighbors < 0 or num_rounds < 1:
        raise ArgumentError(
            f"num_chunks is {num_chunks}, num_neighbors {num_neighbors} and num_rounds {num_rounds} for a "
            f"table of shape {tuple(table.shape)}; pass from 1 chunk to one per item, no negative neighbours "
            "and at least 1 round."
        )
    rounds = choose_rounds(
        states,
        table,
        generator=generator,
        num_chunks=num_chunks,
        num_neighbors=num_neighbors,
        num_rounds=num_rounds,
        num_anchors=num_anchors or num_chunks,
    )
    positive = (states * table[wanted]).sum(-1)
    total = positive
    for number in range(num_rounds):
        total = torch.logaddexp(total, _round(states, wanted, table, rounds, number, lean=lean))
    return check_finite((total - positive).mean(), hidden, table)


@torch.no_grad()
def choose_rounds(
    states: Tensor,
    table: Tensor,
    *,
    generator: torch.Generator,
    num_chunks: int,
    num_neighbors: int,
    num_rounds: int,
    num_anchors: int,
) -> Rounds:
    """Order states and items by their nearest anchor and cut both orders into chunks, for each round."""
    shape = (num_rounds, num_anchors, states.shape[1])
    anchors = torch.randn(shape, generator=generator, device=generator.device).to(states)
    of_states = torch.stack([_chunk_numbers(states, some, num_chunks) for some in anchors])
    of_items = torch.stack([_chunk_numbers(table.to(states.dtype), some, num_chunks) for some in anchors])
    return Rounds(of_states, of_items, num_chunks, num_neighbors)


def _chunk_numbers(vectors: Tensor, anchors: Tensor, num_chunks: int) -> Tensor:
    step = max(1, BLOCK_BYTES // (4 * len(anchors)))
    nearest = torch.cat([(some @ anchors.T).argmax(1) for some in torch.split(vectors, step)])
    places = torch.empty_like(nearest)
    places[nearest.argsort(stable=True)] = torch.arange(len(nearest), device=nearest.device)
    return places // -(-len(nearest) // num_chunks)


def _round(
    states: Tensor, wanted: Tensor, table: Tensor, rounds: Rounds, number: int, *, lean: bool
) -> Tensor:
    """Log-sum-exp of each state over the items it meets in one round, (T,)."""
    members = _members(rounds.of_states[number], rounds.num_chunks)  # (chunks, rows), -1 where empty
    items = _members(rounds.of_items[number], rounds.num_chunks)
    near = rounds.num_neighbors
    windows = functional.pad(items, (0, 0, near, near), value=-1).unfold(0, 2 * near + 1, 1)
    windows = windows.transpose(1, 2).flatten(1)  # (chunks, (1 + 2 near) items)
    step = max(1, BLOCK_BYTES // (4 * members.shape[1] * windows.shape[1])) if lean else len(members)
    # Gathered once: a gather in every block would give a gradient of the size of the table in every block.
    near_states, near_vectors = (
        states[members.clamp(min=0)],
        functional.embedding(windows.clamp(min=0), table),
    )
    sums = []
    for start in range(0, rounds.num_chunks, step):
        some = slice(start, start + step)
        rows, ids = members[some], windows[some]
        met = _times_met(rounds, rows.clamp(min=0), ids.clamp(min=0))
        dropped = (ids[:, None] == wanted[rows.clamp(min=0)][..., None]) | (ids < 0)[:, None]
        parts = (near_states[some], near_vectors[some], met, dropped)
        sums.append(checkpoint(_chunk_sums, *parts, use_reentrant=False) if lean else _chunk_sums(*parts))
    real = members >= 0
    order = members[real].argsort()
    return torch.cat(sums)[real][order]


def _members(chunks: Tensor, num_chunks: int) -> Tensor:
    """List the members of each chunk, (chunks, size), filled up with -1."""
    size = -(-len(chunks) // num_chunks)
    order = chunks.argsort(stable=True)
    return functional.pad(order, (0, size * num_chunks - len(chunks)), value=-1).view(num_chunks, size)


def _times_met(rounds: Rounds, rows: Tensor, ids: Tensor) -> Tensor:
    """Count the rounds in which each row's window holds each id, (chunks, rows, ids)."""
    met = torch.zeros((*rows.shape, ids.shape[1]), dtype=torch.int16, device=ids.device)
    for of_states, of_items in zip(rounds.of_states, rounds.of_items, strict=True):
        met += (of_items[ids][:, None] - of_states[rows][..., None]).abs() <= rounds.num_neighbors
    return met


def _chunk_sums(states: Tensor, vectors: Tensor, met: Tensor, dropped: Tensor) -> Tensor:
    scores = (states @ vectors.transpose(1, 2)).to(torch.promote_types(states.dtype, torch.float32))
    if bool((met > 1).any()):
        scores = scores - met.clamp(min=1).to(scores.dtype).log()
    # A window without any item for a state: 0 stands in for -inf, whose gradient would be NaN.
    empty = dropped.all(-1)
    scores = scores.masked_fill(dropped & ~empty[..., None], -torch.inf)
    return scores.logsumexp(-1).masked_fill(empty, -torch.inf)
