"""Where item vectors come from: a trained table, or fixed features through a small trained projection."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from budgetrec.errors import ArgumentError
from budgetrec.models.activations import gelu
from budgetrec.models.contract import SequenceModel

ROW_GROWTH = 1.125


class RowGradients:
    """A step's gradient of a table, added up in place, row by row.

    torch would make a gradient of the size of the table for every use of it in every micro-batch, or, with
    sparse gradients, a longer list each time; here each use costs what it gathers. With `sparse`, only rows
    that were gathered have a place, and the gradient is handed over as a sparse one of distinct rows.
    """

    def __init__(self, weight: nn.Parameter, *, sparse: bool) -> None:
        self.weight = weight
        self._sparse = sparse
        if sparse:
            self._places = torch.full((len(weight),), -1, device=weight.device)  # of each item among the rows
            self._rows = self._places[:0]
        self._sums = weight.new_zeros(0 if sparse else len(weight), weight.shape[1])

    def begin(self) -> None:
        """Start a step: forget the last one's gradient."""
        if self._sparse:
            self._places[self._rows] = -1
            self._rows = self._rows[:0]
            self._sums.zero_()
            self.weight.grad = None
        else:
            self._sums.zero_()
            self.weight.grad = self._sums

    def add(self, ids: Tensor, gradients: Tensor) -> None:
        """Add gradients (N, d) to the rows of ids (N,)."""
        if not self._sparse:
            self._sums.index_add_(0, ids, gradients.to(self._sums.dtype))
            return
        places = self._places[ids]
        missing = places < 0
        if bool(missing.any()):
            self._take_in(torch.unique(ids[missing]))
            places = self._places[ids]
        self._sums.index_add_(0, places, gradients.to(self._sums.dtype))

    def finish(self) -> None:
        """Hand the sums over as the table's gradient."""
        if self._sparse:
            self.weight.grad = torch.sparse_coo_tensor(
                self._rows[None],
                self._sums[: len(self._rows)],
                self.weight.shape,
                is_coalesced=True,
                check_invariants=False,
            )

    def _take_in(self, rows: Tensor) -> None:
        """Return places to rows that have none, and room to their sums."""
        begin, end = len(self._rows), len(self._rows) + len(rows)
        self._places[rows] = torch.arange(begin, end, device=rows.device)
        self._rows = torch.cat([self._rows, rows])
        if end > len(self._sums):
            # The room is kept from step to step, so growing by little costs only the first few steps time.
            room = max(end, min(int(ROW_GROWTH * len(self._sums)), len(self.weight)))
            grown = self.weight.new_zeros(room, self.weight.shape[1])
            grown[:begin] = self._sums[:begin]
            self._sums = grown


class ItemTable(nn.Module):
    """A trained vector for each item; only ever gathered, so that its gradient can stay row-sparse."""

    def __init__(self, num_items: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_items, dim))
        self.gradients: RowGradients | None = None  # set by training; else torch's own gradient

    def forward(self, ids: Tensor) -> Tensor:
        """Return vectors (..., d) for ids (...)."""
        if self.gradients is None or not torch.is_grad_enabled():
            return functional.embedding(ids, self.weight)
        gathered: Tensor = _Gather.apply(self.weight, ids, self.gradients)  # type: ignore[no-untyped-call]
        return gathered

    def table(self) -> Tensor:
        """Return the table itself."""
        return self.weight


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, gradients: RowGradients) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.gradients = gradients
        return functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.gradients.add(ids.flatten(), grad.reshape(-1, grad.shape[-1]))
        return None, None, None


class FeatureEncoder(nn.Module):
    """Vectors made from fixed features (K, f) by two trained layers: as many weights for any catalogue.

    Features are standardised with the means and deviations of the catalogue that the encoder was made for, so
    that `extend` can take in items that nobody has trained on.
    """

    features: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, features: Tensor, dim: int) -> None:
        super().__init__()
        if features.dim() != 2 or features.shape[1] == 0:
            raise ArgumentError(
                f"item features have shape {tuple(features.shape)}; pass one row an item, (items, features)."
            )
        if not bool(features.isfinite().all()):
            raise ArgumentError("item features hold NaN or infinite numbers; fill them first.")
        features = features.to(torch.float32)
        deviation = features.std(0, correction=0)
        self.register_buffer("features", features, persistent=False)
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("deviation", torch.where(deviation > 0, deviation, 1.0))
        self.widen = nn.Linear(features.shape[1], 2 * dim)
        self.narrow = nn.Linear(2 * dim, dim)

    @property
    def num_items(self) -> int:
        """How many items have features."""
        return len(self.features)

    def extend(self, features: Tensor) -> None:
        """Take in the features of further items; they get the ids that follow."""
        if features.dim() != 2 or features.shape[1] != self.features.shape[1]:
            raise ArgumentError(
                f"new item features have shape {tuple(features.shape)} and the model was trained with "
                f"{self.features.shape[1]} features an item; pass rows of that width."
            )
        self.features = torch.cat([self.features, features.to(self.features)])

    def forward(self, ids: Tensor) -> Tensor:
        """Return vectors (..., d) for ids (...)."""
        if ids.numel() >= self.num_items:  # each item once is cheaper
            return functional.embedding(ids, self.table())
        return self._project(functional.embedding(ids, self.features))

    def table(self) -> Tensor:
        """Project the whole catalogue."""
        return self._project(self.features)

    def _project(self, features: Tensor) -> Tensor:
        projected: Tensor = self.narrow(gelu(self.widen((features - self.mean) / self.deviation)))
        return projected


class EncodedModel(SequenceModel):
    """A model that reads items through one encoder and scores against it, or against a second one."""

    def __init__(self, num_items: int, dim: int, *, tied: bool, features: Tensor | None) -> None:
        super().__init__()
        if features is not None and len(features) != num_items:
            raise ArgumentError(f"{len(features)} items have features, but the catalogue has {num_items}.")
        self.num_items = num_items
        self.items = _make_encoder(num_items, dim, features)
        self.output_items = self.items if tied else _make_encoder(num_items, dim, features)

    def item_vectors(self, ids: Tensor) -> Tensor:
        """Return the output vectors of some items."""
        vectors: Tensor = self.output_items(ids)
        return vectors

    def item_table(self) -> Tensor:
        """Return the output vectors of all items."""
        return self.output_items.table()

    def extend_items(self, features: Tensor) -> None:
        """Take in further items by their features; they get the ids that follow."""
        for encoder in dict.fromkeys((self.items, self.output_items)):
            if not isinstance(encoder, FeatureEncoder):
                raise ArgumentError(
                    "the model has a trained vector for each item and no way to make others; "
                    "train it with item features."
                )
            encoder.extend(features)
        self.num_items += len(features)


def _make_encoder(num_items: int, dim: int, features: Tensor | None) -> ItemTable | FeatureEncoder:
    return ItemTable(num_items, dim) if features is None else FeatureEncoder(features, dim)
