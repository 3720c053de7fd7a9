"""SASRec (Kang and McAuley, ICDM 2018): a causal transformer over the items of a sequence."""

import math

import torch
from torch import Tensor

from budgetrec.models.item_encoders import EncodedModel
from budgetrec.models.layers import Encoder, initialise


class SASRec(EncodedModel):
    """Self-attentive sequential recommendation.

    `hidden_dim` is the feed-forward width (`dim` unless given), `norm` "pre" or the published "query",
    `tied` says whether hidden states are scored against the vectors that the input is read with.
    `features` (K, f), if given, take the place of the trained table.

    >>> model = SASRec(num_items=100, dim=8, max_length=5, generator=torch.Generator())
    >>> ids = torch.tensor([[3, 1, 4]])
    >>> model(ids, torch.ones_like(ids, dtype=torch.bool)).shape
    torch.Size([1, 3, 8])
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
        dropout: float = 0.2,
        activation: str = "relu",
        norm: str = "pre",
        tied: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(num_items, dim, tied=tied, features=features)
        self.max_length = max_length
        self.encoder = Encoder(
            dim,
            num_blocks=num_blocks,
            num_heads=num_heads,
            num_positions=max_length,
            hidden_dim=hidden_dim,
            dropout=dropout,
            activation=activation,
            norm=norm,
            causal=True,
        )
        self.scale = math.sqrt(dim)
        initialise(self, generator)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, width, d); the state at a position has seen nothing after it."""
        states: Tensor = self.encoder(self.items(ids) * self.scale, mask)
        return states

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict what follows each history."""
        states: Tensor = self.encoder.forward_last(self.items(ids) * self.scale, mask)
        return states
