"""What training, planning and evaluation ask of a model: ids in, hidden states out, items as vectors.

A model of your own is a subclass with two methods, `forward` and `item_vectors`. The rest has defaults for
causal models, whose state at a position predicts the item that follows it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from budgetrec.data.batches import Batch


@dataclass(frozen=True)
class Inputs:
    """One batch as a model is trained on it.

    `ids` and `mask` are (n, width), the sequences that the model reads. `targets` and `target_mask` are
    (n, m), what it is to predict, and `places` (n, m) at which position of its sequence the state is that
    predicts them; None when m is the width and each position predicts its own target.
    """

    ids: Tensor
    mask: Tensor
    targets: Tensor
    target_mask: Tensor
    places: Tensor | None = None

    def states(self, hidden: Tensor) -> Tensor:
        """Take the states (n, m, d) that have a target out of hidden (n, width, d)."""
        if self.places is None:
            return hidden
        return hidden.gather(1, self.places[..., None].expand(-1, -1, hidden.shape[2]))

    def part(self, sequences: slice) -> "Inputs":
        """Take some of the sequences, as wide as the longest of them."""
        mask, target_mask = self.mask[sequences], self.target_mask[sequences]
        width, num_places = longest(mask), longest(target_mask)
        return Inputs(
            self.ids[sequences, :width],
            mask[:, :width],
            self.targets[sequences, :num_places],
            target_mask[:, :num_places],
            None if self.places is None else self.places[sequences, :num_places],
        )


class SequenceModel(nn.Module, ABC):
    """Reads right-padded sequences of item ids; what is padding must change nothing."""

    num_items: int
    max_length: int

    @abstractmethod
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return hidden states (n, width, d) for ids and mask (n, width)."""

    @abstractmethod
    def item_vectors(self, ids: Tensor) -> Tensor:
        """Return the vectors (..., d) that hidden states are scored against, gathered row by row."""

    def item_table(self) -> Tensor:
        """Return the vectors (K, d) of the whole catalogue."""
        device = next(self.parameters()).device
        return self.item_vectors(torch.arange(self.num_items, device=device))

    def training_inputs(self, batch: Batch, generator: torch.Generator, *, last_only: bool = False) -> Inputs:
        """Say what is read and what is predicted: the next item at every position, or at the last only."""
        if not last_only:
            return Inputs(batch.ids, batch.mask, batch.targets, batch.mask)
        last = batch.mask.sum(1, keepdim=True) - 1
        return Inputs(
            batch.ids,
            batch.mask,
            batch.targets.gather(1, last),
            torch.ones_like(last, dtype=torch.bool),
            last,
        )

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict what follows each history."""
        hidden: Tensor = self(ids, mask)
        return hidden[torch.arange(len(ids), device=ids.device), mask.sum(1) - 1]


def longest(mask: Tensor) -> int:
    """Return the width that the longest sequence under a right-padded mask needs."""
    return int(mask.sum(1).max())
