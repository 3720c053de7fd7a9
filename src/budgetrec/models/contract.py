"""The interface of a model to training, planning and evaluation: ids in, hidden states out, items as vectors.

To add a model, subclass `SequenceModel` and implement `forward` and `item_vectors`; `ModelSpecification` in
specification.py says what its constructor takes. The other methods default
to what a causal model needs, whose state at a position predicts the next item.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from budgetrec.data.batches import Batch


@dataclass(frozen=True)
class Inputs:
    """One training batch, as the model reads it.

    `ids` and `mask` (n, width) are the sequences that the model reads. `targets` and `target_mask` (n, m) are
    the items it must predict, and `places` (n, m) are the positions of the states that predict them: None
    when m is the width and each position predicts its own target.
    """

    ids: Tensor
    mask: Tensor
    targets: Tensor
    target_mask: Tensor
    places: Tensor | None = None

    def states(self, hidden: Tensor) -> Tensor:
        """Return the states (n, m, d) that predict a target, from all of `hidden` (n, width, d)."""
        if self.places is None:
            return hidden
        return hidden.gather(1, self.places[..., None].expand(-1, -1, hidden.shape[2]))

    def part(self, sequences: slice) -> "Inputs":
        """Return some of the sequences, cropped to the longest of them."""
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
    """A model of right-padded sequences of item ids. Padding must not change any result.

    `num_items` and `max_length`, how many positions it reads at most, are filled in from the dataset and the
    settings where a model of your own leaves them out.
    """

    num_items: int
    max_length: int

    @abstractmethod
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return hidden states (n, width, d) for ids and mask (n, width)."""

    @abstractmethod
    def item_vectors(self, ids: Tensor) -> Tensor:
        """Return the vectors (..., d) of some items, which hidden states are scored against."""

    def item_table(self) -> Tensor:
        """Return the vectors (K, d) of the whole catalogue."""
        return self.item_vectors(torch.arange(self.num_items, device=next(self.parameters()).device))

    def training_inputs(self, batch: Batch, generator: torch.Generator, *, last_only: bool = False) -> Inputs:
        """Return what to read and what to predict: the next item at every position, or only at the last."""
        if not last_only:
            return Inputs(batch.ids, batch.mask, batch.targets, batch.mask)
        last = batch.mask.sum(1, keepdim=True) - 1
        asked = torch.ones_like(last, dtype=torch.bool)
        return Inputs(batch.ids, batch.mask, batch.targets.gather(1, last), asked, last)

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict the item after each history."""
        hidden: Tensor = self(ids, mask)
        return hidden[torch.arange(len(ids), device=ids.device), mask.sum(1) - 1]


def longest(mask: Tensor) -> int:
    """Return the length of the longest sequence under a right-padded mask."""
    return int(mask.sum(1).max())
