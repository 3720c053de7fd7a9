"""The transformer that SASRec and BERT4Rec share: items to vectors, vectors to states."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from budgetrec.models.item_encoders import EncodedModel
from budgetrec.models.layers import Block, Encoder, initialise
from budgetrec.options import check_positive


class Transformer(EncodedModel):
    """A transformer over the items of a sequence.

    `hidden_dim` is the feed-forward width (default: `dim`). `norm` is "pre", or "query" as SASRec was
    published. If `tied`, hidden states are scored against the input vectors. `features` (K, f), if given,
    replace the trained table.
    """

    causal: ClassVar[bool]
    extra_positions: ClassVar[int] = 0  # positions beyond `max_length`

    def __init__(
        self,
        num_items: int,
        *,
        dim: int = 64,
        num_blocks: int = 2,
        num_heads: int = 2,
        max_length: int = 200,
        hidden_dim: int | None = None,
        dropout: float = 0.2,
        activation: str = "relu",
        norm: str = "pre",
        tied: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator,
    ) -> None:
        check_positive(dim=dim, num_blocks=num_blocks, max_length=max_length)
        super().__init__(num_items, dim, tied=tied, features=features)
        self.max_length = max_length
        self.scale = math.sqrt(dim)
        blocks = [
            Block(
                dim,
                num_heads,
                hidden_dim=hidden_dim or dim,
                dropout=dropout,
                activation=activation,
                norm=norm,
                causal=self.causal,
            )
            for _ in range(num_blocks)
        ]
        self.encoder = Encoder(blocks, dim, num_positions=max_length + self.extra_positions, dropout=dropout)
        initialise(self, generator)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, width, d)."""
        states: Tensor = self.encoder(self._read(ids), mask)
        return states

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict the item after each history."""
        return self.encoder.forward_last(self._read(ids), mask)

    def _read(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.items(ids) * self.scale
        return vectors
