"""SASRec (Kang and McAuley, ICDM 2018): a causal transformer over the items of a sequence."""

import math

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.models.contract import SequenceModel
from budgetrec.models.item_encoders import FeatureEncoder, ItemTable
from budgetrec.models.layers import Encoder, initialise


class SASRec(SequenceModel):
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
        super().__init__()
        if features is not None and len(features) != num_items:
            raise ArgumentError(f"{len(features)} items have features, but the catalogue has {num_items}.")
        self.num_items = num_items
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
        self.items = make_item_encoder(num_items, dim, features)
        self.output_items = self.items if tied else make_item_encoder(num_items, dim, features)
        self.scale = math.sqrt(dim)
        initialise(self, generator)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Give the states (n, width, d); the state at a position has seen nothing after it."""
        states: Tensor = self.encoder(self.items(ids) * self.scale, mask)
        return states

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Give the states (n, d) that predict what follows each history."""
        states: Tensor = self.encoder.forward_last(self.items(ids) * self.scale, mask)
        return states

    def item_vectors(self, ids: Tensor) -> Tensor:
        """Give the output vectors of some items."""
        vectors: Tensor = self.output_items(ids)
        return vectors

    def item_table(self) -> Tensor:
        """Give the output vectors of all items."""
        return self.output_items.table()


def make_item_encoder(num_items: int, dim: int, features: Tensor | None) -> ItemTable | FeatureEncoder:
    """Make a trained table, or a projection of features where they are given."""
    return ItemTable(num_items, dim) if features is None else FeatureEncoder(features, dim)
