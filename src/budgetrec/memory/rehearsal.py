"""One training step of small sizes, run for real, with every allocation noted."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.batches import Batch
from budgetrec.memory.timeline import Timeline, begin, record, stage, turn
from budgetrec.models.contract import SequenceModel
from budgetrec.models.item_encoders import RowGradients
from budgetrec.objectives.contract import Objective
from budgetrec.objectives.modules import Drawn
from budgetrec.stepping.gradients import accumulate_gradients, whole_gradient

# In the order of a step. "batch" is what comes before the first part: sorting, hiding, drawing.
STAGES = ("batch", "encoder", "rows", "logits", "loss_backward", "encoder_backward")


@dataclass(frozen=True)
class Sizes:
    """How large one part of a step is; of a batch that is not cut, the whole step."""

    sequences: int
    positions: int  # that are read, padding included
    places: int  # that may have a target, padding included
    targets: int
    num_negatives: int
    distinct: int  # items among targets and negatives


@dataclass(frozen=True)
class Rehearsed:
    """What one small step allocated, and how large it was."""

    sizes: Sizes
    timeline: Timeline


@dataclass(frozen=True)
class Stand:
    """A model with all that a step needs besides the data and the objective.

    In an `own_loop` steps are not cut, and each makes new gradients.
    """

    model: SequenceModel
    row_gradients: list[RowGradients]
    last_only: bool
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    own_loop: bool = False


def rehearse(
    stand: Stand, objective: Objective, lengths: NDArray[np.int64], *, among: int | None = None, seed: int = 0
) -> Rehearsed:
    """Take two steps over random sequences of these `lengths` and note the allocations of the second.

    Only the first items, as many as `among`, are met; None stands for all of the model's. By the second step
    gradients and the room for row-sparse sums are there, as they are in all steps but the first.
    """
    num_items = among or stand.model.num_items
    batch = _batch(lengths, num_items, seed)
    watched = _Watched(stand.model, objective, num_items)
    if stand.own_loop:
        return _rehearse_own_loop(stand, watched, batch, seed)

    def step() -> None:
        generator = torch.Generator().manual_seed(seed)
        for gradients in stand.row_gradients:
            gradients.begin()
        accumulate_gradients(
            stand.model,
            watched,
            batch,
            micro_batches=1,
            last_only=stand.last_only,
            generator=generator,
            backward=_backward,
            autocast=stand.autocast,
            forward=watched.forward,
        )
        for gradients in stand.row_gradients:
            gradients.finish()

    def steps() -> None:
        step()
        begin()
        step()

    stand.model.train()
    timeline = record(steps, STAGES)
    assert watched.sizes is not None  # noqa: S101 - the step was taken
    return Rehearsed(watched.sizes, timeline)


def _rehearse_own_loop(stand: Stand, watched: "_Watched", batch: Batch, seed: int) -> Rehearsed:
    """Note a whole step up to its update, the gradients included, for which the one before left no room."""

    def step() -> None:
        stand.model.zero_grad()
        begin()
        fresh = Batch(batch.ids.clone(), batch.targets.clone(), batch.mask.clone())
        whole_gradient(
            stand.model,
            watched,
            fresh,
            last_only=stand.last_only,
            generator=torch.Generator().manual_seed(seed),
            backward=_backward,
            autocast=stand.autocast,
            forward=watched.forward,
        )

    def steps() -> None:
        step()
        step()

    stand.model.train()
    timeline = record(steps, STAGES)
    assert watched.sizes is not None  # noqa: S101 - the step was taken
    return Rehearsed(watched.sizes, timeline)


def _backward(loss: Tensor) -> None:
    with stage("loss_backward"):
        loss.backward()  # type: ignore[no-untyped-call]


class _Watched:
    """An objective, and the forward pass of a model, that say in which stage they are."""

    def __init__(self, model: SequenceModel, objective: Objective, num_items: int) -> None:
        self.separable, self.whole_table = objective.separable, objective.whole_table
        self.num_logits = objective.num_logits
        self.sizes: Sizes | None = None
        self._model, self._objective, self._num_items = model, objective, num_items
        self._positions = 0

    def draw(self, targets: Tensor, mask: Tensor, generator: torch.Generator) -> Drawn | None:
        """Draw negatives, and move them to the last third of the catalogue: see `_batch`."""
        drawn = self._objective.draw(targets, mask, generator)
        if drawn is not None:
            first = 2 * self._num_items // 3
            drawn.negatives.ids.remainder_(self._num_items - first).add_(first)
        return drawn

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        self._positions = ids.numel()
        with stage("encoder"):
            hidden: Tensor = self._model(ids, mask)
        hidden.register_hook(lambda _: turn("loss_backward", "encoder_backward"))  # type: ignore[no-untyped-call]
        return hidden

    def __call__(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Tensor | Callable[[Tensor], Tensor],
        *,
        mask: Tensor,
        generator: torch.Generator,
        **drawn: Any,
    ) -> Tensor:
        if self.sizes is None:  # in the first step, which is not noted
            ids = drawn["negatives"].ids if drawn else targets[:, :0]
            self.sizes = Sizes(
                len(targets),
                self._positions,
                targets.numel(),
                int(mask.sum()),
                ids.shape[1],
                len(torch.unique(torch.cat([targets[mask], ids.flatten()]))),
            )
        gather = table if isinstance(table, Tensor) else _watched_rows(table)
        with stage("logits"):
            return self._objective(hidden, targets, gather, mask=mask, generator=generator, **drawn)


def _watched_rows(table: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def rows(ids: Tensor) -> Tensor:
        with stage("rows"):
            return table(ids)

    return rows


def _batch(lengths: NDArray[np.int64], num_items: int, seed: int) -> Batch:
    """Draw inputs from the first third of the catalogue and targets from the second.

    So no negative is a target, and each gather finds rows that have no place in the sums yet: steps of
    different sizes go the same way through the code, and their events can be compared one by one.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, third = (len(lengths), int(lengths.max())), num_items // 3
    mask = torch.arange(shape[1]) < torch.from_numpy(lengths)[:, None]
    ids, targets = (torch.randint(third, shape, generator=generator) for _ in range(2))
    return Batch(ids * mask, (targets + third) * mask, mask)
