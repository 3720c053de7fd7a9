"""The gradient of one step, in one piece or cut into micro-batches.

A batch is sorted by length and cut into parts of about equal size, each as wide as its own longest sequence,
so padding is hardly ever computed. Negatives are drawn for the whole batch before it is cut, and each part's
loss counts by its share of the targets, so the sum over parts is the gradient of the whole batch. Parts that
fit into the cache are also faster on a CPU than one large batch.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from budgetrec.data.batches import Batch
from budgetrec.errors import ArgumentError, NotFiniteError
from budgetrec.models.contract import Inputs, SequenceModel
from budgetrec.models.item_encoders import ItemTable, RowGradients
from budgetrec.objectives.contract import Objective

# Positions of a part on a CPU. Measured with benchmarks/train.py at d = 64: 1,024 to 4,096 are alike, 512 and
# the whole batch of 25,600 slower.
CPU_POSITIONS = 2048
_FEWEST_POSITIONS = 512


@dataclass(frozen=True)
class StepSums:
    """What one step was made of."""

    loss: float
    num_targets: int
    num_logits: int
    num_parts: int


def sort_by_length(batch: Batch) -> Batch:
    """Put the longest sequences first, so that memory is largest at the start of a step."""
    order = batch.mask.sum(1).argsort(descending=True, stable=True)
    return Batch(batch.ids[order], batch.targets[order], batch.mask[order])


def cut(lengths: Tensor, num_parts: int) -> list[slice]:
    """Cut sequences of falling `lengths` into at most `num_parts` runs of about equally many positions.

    >>> cut(torch.tensor([6, 2, 2, 2]), 2)
    [slice(0, 1, None), slice(1, 4, None)]
    """
    num_parts = min(num_parts, len(lengths))
    total = lengths.cumsum(0)
    wanted = torch.arange(1, num_parts) * (int(total[-1]) / num_parts)
    ends = torch.searchsorted(total, wanted.to(total.device, torch.float64).ceil().long()) + 1
    bounds = sorted({0, *ends.tolist(), len(lengths)})
    return [slice(begin, end) for begin, end in pairwise(bounds)]


def cut_for_cache(lengths: Tensor) -> list[slice]:
    """Cut sequences of falling `lengths` into runs that fit into the cache and hold little padding.

    A run ends when it has `CPU_POSITIONS`, or when the next sequence is a fifth shorter than its first and
    the run is no longer tiny.

    >>> cut_for_cache(torch.tensor([900, 800, 700, 300]))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    bounds, longest = [0], int(lengths[0])
    for place, length in enumerate(lengths.tolist()):
        count = place - bounds[-1]
        full = (count + 1) * longest > CPU_POSITIONS
        if count and (full or (length < 0.8 * longest and count * longest > _FEWEST_POSITIONS)):
            bounds.append(place)
            longest = length
    return [slice(begin, end) for begin, end in pairwise([*bounds, len(lengths)])]


def gather_in_place(model: nn.Module, *, sparse: bool) -> list[RowGradients]:
    """Let the model's item tables add up their gradients themselves; return what begins and ends a step."""
    gradients = []
    for part in model.modules():
        if isinstance(part, ItemTable):
            part.gradients = RowGradients(part.weight, sparse=sparse)
            gradients.append(part.gradients)
    return gradients


def accumulate_gradients(
    model: SequenceModel,
    objective: Objective,
    batch: Batch,
    *,
    micro_batches: int | None,
    last_only: bool,
    generator: torch.Generator,
    backward: Callable[[Tensor], object],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    forward: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> StepSums:
    """Add the gradient of one step to what the parameters hold.

    `backward` is called once a part, `autocast` surrounds what comes before it, and `forward` stands in for
    the model where it was compiled.
    """
    inputs = model.training_inputs(sort_by_length(batch), generator, last_only=last_only)
    drawn = objective.draw(inputs.targets, inputs.target_mask, generator)
    counts = inputs.target_mask.sum(1)
    ends = counts.cumsum(0)
    num_targets = int(ends[-1])
    parts = _parts(objective, inputs, micro_batches)
    loss = torch.zeros((), device=inputs.ids.device)
    for sequences in parts:
        part = inputs.part(sequences)
        targets = slice(int(ends[sequences.start] - counts[sequences.start]), int(ends[sequences.stop - 1]))
        own = {} if drawn is None else {"negatives": drawn.part(sequences, targets, part.targets.shape[1])}
        with autocast():
            hidden = (model if forward is None else forward)(part.ids, part.mask)
            part_loss = objective(
                part.states(hidden),
                part.targets,
                model.item_table() if objective.whole_table else model.item_vectors,
                mask=part.target_mask,
                generator=generator,
                **own,
            )
        part_loss = part_loss * ((targets.stop - targets.start) / num_targets)
        backward(part_loss)
        loss += part_loss.detach()
    return StepSums(float(loss), num_targets, objective.num_logits(num_targets, model.num_items), len(parts))


def whole_gradient(
    model: SequenceModel,
    objective: Objective,
    batch: Batch,
    *,
    last_only: bool,
    generator: torch.Generator,
    backward: Callable[[Tensor], object],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    forward: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> StepSums:
    """Add the gradient of a batch as a loop of one's own takes it: padded, whole, with torch's gradients."""
    inputs = model.training_inputs(batch, generator, last_only=last_only)
    with autocast():
        hidden = (model if forward is None else forward)(inputs.ids, inputs.mask)
        drawn = objective.draw(inputs.targets, inputs.target_mask, generator)
        loss = objective(
            inputs.states(hidden),
            inputs.targets,
            model.item_vectors,
            mask=inputs.target_mask,
            generator=generator,
            **({} if drawn is None else {"negatives": drawn.negatives}),
        )
    backward(loss)
    num_targets = int(inputs.target_mask.sum())
    return StepSums(float(loss.detach()), num_targets, objective.num_logits(num_targets, model.num_items), 1)


def _parts(objective: Objective, inputs: Inputs, micro_batches: int | None) -> list[slice]:
    lengths = inputs.mask.sum(1)
    if not objective.separable and micro_batches not in (None, 1):
        raise ArgumentError(
            f"micro_batches is {micro_batches}, but this objective looks at the whole batch at once and "
            "cannot be cut; leave it out."
        )
    if micro_batches is not None:
        return cut(lengths, micro_batches)
    if lengths.device.type != "cpu" or not objective.separable:
        return [slice(0, len(lengths))]
    return cut_for_cache(lengths)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Shorten the gradient to `max_norm` if it is longer, sparse rows included; give the norm it had."""
    gradients = [values for parameter in parameters if (values := _gradient_values(parameter)) is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(values) for values in gradients]))
    if not bool(norm.isfinite()):
        raise NotFiniteError(f"the gradient's norm is {float(norm)}; lower the learning rate.")
    if norm > max_norm:
        for values in gradients:
            values.mul_(max_norm / norm)
    return float(norm)


def _gradient_values(parameter: nn.Parameter) -> Tensor | None:
    """Return the numbers of a gradient; a sparse one has each row once from then on."""
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse:
        return gradient
    parameter.grad = gradient = gradient.coalesce()  # the parts of a row listed twice are not its length
    return gradient._values()
