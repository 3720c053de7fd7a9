"""Sources of item vectors: a trained table, or a small trained projection of fixed features."""

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
    """The gradient of a table, summed in place over the micro-batches of a step.

    torch would allocate a gradient the size of the table for every use of it in every micro-batch, or, with
    sparse gradients, append to a list that keeps growing. Here each use costs only the rows it gathers. With
    `sparse`, memory is held only for the gathered rows, and the result is a sparse gradient of distinct rows.
    """

    def __init__(self, weight: nn.Parameter, *, sparse: bool) -> None:
        self.weight = weight
        self._sparse = sparse
        if sparse:
            self._places = torch.full((len(weight),), -1, device=weight.device)  # each item's place in _rows
            self._rows = self._places[:0]
        self._sums = weight.new_zeros(0 if sparse else len(weight), weight.shape[1])

    def begin(self) -> None:
        """Start a step with a gradient of zero."""
        self._sums.zero_()
        self.weight.grad = None if self._sparse else self._sums
        if self._sparse:
            self._places[self._rows] = -1
            self._rows = self._rows[:0]

    def add(self, ids: Tensor, gradients: Tensor) -> None:
        """Add gradients (N, d) to the rows of ids (N,)."""
        if self._sparse:
            missing = self._places[ids] < 0
            if bool(missing.any()):
                self._add_rows(torch.unique(ids[missing]))
            ids = self._places[ids]
        self._sums.index_add_(0, ids, gradients.to(self._sums.dtype))

    def finish(self) -> None:
        """Set the table's gradient to the sums."""
        if self._sparse:
            self.weight.grad = torch.sparse_coo_tensor(
                self._rows[None],
                self._sums[: len(self._rows)],
                self.weight.shape,
                is_coalesced=True,
                check_invariants=False,
            )

    def _add_rows(self, rows: Tensor) -> None:
        """Make room for the sums of rows that have not been gathered yet in this step."""
        begin, end = len(self._rows), len(self._rows) + len(rows)
        self._places[rows] = torch.arange(begin, end, device=rows.device)
        self._rows = torch.cat([self._rows, rows])
        if end > len(self._sums):
            # The buffer is kept between steps, so growing in small increments slows only the first few.
            room = max(end, min(int(ROW_GROWTH * len(self._sums)), len(self.weight)))
            grown = self.weight.new_zeros(room, self.weight.shape[1])
            grown[:begin] = self._sums[:begin]
            self._sums = grown


class ItemTable(nn.Module):
    """A trained vector for each item. It is only ever gathered, so its gradient can stay row-sparse."""

    def __init__(self, num_items: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_items, dim))
        self.gradients: RowGradients | None = None  # set by training; otherwise torch computes the gradient

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
    """Two trained layers that map fixed features (K, f) to item vectors, whatever the size of the catalogue.

    Features are standardised with the means and deviations of the original catalogue, so `extend` can add
    items that were never trained on.
    """

    features: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, features: Tensor, dim: int) -> None:
        super().__init__()
        if features.dim() != 2 or features.shape[1] == 0:
            raise ArgumentError(
                f"item features have shape {tuple(features.shape)}; pass one row per item, (items, features)."
            )
        if not bool(features.isfinite().all()):
            raise ArgumentError("item features contain NaN or infinite values; fill them in first.")
        features = features.to(torch.float32)
        deviation = features.std(0, correction=0)
        self.register_buffer("features", features, persistent=False)
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("deviation", torch.where(deviation > 0, deviation, 1.0))
        self.widen = nn.Linear(features.shape[1], 2 * dim)
        self.narrow = nn.Linear(2 * dim, dim)

    @property
    def num_items(self) -> int:
        """The number of items with features."""
        return len(self.features)

    def extend(self, features: Tensor) -> None:
        """Add items by their features. They get the next free ids."""
        if features.dim() != 2 or features.shape[1] != self.features.shape[1]:
            raise ArgumentError(
                f"new item features have shape {tuple(features.shape)}, but the model was trained with "
                f"{self.features.shape[1]} features per item; pass rows of that width."
            )
        self.features = torch.cat([self.features, features.to(self.features)])

    def forward(self, ids: Tensor) -> Tensor:
        """Return vectors (..., d) for ids (...)."""
        if ids.numel() >= self.num_items:  # projecting each item once is cheaper
            return functional.embedding(ids, self.table())
        return self._project(functional.embedding(ids, self.features))

    def table(self) -> Tensor:
        """Return the vectors of the whole catalogue."""
        return self._project(self.features)

    def _project(self, features: Tensor) -> Tensor:
        projected: Tensor = self.narrow(gelu(self.widen((features - self.mean) / self.deviation)))
        return projected


class EncodedModel(SequenceModel):
    """A model with an item encoder for its input and, unless `tied`, a second one for its output."""

    def __init__(self, num_items: int, dim: int, *, tied: bool, features: Tensor | None) -> None:
        super().__init__()
        if features is not None and len(features) != num_items:
            raise ArgumentError(
                f"{len(features)} items have features, but the catalogue has {num_items}; "
                "pass one row per item."
            )
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
        """Add items by their features. They get the next free ids."""
        for encoder in dict.fromkeys((self.items, self.output_items)):
            if not isinstance(encoder, FeatureEncoder):
                raise ArgumentError(
                    "the model has a trained vector for each item and cannot make new ones; "
                    "train it with item features."
                )
            encoder.extend(features)
        self.num_items += len(features)


def _make_encoder(num_items: int, dim: int, features: Tensor | None) -> ItemTable | FeatureEncoder:
    return ItemTable(num_items, dim) if features is None else FeatureEncoder(features, dim)
