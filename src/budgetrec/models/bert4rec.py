"""BERT4Rec (Sun et al., CIKM 2019): hide some items of a sequence and predict them from both sides."""

import torch
from torch import Tensor, nn

from budgetrec.data.batches import Batch
from budgetrec.models.contract import Inputs, longest
from budgetrec.models.transformer import Transformer
from budgetrec.options import check_share

HIDDEN = -1  # the id of a hidden item


class Bert4Rec(Transformer):
    """A bidirectional transformer that is trained to predict hidden items. A hidden item has the id -1.

    Each item is hidden with probability `mask_rate`, at least one per sequence. With probability `last_rate`
    a sequence hides only its last item, which is the task at prediction time.
    """

    causal = False
    extra_positions = 1  # a hidden item follows a full history

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
        check_share(mask_rate=mask_rate, last_rate=last_rate)
        super().__init__(
            num_items,
            dim=dim,
            num_blocks=num_blocks,
            num_heads=num_heads,
            max_length=max_length,
            hidden_dim=hidden_dim,
            dropout=dropout,
            activation=activation,
            norm=norm,
            tied=tied,
            features=features,
            generator=generator,
        )
        self.mask_rate = mask_rate
        self.last_rate = last_rate
        self.hidden_item = nn.Parameter(torch.empty(self.encoder.positions.shape[1]))
        nn.init.normal_(self.hidden_item, std=0.02, generator=generator)

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) of a hidden item appended to each history."""
        lengths = mask.sum(1, keepdim=True)
        ids = torch.cat([ids, torch.zeros_like(lengths)], 1).scatter(1, lengths, HIDDEN)
        mask = torch.cat([mask, torch.zeros_like(lengths, dtype=torch.bool)], 1).scatter(1, lengths, True)
        return super().predict(ids, mask)

    def training_inputs(self, batch: Batch, generator: torch.Generator, *, last_only: bool = False) -> Inputs:
        """Hide items of each sequence and make them the targets."""
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
        # Hidden places first, in order, cropped to the largest number in any sequence.
        places = hidden.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : longest(hidden)]
        target_mask = hidden.gather(1, places)
        targets = sequences.gather(1, places) * target_mask
        return Inputs(sequences.masked_fill(hidden, HIDDEN), mask, targets, target_mask, places)

    def _read(self, ids: Tensor) -> Tensor:
        hidden = ids == HIDDEN
        vectors = super()._read(ids.masked_fill(hidden, 0))
        return torch.where(hidden[..., None], self.hidden_item * self.scale, vectors)
