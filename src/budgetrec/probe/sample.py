r"""The targets of a probe: random training sequences, and a random subset of the targets of long ones.

The noise of a step depends on all $T_s$ targets of a sequence, but a few of them are enough to estimate it.
Of each sequence at most `per_sequence` positions are kept, $m_s$ of $T_s$ drawn without replacement. Averages
are unbiased if a target has weight $T_s / m_s$ and a pair of targets of one sequence $\frac{T_s (T_s -
1)}{m_s (m_s - 1)}$ (a pair of targets of two sequences has the product of their weights).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, NotFiniteError
from budgetrec.models.contract import Inputs, SequenceModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_GROUPS = 16  # of sequences, left out in turn
_FEWEST_SEQUENCES = 16
_MOST_PER_SEQUENCE = 16
_BATCH_SIZE = 64  # sequences encoded at once


def sum_by(places: Ints, values: Floats | None, count: int) -> Floats:
    """Sum values (by default 1 each) by their places among `count`.

    >>> sum_by(np.array([0, 2, 0]), np.array([1.0, 2.0, 4.0]), 3).tolist()
    [5.0, 0.0, 2.0]
    """
    return np.bincount(places, values, count).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Slab:
    """All sequences with the same number of targets: their indices (count,) and targets (count, size)."""

    sequences: Ints
    rows: Ints

    @property
    def size(self) -> int:
        """The number of targets of each."""
        return int(self.rows.shape[1])


@dataclass(frozen=True, kw_only=True)
class TargetSample:
    """Targets with their states, sorted by group and sequence.

    `states` (N, d) and `targets` (N,) are those of the last layer, and `sequences` (N,) is the sequence of
    each. For each sequence, `lengths` (S,) is its number of targets, `sizes` (S,) how many of them are kept,
    `groups` (S,) the group it is left out with, and `order` (S,) when it was drawn.
    """

    states: Tensor
    targets: Tensor
    sequences: Ints
    lengths: Ints
    sizes: Ints
    groups: Ints
    order: Ints

    @classmethod
    def of(
        cls, states: Tensor, targets: Tensor, sequences: Ints, lengths: Ints, *, num_groups: int = NUM_GROUPS
    ) -> "TargetSample":
        """Sort targets (N,) of `sequences` (N,), numbered in the order of drawing, with `lengths` in full.

        The targets of a sequence must be in random order unless all of them are kept.
        """
        count = len(lengths)
        sizes = np.bincount(sequences, minlength=count)
        if count < 2:
            raise ArgumentError(f"{count} sequence with targets was found; the noise law needs at least 2.")
        if np.any(sizes == 0) or np.any(sizes > lengths) or np.any((sizes == 1) & (lengths > 1)):
            raise ArgumentError(
                "a sequence has no target, more targets than its length, or one of several; "
                "pass at least 2 targets of each sequence that has 2."
            )
        groups = np.arange(count) % min(num_groups, count)
        order = np.argsort(groups, kind="stable")
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        rows = np.argsort(place[sequences], kind="stable")
        chosen = torch.from_numpy(rows).to(states.device)
        if not bool(states.isfinite().all()):
            raise NotFiniteError(
                "the model's states are NaN or infinite, so there is no noise to measure. "
                "Probe an earlier checkpoint, or train with a smaller learning rate."
            )
        return cls(
            states=states[chosen].float(),
            targets=targets[chosen],
            sequences=place[sequences][rows],
            lengths=lengths[order].astype(np.int64),
            sizes=sizes[order],
            groups=groups[order],
            order=order.astype(np.int64),
        )

    @property
    def num_groups(self) -> int:
        """The number of groups of sequences."""
        return int(self.groups.max()) + 1

    @property
    def weights(self) -> Floats:
        """The weight of each target, (N,)."""
        weights: Floats = (self.lengths / self.sizes)[self.sequences]
        return weights

    @property
    def pair_weights(self) -> Floats:
        """The weight of each pair of targets of a sequence, (S,)."""
        kept = self.sizes * (self.sizes - 1)
        weights: Floats = self.lengths * (self.lengths - 1) / np.maximum(kept, 1)
        return weights

    def group_rows(self) -> list[slice]:
        """Return the targets of each group."""
        bounds = np.searchsorted(self.groups[self.sequences], np.arange(self.num_groups + 1))
        return [slice(int(begin), int(end)) for begin, end in pairwise(bounds)]

    def slabs(self) -> Iterator[Slab]:
        """Yield the sequences of each size."""
        firsts = np.cumsum(self.sizes) - self.sizes
        for size in np.unique(self.sizes):
            sequences = np.flatnonzero(self.sizes == size)
            yield Slab(sequences=sequences, rows=firsts[sequences][:, None] + np.arange(size))

    def spread(self, count: int) -> Ints:
        """Return the rows of about `count` targets, spread over as many sequences as possible."""
        num_sequences = len(self.sizes)
        firsts = np.cumsum(self.sizes) - self.sizes
        rank = np.arange(len(self.sequences)) - firsts[self.sequences]
        chosen = (rank < max(1, count // num_sequences)) & (self.order[self.sequences] < count)
        return np.flatnonzero(chosen)


def draw_targets(
    model: SequenceModel,
    dataset: Dataset,
    *,
    num_targets: int,
    max_length: int,
    windows: str,
    last_only: bool,
    generator: torch.Generator,
) -> TargetSample:
    """Encode training sequences in random order until there are about `num_targets` targets.

    At most 16 targets per sequence are kept: fewer for a small sample, so that it has at least 16 sequences,
    and more if the data has too few sequences. The mode of the model does not change.
    """
    if num_targets < 2 * _FEWEST_SEQUENCES:
        raise ArgumentError(
            f"num_targets is {num_targets}; pass at least {2 * _FEWEST_SEQUENCES}, two for each of "
            f"{_FEWEST_SEQUENCES} sequences."
        )
    if not 1 <= max_length <= model.max_length:
        raise ArgumentError(f"max_length is {max_length}; the model reads 1 to {model.max_length} positions.")
    batches = TrainingBatches(
        dataset, batch_size=_BATCH_SIZE, max_length=max_length, windows=windows, group_by_length=False
    )
    per_sequence = min(_MOST_PER_SEQUENCE, num_targets // _FEWEST_SEQUENCES)
    per_sequence = max(per_sequence, -(-num_targets // batches.num_sequences))
    device = next(model.parameters()).device
    states, targets, lengths, sizes = [], [], [], []
    found = 0
    for batch in batches.epoch(generator):
        inputs = _moved(model.training_inputs(batch, generator, last_only=last_only), device)
        hidden = inputs.states(model(inputs.ids, inputs.mask))
        keys = torch.rand(inputs.target_mask.shape, generator=generator, device=generator.device).to(device)
        keys = keys.masked_fill(~inputs.target_mask, 2.0)
        places = keys.argsort(1)[:, :per_sequence]
        real = inputs.target_mask.gather(1, places)
        before = real.sum(1).cumsum(0) - real.sum(1) + found
        real &= (before < num_targets)[:, None]  # whole sequences until there are enough targets
        kept = real.sum(1)
        states.append(hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[2]))[real])
        targets.append(inputs.targets.gather(1, places)[real])
        lengths.append(inputs.target_mask.sum(1)[kept > 0].cpu())
        sizes.append(kept[kept > 0].cpu())
        found += int(kept.sum())
        if found >= num_targets:
            break
    counts = torch.cat(sizes).numpy()
    owners = np.repeat(np.arange(len(counts)), counts)
    return TargetSample.of(torch.cat(states), torch.cat(targets), owners, torch.cat(lengths).numpy())


def _moved(inputs: Inputs, device: torch.device) -> Inputs:
    places = None if inputs.places is None else inputs.places.to(device)
    return Inputs(
        inputs.ids.to(device),
        inputs.mask.to(device),
        inputs.targets.to(device),
        inputs.target_mask.to(device),
        places,
    )
