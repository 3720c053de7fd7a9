r"""Seconds per step as a function of (n, k), from a few short timed steps or from a machine's rates.

A step costs a fixed time, a time for each sequence (the encoder), for each pair of a sequence and a negative
(logits and gathered rows), for each negative of a set that the whole batch shares, for each row of the table
that a row-sparse update touches, and for each part that it is cut into. All of these are times, so none is
negative.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from budgetrec.allocation import Allocation
from budgetrec.stepping.stepper import Stepper

Floats = NDArray[np.float64]

_REPEATS = 2  # timed steps a point; the fastest for its size counts, as other work only slows one down
# What is timed: targets of a step and negatives. Steps are large enough for their work to show.
_POINTS = ((256, 16), (2048, 16), (256, 256), (2048, 256), (256, 2048), (2048, 1024))
_POINTS_OF_TARGETS = ((256, 4), (2048, 4), (256, 64), (2048, 32), (256, 256))
_POINTS_OF_FULL = ((64, 1), (256, 1), (1024, 1))
_LONGEST_POINT = 2.0  # seconds; a point that must take longer than that is left out


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Seconds of a step of one way.

    >>> seconds = StepSeconds(fixed=1.0, sequence=0.5, pair=0.25)
    >>> float(seconds(4, 8))  # 1 + 4 / 2 + 4 * 8 / 4
    11.0
    """

    fixed: float
    sequence: float
    pair: float
    negative: float = 0.0
    touched: float = 0.0
    part: float = 0.0
    rows_a_sequence: float = 0.0  # rows of the table that a sequence gathers besides negatives
    num_items: int = 1
    sharing: str = "sequence"

    def __call__(
        self, batch_size: ArrayLike, num_negatives: ArrayLike, extra_parts: ArrayLike = 0.0
    ) -> Floats:
        """Predict for one or many (n, k); `extra_parts` are cut beyond what training does by itself."""
        n, k = np.asarray(batch_size, np.float64), np.asarray(num_negatives, np.float64)
        terms = _features(n, k, self.rows_a_sequence, self.num_items, self.sharing)
        costs = (self.fixed, self.sequence, self.pair, self.negative, self.touched)
        total: Floats = sum(
            (cost * term for cost, term in zip(costs, terms, strict=True)), np.zeros(())
        ) + self.part * np.asarray(extra_parts, np.float64)
        return total


def _features(
    n: Floats, k: Floats, rows_a_sequence: float, num_items: int, sharing: str
) -> tuple[Floats, ...]:
    one = np.ones(np.broadcast_shapes(n.shape, k.shape))
    drawn = {"batch": k * one, "sequence": n * k, "target": n * k * rows_a_sequence / 2}[sharing]
    gathered = n * rows_a_sequence + drawn
    touched = num_items * -np.expm1(-gathered / num_items)  # distinct ones among the draws
    return one, n * one, n * k, k * one if sharing == "batch" else 0 * one, touched


def fit_seconds(
    points: Floats, seconds: Floats, *, way: Allocation, rows_a_sequence: float, num_items: int
) -> StepSeconds:
    """Fit costs to timed points (rows of n and k), relative errors weighed alike.

    Where there is nothing to tell two costs apart, the fit may give all to one of them.
    """
    terms = np.stack(_features(points[:, 0], points[:, 1], rows_a_sequence, num_items, way.sharing), axis=1)
    if not way.draws:
        terms[:, 2:] = 0
    if way.table_updates == "dense":
        terms[:, 4] = 0
    scale = np.maximum(terms.max(0), 1e-300)
    costs, _ = nnls(terms / scale / seconds[:, None], np.ones(len(seconds)))
    fixed, sequence, pair, negative, touched = (float(cost) for cost in costs / scale)
    return StepSeconds(
        fixed=fixed,
        sequence=sequence,
        pair=pair,
        negative=negative,
        touched=touched,
        rows_a_sequence=rows_a_sequence,
        num_items=num_items,
        sharing=way.sharing,
    )


_OF_FAMILY = ("objective", "sharing", "lean", "table_updates")


def seconds_row(family: Allocation, seconds: StepSeconds) -> dict[str, float | int | str | bool]:
    """Return a family and its costs as one flat record, for a file."""
    return {name: getattr(family, name) for name in _OF_FAMILY} | dataclasses.asdict(seconds)


def seconds_of(row: Mapping[str, Any]) -> tuple[Allocation, StepSeconds]:
    """Take apart a record that `seconds_row` returned."""
    costs = {item.name for item in dataclasses.fields(StepSeconds)} & row.keys()
    family = Allocation(batch_size=1, num_negatives=1, **{name: row[name] for name in _OF_FAMILY})
    return family, StepSeconds(**{name: row[name] for name in costs})


def time_steps(
    stepper: Stepper, way: Allocation, *, fits: Callable[[int, int], bool], mean_targets: float
) -> StepSeconds:
    """Take a few steps of a family at several (n, k) that fit, and fit their seconds.

    The stepper continues training meanwhile. Points that would take too long, by those before, are left out.
    """
    chosen: tuple[tuple[int, int], ...] = _POINTS_OF_TARGETS if way.sharing == "target" else _POINTS
    chosen = _POINTS_OF_FULL if not way.draws else chosen
    most, num_items = stepper.batches.num_sequences, stepper.dataset.num_items
    wanted = {
        (
            min(max(1, round(targets / mean_targets)), most),
            1 if not way.draws else min(k, max(num_items - 1, 1)),
        )
        for targets, k in chosen
    }
    wanted = {point for point in wanted if fits(*point)} or {(1, 1)}
    points: list[tuple[int, int]] = []
    timed: list[tuple[float, float]] = []  # sequences of average length, and seconds
    for n, k in sorted(wanted, key=_work):
        if points and timed[-1][1] * _work((n, k)) >= _LONGEST_POINT * _work(points[-1]):
            continue
        points.append((n, k))
        timed.append(_time(stepper, way.at(n, k), mean_targets))
    fitted = fit_seconds(
        np.array([(size, k) for (size, _), (_, k) in zip(timed, points, strict=True)]),
        np.array([seconds for _, seconds in timed]),
        way=way,
        rows_a_sequence=2 * mean_targets,
        num_items=num_items,
    )
    parts, (n, k) = stepper.num_parts, points[-1]
    finer = min(n, 8 * parts)
    if not stepper.objective.separable or finer <= parts:
        return fitted
    cut = dataclasses.replace(way.at(n, k), micro_batches=finer)
    size, seconds = _time(stepper, cut, mean_targets)
    return dataclasses.replace(fitted, part=max(0.0, seconds - float(fitted(size, k))) / (finer - parts))


def _work(point: tuple[int, int]) -> float:
    """Guess how much work a point is: an encoder costs about as much as 64 negatives."""
    n, k = point
    return n * (k + 64.0)


def _time(stepper: Stepper, allocation: Allocation, mean_targets: float) -> tuple[float, float]:
    """Take a few steps; return the fastest for its size: its number of average sequences, and its seconds."""
    stepper.change(allocation)
    batches = iter(stepper.batches.epoch(stepper.generators["order"]))
    taken: list[tuple[float, float]] = []
    for _ in range(1 + _REPEATS):
        batch = next(batches, None)
        if batch is None or (taken and len(batch.ids) < allocation.batch_size):
            break
        _wait(stepper.device)
        begin = time.perf_counter()
        stepper.step(batch, stepper.config.optimizer.learning_rate)
        _wait(stepper.device)
        taken.append((batch.num_targets / mean_targets, time.perf_counter() - begin))
    counted = taken[1:] or taken  # the first allocates
    return min(counted, key=lambda step: step[1] / step[0])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
