"""BERT4Rec (Sun et al., CIKM 2019): hide some items of a sequence and predict them from both sides."""

import math

import torch
from torch import Tensor, nn

from budgetrec.data.batches import Batch
from budgetrec.errors import ArgumentError
from budgetrec.models.contract import Inputs, longest
from budgetrec.models.item_encoders import EncodedModel
from budgetrec.models.layers import Encoder, initialise

HIDDEN = -1  # the id that stands for a hidden item


class Bert4Rec(EncodedModel):
    """A transformer that sees both sides, trained on hidden items.

    The id -1 stands for a hidden item. `mask_rate` of the items are hidden, at least one in a
    sequence; a share `last_rate` of the sequences hides the last item only, which is what prediction asks.
    """

    def __init__(
        self,
        num_items: int,
        *,
        dim: int = 64,
        num_blocks: int = 2,
        num_heads: int = 2,
        max_length: int = 200,
        hidden_dim: int | None = None,
        dropout: float = 0.1,
        activation: str = "gelu",
        norm: str = "pre",
        tied: bool = True,
        mask_rate: float = 0.2,
        last_rate: float = 0.1,
        features: Tensor | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(num_items, dim, tied=tied, features=features)
        for name, value in (("mask_rate", mask_rate), ("last_rate", last_rate)):
            if not 0 <= value <= 1:
                raise ArgumentError(f"{name} is {value}; pass a share between 0 and 1.")
        self.max_length = max_length
        self.mask_rate = mask_rate
        self.last_rate = last_rate
        self.encoder = Encoder(
            dim,
            num_blocks=num_blocks,
            num_heads=num_heads,
            num_positions=max_length + 1,  # a full history and the hidden item after it
            hidden_dim=hidden_dim,
            dropout=dropout,
            activation=activation,
            norm=norm,
            causal=False,
        )
        self.hidden_item = nn.Parameter(torch.empty(dim))
        self.scale = math.sqrt(dim)
        initialise(self, generator)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, width, d) of sequences in which some ids may be -1, hidden."""
        states: Tensor = self.encoder(self._read(ids), mask)
        return states

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) of a hidden item that is put after each history."""
        lengths = mask.sum(1, keepdim=True)
        ids = torch.cat([ids, torch.zeros_like(lengths)], 1).scatter(1, lengths, HIDDEN)
        mask = torch.cat([mask, torch.zeros_like(lengths, dtype=torch.bool)], 1).scatter(1, lengths, True)
        states: Tensor = self.encoder.forward_last(self._read(ids), mask)
        return states

    def training_inputs(self, batch: Batch, generator: torch.Generator, *, last_only: bool = False) -> Inputs:
        """Hide items of each sequence and ask for them."""
        sequences = torch.cat([batch.ids[:, :1], batch.targets], 1)
        mask = torch.cat([batch.mask[:, :1], batch.mask], 1)
        last = mask.sum(1, keepdim=True) - 1
        draws = torch.rand(mask.shape, generator=generator, device=mask.device)
        hidden = (draws < self.mask_rate) & mask
        only_last = torch.rand(last.shape, generator=generator, device=mask.device) < self.last_rate
        if last_only:
            only_last = torch.ones_like(only_last)
        only_last |= ~hidden.any(1, keepdim=True)
        is_last = torch.arange(mask.shape[1], device=mask.device) == last
        hidden = torch.where(only_last, is_last, hidden)
        # Hidden places first, in order, cut to the most that a sequence has.
        places = hidden.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : longest(hidden)]
        target_mask = hidden.gather(1, places)
        return Inputs(
            sequences.masked_fill(hidden, HIDDEN),
            mask,
            sequences.gather(1, places) * target_mask,
            target_mask,
            places,
        )

    def _read(self, ids: Tensor) -> Tensor:
        hidden = ids == HIDDEN
        vectors = self.items(ids.masked_fill(hidden, 0)) * self.scale
        return torch.where(hidden[..., None], self.hidden_item * self.scale, vectors)
