"""The objectives as modules, for models that return hidden states of shape (sequences, positions, dim)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from budgetrec.errors import ArgumentError
from budgetrec.objectives.binary import binary_row_loss
from budgetrec.objectives.checks import Table
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.reduced import reduced_cross_entropy
from budgetrec.objectives.sampled_softmax import row_loss_for
from budgetrec.objectives.scalable import scalable_cross_entropy
from budgetrec.objectives.scoring import RowLoss, Scoring, mean_loss
from budgetrec.objectives.specification import BLOCK_BYTES, SHARINGS, TABLE_BLOCK_BYTES
from budgetrec.samplers.contract import AdaptiveSampler, Negatives, Sampler, check_num_items
from budgetrec.samplers.uniform import Uniform

_PLAIN = Scoring()


def _need(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        raise ArgumentError("no generator was given to draw negatives with; pass torch.Generator().")
    return generator


@dataclass(frozen=True)
class Drawn:
    """The negatives of a whole batch, of which its parts take theirs."""

    negatives: Negatives
    sharing: str

    def part(self, sequences: slice, targets: slice, width: int) -> Negatives:
        """Take what some of the sequences need: `targets` of all targets, in `width` columns."""
        if self.sharing == "batch":
            return self.negatives.part(slice(None), targets)
        if self.sharing == "target":
            return self.negatives.part(targets, slice(None))
        return self.negatives.part(sequences, slice(width))


class SampledObjective(nn.Module):
    """Averages a row loss over targets, each scored against the negatives that its group draws.

    `sharing` says who shares a set of negatives: the whole "batch", each "sequence", or nobody ("target").
    `sampler` is uniform with replacement unless given. `lean` keeps about `block_bytes` of logits at a time,
    `sparse_grad` makes the table's gradient row-sparse.
    """

    whole_table = False  # only the rows of targets and negatives are asked for

    def __init__(
        self,
        num_items: int,
        num_negatives: int,
        sharing: str,
        row_loss: RowLoss,
        *,
        sampler: Sampler | AdaptiveSampler | None = None,
        scoring: Scoring = _PLAIN,
        lean: bool = False,
        sparse_grad: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self.row_loss, self.scoring, self.lean, self.sparse_grad = row_loss, scoring, lean, sparse_grad
        if sharing not in SHARINGS:
            raise ArgumentError(f"sharing is {sharing!r}; pass one of {', '.join(map(repr, SHARINGS))}.")
        self.num_items = check_num_items(num_items)
        self.sharing = sharing
        self.block_bytes = block_bytes or BLOCK_BYTES  # of lean mode
        self.sampler = Uniform(num_items, num_negatives) if sampler is None else sampler
        if self.sampler.num_negatives not in (None, num_negatives):
            raise ArgumentError(
                f"the sampler draws {self.sampler.num_negatives} negatives and the objective asks for "
                f"{num_negatives}; pass the same number to both."
            )
        if self.sampler.num_items != num_items:
            raise ArgumentError(
                f"the sampler was made for {self.sampler.num_items} items and the objective for {num_items}; "
                "make both for the same catalogue."
            )

    def _prepare(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Table,
        mask: Tensor | None,
        generator: torch.Generator | None,
        negatives: Negatives | None,
    ) -> tuple[Tensor, Tensor, Negatives, Tensor | None]:
        if hidden.dim() != 3 or hidden.shape[:2] != targets.shape:
            raise ArgumentError(
                f"hidden has shape {tuple(hidden.shape)} and targets {tuple(targets.shape)}; "
                "pass (sequences, positions, dim) and (sequences, positions)."
            )
        if mask is not None and mask.shape != targets.shape:
            raise ArgumentError(
                f"mask has shape {tuple(mask.shape)} for targets of shape {tuple(targets.shape)}; "
                "pass booleans of the same shape, True where a target is real."
            )
        if isinstance(table, Tensor) and table.shape[0] != self.num_items:
            raise ArgumentError(
                f"the table has shape {tuple(table.shape)} but the objective was made for {self.num_items} "
                "items; make both for the same catalogue."
            )
        hidden, grouped, mask = self._group(hidden, targets, mask)
        if negatives is None:
            sampler = self.sampler
            if not hasattr(sampler, "draw"):
                sampler = sampler.given(hidden, mask)
            negatives = sampler.draw(grouped, _need(generator), mask=mask)
        return hidden, grouped, negatives, mask

    @property
    def separable(self) -> bool:
        """Whether the loss of a batch is the mean of its parts': if negatives can be drawn first."""
        return hasattr(self.sampler, "draw")

    def draw(self, targets: Tensor, mask: Tensor, generator: torch.Generator) -> "Drawn | None":
        """Draw for a whole batch, so that it can be cut; None if the draw needs hidden states."""
        if not hasattr(self.sampler, "draw"):
            return None
        _, grouped, mask_of_groups = self._group(None, targets, mask)
        return Drawn(self.sampler.draw(grouped, generator, mask=mask_of_groups), self.sharing)

    def num_logits(self, num_targets: int, num_items: int) -> int:
        """Count the scores of `num_targets` targets against their negatives, B."""
        return num_targets * (self.sampler.num_negatives or num_targets)

    def _group(self, hidden: Any, targets: Tensor, mask: Tensor | None) -> tuple[Any, Tensor, Tensor | None]:
        """Arrange (sequences, positions) by who shares negatives, without padding where places are free."""
        if self.sharing == "sequence":
            return hidden, targets, mask
        axis = 0 if self.sharing == "batch" else 1

        def arrange(x: Tensor) -> Tensor:
            return (x.flatten(0, 1) if mask is None else x[mask]).unsqueeze(axis)  # (1, T) or (T, 1)

        return None if hidden is None else arrange(hidden), arrange(targets), None

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Table,
        *,
        generator: torch.Generator | None = None,
        mask: Tensor | None = None,
        negatives: Negatives | None = None,
    ) -> Tensor:
        """Return the mean loss; hidden (n, L, d), targets and mask (n, L), table (K, d).

        Negatives are drawn with `generator`, unless they are passed.
        """
        hidden, targets, negatives, mask = self._prepare(hidden, targets, table, mask, generator, negatives)
        return mean_loss(
            self.row_loss,
            hidden,
            targets,
            table,
            negatives,
            mask,
            options=self.scoring,
            lean=self.lean,
            sparse_grad=self.sparse_grad,
            block_bytes=self.block_bytes,
        )

    def extra_repr(self) -> str:
        """Show what decides the draws."""
        return (
            f"num_items={self.num_items}, num_negatives={self.sampler.num_negatives}, "
            f"sharing={self.sharing!r}, sampler={type(self.sampler).__name__}"
        )


class SampledSoftmax(SampledObjective):
    """Sampled softmax for sequence models, with negatives drawn inside.

    `correction` is "none", "theorem", "logq", "logq-negatives" or "refined-logq" (docs/objectives.md); the
    rest as in `SampledObjective`.

    >>> objective = SampledSoftmax(num_items=100, num_negatives=8)
    >>> hidden, table = torch.zeros(2, 3, 4), torch.zeros(100, 4)
    >>> loss = objective(hidden, torch.ones(2, 3, dtype=torch.int64), table, generator=torch.Generator())
    >>> round(loss.item(), 4)  # log 100: nothing is known yet
    4.6052
    """

    def __init__(
        self,
        num_items: int,
        num_negatives: int,
        sharing: str = "sequence",
        correction: str = "theorem",
        *,
        sampler: Sampler | AdaptiveSampler | None = None,
        temperature: float = 1.0,
        cosine: bool = False,
        lean: bool = False,
        sparse_grad: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        super().__init__(
            num_items,
            num_negatives,
            sharing,
            row_loss_for(correction),
            sampler=sampler,
            scoring=Scoring(temperature, cosine),
            lean=lean,
            sparse_grad=sparse_grad,
            block_bytes=block_bytes,
        )


class BinaryCrossEntropy(SampledObjective):
    """BCE, or gBCE when `calibration` is above 0, for sequence models; the rest as in `SampledObjective`."""

    def __init__(
        self,
        num_items: int,
        num_negatives: int = 1,
        sharing: str = "sequence",
        *,
        calibration: float = 0.0,
        sampler: Sampler | AdaptiveSampler | None = None,
        lean: bool = False,
        sparse_grad: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        super().__init__(
            num_items,
            num_negatives,
            sharing,
            binary_row_loss(calibration, num_items),
            sampler=sampler,
            lean=lean,
            sparse_grad=sparse_grad,
            block_bytes=block_bytes,
        )


class _Undrawn(nn.Module):
    """An objective over the whole table, for which nothing is drawn beforehand.

    `num_items` is needed only where the table is given as a function from ids to vectors.
    """

    separable = True
    whole_table = True

    def __init__(self, num_items: int | None) -> None:
        super().__init__()
        self.num_items = num_items

    def _table(self, table: Table, device: torch.device) -> Tensor:
        """Return the vectors of all items."""
        if isinstance(table, Tensor):
            return table
        if self.num_items is None:
            raise ArgumentError(
                f"the table is a function, and {type(self).__name__} scores every item; pass it num_items, "
                "or the vectors of all items."
            )
        return table(torch.arange(self.num_items, device=device))

    def draw(self, targets: Tensor, mask: Tensor, generator: torch.Generator) -> None:
        """Draw nothing."""


class FullSoftmax(_Undrawn):
    """Exact softmax over the catalogue for sequence models; nothing is drawn, so no `generator` is needed."""

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        cosine: bool = False,
        lean: bool = True,
        block_bytes: int | None = None,
        num_items: int | None = None,
    ) -> None:
        super().__init__(num_items)
        self.temperature = temperature
        self.cosine = cosine
        self.lean = lean
        self.block_bytes = block_bytes or TABLE_BLOCK_BYTES  # of lean mode

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Table,
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the mean loss; hidden (n, L, d), targets and mask (n, L), table (K, d)."""
        return full_softmax(
            hidden,
            targets,
            self._table(table, hidden.device),
            mask,
            temperature=self.temperature,
            cosine=self.cosine,
            lean=self.lean,
            block_bytes=self.block_bytes,
        )

    def num_logits(self, num_targets: int, num_items: int) -> int:
        """Count the scores of `num_targets` targets against every item."""
        return num_targets * num_items


class _NearItems(_Undrawn):
    """An objective that scores targets against the items near them; `loss` is it as a function."""

    separable = False  # what is near is found for the targets of the whole batch

    def __init__(self, loss: Callable[..., Tensor], num_items: int | None, **options: int) -> None:
        super().__init__(num_items)
        self.loss, self.options = loss, options

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Table,
        *,
        generator: torch.Generator,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss; hidden (n, L, d), targets and mask (n, L), table (K, d)."""
        vectors = self._table(table, hidden.device)
        return self.loss(hidden, targets, vectors, mask, generator=generator, **self.options)


class ScalableCrossEntropy(_NearItems):
    """SCE for sequence models; arguments as in `scalable_cross_entropy`."""

    def __init__(
        self,
        num_buckets: int,
        bucket_targets: int,
        bucket_items: int,
        *,
        mix: bool = False,
        lean: bool = False,
        num_items: int | None = None,
    ) -> None:
        super().__init__(
            scalable_cross_entropy,
            num_items,
            num_buckets=num_buckets,
            bucket_targets=bucket_targets,
            bucket_items=bucket_items,
            mix=mix,
            lean=lean,
        )

    def num_logits(self, num_targets: int, num_items: int) -> int:
        """Count the scores in all buckets."""
        rows = min(self.options["bucket_targets"], num_targets)
        return self.options["num_buckets"] * rows * min(self.options["bucket_items"], num_items)


class ReducedCrossEntropy(_NearItems):
    """RECE for sequence models; arguments as in `reduced_cross_entropy`."""

    def __init__(
        self,
        num_chunks: int,
        *,
        num_neighbors: int = 1,
        num_rounds: int = 1,
        lean: bool = False,
        num_items: int | None = None,
    ) -> None:
        super().__init__(
            reduced_cross_entropy,
            num_items,
            num_chunks=num_chunks,
            num_neighbors=num_neighbors,
            num_rounds=num_rounds,
            lean=lean,
        )

    def num_logits(self, num_targets: int, num_items: int) -> int:
        """Count the scores of `num_targets` targets against the chunks near them, in all rounds."""
        chunk = -(-num_items // self.options["num_chunks"])
        near = min(num_items, chunk * (1 + 2 * self.options["num_neighbors"]))
        return num_targets * near * self.options["num_rounds"]
