"""Steps timed for real: a few of every family to fit its costs, and those that a plan would choose."""

import dataclasses
from collections.abc import Callable, Mapping

import torch

from budgetrec.allocation import Allocation
from budgetrec.data.batches import Batch
from budgetrec.planner.clock import QuietClock
from budgetrec.planner.seconds import StepSeconds, TimedStep
from budgetrec.stepping.stepper import Stepper

# What is timed: targets of a step and negatives. Between a family's points every one of its costs varies.
POINTS = {
    "batch": ((1024, 16), (1024, 1024), (4096, 256), (1024, 4096)),
    "sequence": ((1024, 16), (1024, 1024), (4096, 256)),
    "target": ((512, 16), (512, 256), (2048, 64)),
}
POINTS_OF_FULL = ((64, 1), (256, 1))
_LONGEST = 1.0  # seconds; a point that is expected to take longer is left out
_REPEATS = 2  # timed steps a point; the fastest for its size counts, as other work only slows one down
_SLOW = 2.0  # seconds; a step that takes longer is timed once

Fits = Callable[[int, int], bool]


def time_family(
    stepper: Stepper,
    family: Allocation,
    clock: QuietClock,
    *,
    fits: Fits,
    counted: Mapping[Allocation, StepSeconds],
) -> list[TimedStep]:
    """Take a few steps of a family at several (n, k) that fit; the stepper goes on training meanwhile.

    Points that would take too long, by the step timed before and by operation counts, are left out.
    """
    timed: list[TimedStep] = []
    for n, k in _points(stepper, family, fits):
        if timed and _pace(timed[-1], counted) * float(counted[family](n, k)) > _LONGEST:
            continue
        timed.append(time_allocation(stepper, family.at(n, k), clock))
    return timed


def _pace(timed: TimedStep, counted: Mapping[Allocation, StepSeconds]) -> float:
    """Return how many times the counted seconds a step took."""
    return timed.seconds / float(counted[timed.family](timed.batch_size, timed.num_negatives))


def _points(stepper: Stepper, family: Allocation, fits: Fits) -> list[tuple[int, int]]:
    """Return the points of a family that fit, the least work first."""
    most, num_items = stepper.batches.num_sequences, stepper.dataset.num_items
    mean_targets = stepper.batches.num_targets / most
    found = {
        (
            min(max(1, round(targets / mean_targets)), most),
            min(k, max(num_items - 1, 1)) if family.draws else 1,
        )
        for targets, k in (POINTS[family.sharing] if family.draws else POINTS_OF_FULL)
    }
    return sorted(
        {point for point in found if fits(*point)} or {(1, 1)}, key=lambda point: point[0] * point[1]
    )


def time_allocation(
    stepper: Stepper, allocation: Allocation, clock: QuietClock, *, weight: float = 1.0
) -> TimedStep:
    """Take a few steps of an allocation, and return the fastest for its size."""
    stepper.change(allocation)
    mean_targets = stepper.batches.num_targets / stepper.batches.num_sequences
    batches = iter(stepper.batches.epoch(stepper.generators["order"]))
    taken: list[tuple[float, float]] = []  # sequences of average length, and seconds
    for _ in range(1 + _REPEATS):
        batch = next(batches, None)
        if batch is None or (taken and len(batch.ids) < allocation.batch_size):
            break

        def step(batch: Batch = batch) -> None:
            stepper.step(batch, stepper.config.optimizer.learning_rate)
            _wait(stepper.device)

        _wait(stepper.device)
        taken.append((batch.num_targets / mean_targets, clock.time(step)))
        if taken[-1][1] > _SLOW:
            break
    counted = taken[1:] or taken  # the first allocates
    size, seconds = min(counted, key=lambda each: each[1] / each[0])
    return TimedStep(
        family=allocation.family,
        batch_size=size,
        num_negatives=allocation.num_negatives,
        seconds=seconds,
        weight=weight,
    )


def time_parts(stepper: Stepper, whole: TimedStep, clock: QuietClock) -> float:
    """Return what each part costs that a step is cut into beyond those that training makes by itself."""
    if not stepper.objective.separable:
        return 0.0
    allocation = whole.family.at(max(1, round(whole.batch_size)), whole.num_negatives)
    same = time_allocation(stepper, allocation, clock)
    parts, n = stepper.num_parts, allocation.batch_size
    finer = min(n, 8 * parts)
    if finer <= parts:
        return 0.0
    cut = time_allocation(stepper, dataclasses.replace(allocation, micro_batches=finer), clock)
    return max(0.0, cut.seconds / cut.batch_size - same.seconds / same.batch_size) * n / (finer - parts)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
