"""Which products of sizes the bytes of a step are made of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budgetrec.memory.distinct import Frequencies, expected_distinct
from budgetrec.objectives.blocks import block_steps, logits_at_once

Floats = NDArray[np.float64]
SLOTS, BLOCKS = 5, (7, 8, 9, 10)  # places of features of a part whose negatives are drawn


@dataclass(frozen=True)
class Features:
    """Turns sizes of batches and parts into features.

    `sharing` is "batch", "sequence" or "target" for drawn negatives and None for an objective over the whole
    table; `dim` is the width; a lean objective works in blocks of about `block_bytes`, one over the whole
    table in blocks of targets or in `tiles` of targets and items.
    """

    sharing: str | None
    lean: bool
    dim: int
    num_items: int
    block_bytes: int
    tiles: bool = False
    frequencies: Frequencies | None = None  # of draws; None where all items are alike

    def distinct(self, draws: Floats) -> Floats:
        """Return how many items draws are expected to meet."""
        if self.frequencies is None:
            return expected_distinct(draws, self.num_items)
        return self.frequencies.expected_distinct(draws)

    def slots(self, shape: Floats, num_negatives: Floats) -> Floats:
        """Count the negatives that are drawn for batches or parts of `shape` (..., 4)."""
        sequences, _, _, targets = np.moveaxis(shape, -1, 0)
        groups = {"batch": np.ones_like(sequences), "sequence": sequences, "target": targets}
        return groups[self.sharing] * num_negatives if self.sharing else np.zeros_like(sequences)

    def of_batch(self, shape: Floats, num_negatives: Floats) -> Floats:
        """Return features (..., F) of what exists once a batch: ids, masks and draws."""
        shape, num_negatives = _broadcast(shape, num_negatives)
        columns = [np.ones(shape.shape[:-1]), *np.moveaxis(shape, -1, 0), self.slots(shape, num_negatives)]
        return np.stack(columns, -1)

    def of_part(self, shape: Floats, num_negatives: Floats, distinct: Floats | None = None) -> Floats:
        """Return features (..., F) of what exists once a part; `distinct` items meet its targets."""
        shape, num_negatives = _broadcast(shape, num_negatives)
        sequences, _, places, targets = np.moveaxis(shape, -1, 0)
        columns = [np.ones(shape.shape[:-1]), *np.moveaxis(shape, -1, 0)]
        if self.sharing is None:
            items = np.full_like(targets, self.num_items)
            return np.stack([*columns, items, self._scored(targets)], -1)
        slots = self.slots(shape, num_negatives)
        logits = places * num_negatives if self.sharing == "sequence" else targets * num_negatives
        columns.extend((slots, logits))
        if self.lean:
            groups, size = {
                "batch": (np.ones_like(targets), targets),
                "sequence": (sequences, places / np.maximum(sequences, 1)),
                "target": (targets, np.ones_like(targets)),
            }[self.sharing]
            columns[-1] = self.distinct(targets + slots) if distinct is None else distinct
            first = _block(groups, size, num_negatives, self.dim, self.block_bytes)
            rest = (np.maximum(slots, first[0]) - first[0], np.maximum(logits, first[1]) - first[1])
            columns.extend((*first, *np.minimum(first, rest)))  # a block outlives the next one's begin
        return np.stack(columns, -1)

    def _scored(self, targets: Floats) -> Floats:
        """Count the logits that exist at once."""
        if not self.lean:
            return targets * self.num_items
        return logits_at_once(targets, self.num_items, self.block_bytes, tiles=self.tiles)


def _block(
    groups: Floats, size: Floats, num_negatives: Floats, dim: int, block_bytes: int
) -> tuple[Floats, Floats]:
    """Return the negatives and logits of the first block."""
    num_negatives = np.maximum(num_negatives, 1)
    group_step, column_step = block_steps(size, dim, num_negatives, 4, block_bytes)
    block_groups = np.minimum(groups, group_step)
    return block_groups * num_negatives, block_groups * np.minimum(size, column_step) * num_negatives


def _broadcast(shape: Floats, num_negatives: Floats) -> tuple[Floats, Floats]:
    lead = np.broadcast_shapes(shape.shape[:-1], np.shape(num_negatives))
    return np.broadcast_to(shape, (*lead, 4)), np.broadcast_to(num_negatives, lead)
