"""The paper's synthetic study: how B logits per step are best split into n examples and k negatives.

The learning rate is chosen for each configuration on the first seed, from a ladder that is extended while the
best lies at its end. Runs of one budget take the same number of steps, and so of logits; those with few
examples per step continue until they have seen as many examples as every other run has.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from budgetrec.errors import DataError
from budgetrec.evaluation.curves import area, mean_loss
from budgetrec.study.engine.frame import Findings, Request, Study
from budgetrec.study.engine.grid import Cell, Outcome, Stage, Stages, went_well
from budgetrec.study.engine.scale import by_scale
from budgetrec.study.synthetic.cells import PER_TARGET, SHARED
from budgetrec.study.synthetic.findings import describe
from budgetrec.study.synthetic.world import WorldSettings, WorldSizes
from budgetrec.theory.paper.published import OPTIMIZERS

VERSION = 1  # of runs
WORLD_VERSION = 2  # of what is measured of the world
CORRECTIONS = {"vanilla": "none", "corrected": "theorem"}
AXES = ("steps", "examples")
_CELLS = "budgetrec.study.synthetic.cells"
# The ladder of learning rates: for gradient descent in multiples of n, since a row's gradient falls as 1 / n.
_RATES = {"sgd": (2.0**-6, 2.0**-4, 2.0**-2), "adam": (2.5e-3, 1e-2, 4e-2)}
_RATE_FACTOR = 4.0
_FEWEST_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class SyntheticPlan(WorldSizes):
    """The size of the study; `steps` are those of each budget B, `stride` the ratio of one n to the next."""

    steps: Mapping[int, int]
    horizon_examples: int
    stride: int
    num_seeds: int
    num_evaluations: int
    most_extensions: int
    num_probe_targets: int
    rates: Mapping[str, tuple[float, ...]]

    def pairs(self, budget: int) -> list[tuple[int, int]]:
        """List (n, k) from high batch to high sample, as far as there are k classes."""
        sizes = [budget]
        while sizes[-1] > 1:
            sizes.append(max(1, sizes[-1] // self.stride))
        return [(n, budget // n) for n in sizes if budget // n <= self.num_items]

    def world(self, seed: int) -> WorldSettings:
        """Return the sizes of the world."""
        return WorldSettings(
            **{each.name: getattr(self, each.name) for each in fields(WorldSizes)}, seed=seed
        )


PLANS = by_scale(
    SyntheticPlan,
    num_examples=(400, 10_000, 100_000),
    num_validation=(100, 500, 2_000),
    num_items=(200, 5_000, 50_000),
    dim=(8, 16, 16),
    logit_scale=(2.5, 3.0, 3.0),
    steps=(
        {2**4: 16, 2**6: 12},
        {2**4: 4_000, 2**6: 4_000, 2**10: 1_600, 2**14: 600},
        {2**4: 65_536, 2**6: 32_768, 2**10: 8_192, 2**14: 2_048},
    ),
    horizon_examples=(24, 8_192, 65_536),
    stride=(8, 4, 2),
    num_seeds=(2, 3, 5),
    num_evaluations=(4, 16, 32),
    most_extensions=(1, 2, 3),
    num_probe_targets=(200, 1_000, 2_000),
    rates=({"sgd": (2.0**-4,), "adam": (1e-2, 4e-2)}, _RATES, _RATES),
)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is compared: everything of a run but its learning rate and seed."""

    budget: int
    batch_size: int
    num_negatives: int
    sharing: str
    optimizer: str
    loss: str


def configurations(plan: SyntheticPlan) -> list[Configuration]:
    """List every configuration of the study."""
    return [
        Configuration(
            budget=budget, batch_size=n, num_negatives=k, sharing=sharing, optimizer=optimizer, loss=loss
        )
        for budget in plan.steps
        for n, k in plan.pairs(budget)
        for sharing, optimizer, loss in product((SHARED, PER_TARGET), OPTIMIZERS, CORRECTIONS)
    ]


def evaluation_steps(plan: SyntheticPlan, configuration: Configuration) -> list[int]:
    """Return where a run is evaluated: closer together where the loss falls fastest, and at both horizons."""
    ends = {math.ceil(horizon(plan, configuration, axis)) for axis in AXES}
    places = np.linspace(0, 1, plan.num_evaluations + 1) ** 2 * max(ends)
    return sorted({math.ceil(place) for place in places.tolist()} | ends)


def make_cell(
    plan: SyntheticPlan, configuration: Configuration, *, rate: float, world_seed: int, seed: int
) -> Cell:
    """Describe one run; with one example a step both ways of sharing are the same cell."""
    n = configuration.batch_size
    return Cell(
        study="synthetic",
        version=VERSION,
        function=f"{_CELLS}:train_cell",
        settings={
            "world": asdict(plan.world(world_seed)),
            "batch_size": n,
            "num_negatives": configuration.num_negatives,
            "sharing": SHARED if n == 1 else configuration.sharing,
            "optimizer": configuration.optimizer,
            "correction": CORRECTIONS[configuration.loss],
            "learning_rate": rate * n if configuration.optimizer == "sgd" else rate,
            "evaluations": evaluation_steps(plan, configuration),
            "seed": seed,
        },
    )


def horizon(plan: SyntheticPlan, configuration: Configuration, axis: str) -> float:
    """Return the step up to which losses are averaged: the budget's own, or by examples seen."""
    if axis == "steps":
        return float(plan.steps[configuration.budget])
    return plan.horizon_examples / configuration.batch_size


def axes(plan: SyntheticPlan, configuration: Configuration) -> list[str]:
    """List what a configuration is compared over; over examples only if it takes a few steps for them."""
    return [axis for axis in AXES if horizon(plan, configuration, axis) >= _FEWEST_STEPS]


def average(
    plan: SyntheticPlan, configuration: Configuration, outcome: Outcome | None, axis: str
) -> float | None:
    """Return the mean loss of a run up to its horizon; None for a run that failed or diverged."""
    if not went_well(outcome):
        return None
    steps, losses = (np.asarray(outcome.values[name], np.float64) for name in ("steps", "val_loss"))
    return mean_loss(steps, losses, horizon(plan, configuration, axis))


class _Rates:
    """The ladder of learning rates of one configuration, and what each gave."""

    def __init__(self, configuration: Configuration, axes: Sequence[str], first: Sequence[float]) -> None:
        self.configuration, self.axes = configuration, axes
        self.losses: dict[float, dict[str, float | None]] = {}
        self.next = list(first)

    def best(self, axis: str) -> float | None:
        """Return the rate with the smallest mean loss, None if every run diverged."""
        known = [(losses[axis], rate) for rate, losses in self.losses.items()]
        return min(((loss, rate) for loss, rate in known if loss is not None), default=(0.0, None))[1]

    def at_end(self, axis: str) -> bool:
        """Say whether a better rate may lie beyond the ladder."""
        return self.best(axis) in (None, min(self.losses), max(self.losses))

    def extend(self) -> None:
        """Plan one more rate at each end that is the best of an axis; smaller ones if nothing converged."""
        best = {self.best(axis) for axis in self.axes}
        self.next = []
        if best & {None, min(self.losses)}:
            self.next.append(min(self.losses) / _RATE_FACTOR)
        if max(self.losses) in best:
            self.next.append(max(self.losses) * _RATE_FACTOR)


def count(request: Request) -> int:
    """Count cells, those that are looked up again included, if no ladder is extended."""
    plan = PLANS[request.scale]
    return 1 + sum(
        len(plan.rates[each.optimizer]) + plan.num_seeds * len(axes(plan, each))
        for each in configurations(plan)
    )


def stages(request: Request, folder: Path) -> Stages[Findings]:
    """Measure the world, choose learning rates on the first seed, run the other seeds."""
    plan, everything = PLANS[request.scale], configurations(PLANS[request.scale])
    pairs = [list(pair) for budget in plan.steps for pair in plan.pairs(budget)]
    world = Cell(
        study="synthetic-world",
        version=WORLD_VERSION,
        function=f"{_CELLS}:measure_cell",
        settings={
            "world": asdict(plan.world(request.seed)),
            "pairs": pairs,
            "num_targets": plan.num_probe_targets,
            "seed": request.seed,
        },
    )
    (facts,) = yield Stage([world])
    ladders = [_Rates(each, axes(plan, each), plan.rates[each.optimizer]) for each in everything]
    for _ in range(1 + plan.most_extensions):
        tried = [(ladder, rate) for ladder in ladders for rate in ladder.next]
        cells = [
            make_cell(plan, ladder.configuration, rate=rate, world_seed=request.seed, seed=request.seed)
            for ladder, rate in tried
        ]
        outcomes = yield Stage(cells)
        for (ladder, rate), outcome in zip(tried, outcomes, strict=True):
            ladder.losses[rate] = {
                axis: average(plan, ladder.configuration, outcome, axis) for axis in ladder.axes
            }
        for ladder in ladders:
            ladder.extend()
    chosen = list(_chosen(plan, ladders, request.seed))
    outcomes = yield Stage([cell for *_, cell in chosen])
    runs = [(*each, outcome) for each, outcome in zip(chosen, outcomes, strict=True) if went_well(outcome)]
    if not runs:
        raise DataError("no run of the study has ended well. Look into cells/*.failed.json.")
    rows = pl.DataFrame([_row(plan, run) for run in runs])
    return describe(plan, request, rows, _curves(plan, runs), facts)


_Run = tuple[_Rates, str, int, Cell, Outcome]


def _chosen(
    plan: SyntheticPlan, ladders: Sequence[_Rates], first: int
) -> Iterator[tuple[_Rates, str, int, Cell]]:
    """List ladder, axis, seed and cell of every run that the results are made of."""
    for ladder, axis in ((each, axis) for each in ladders for axis in each.axes):
        rate = ladder.best(axis)
        if rate is None:
            continue
        for seed in range(first, first + plan.num_seeds):
            cell = make_cell(plan, ladder.configuration, rate=rate, world_seed=first, seed=seed)
            yield ladder, axis, seed, cell


def _row(plan: SyntheticPlan, run: _Run) -> dict[str, Any]:
    ladder, axis, seed, cell, outcome = run
    configuration = ladder.configuration
    steps = np.asarray(outcome.values["steps"], np.float64)
    inside = steps <= plan.steps[configuration.budget]
    losses = np.asarray(outcome.values["val_loss"], np.float64)
    return {
        **asdict(configuration),
        "axis": axis,
        "learning_rate": cell.settings["learning_rate"],
        "rate_at_end": ladder.at_end(axis),
        "seed": seed,
        "mean_loss": average(plan, configuration, outcome, axis),
        "aul_steps": area(steps[inside], losses[inside]),
        "final_loss": float(np.interp(horizon(plan, configuration, axis), steps, losses)),
    }


def _curves(plan: SyntheticPlan, runs: Sequence[_Run]) -> pl.DataFrame:
    """Return loss against steps, examples and logits for the rates chosen by steps, a row per measurement."""
    frames = []
    for ladder, axis, seed, _, outcome in runs:
        configuration = ladder.configuration
        if axis != "steps":
            continue
        settings = {name: pl.lit(value) for name, value in asdict(configuration).items()}
        frames.append(
            pl.DataFrame({"steps": outcome.values["steps"], "val_loss": outcome.values["val_loss"]})
            .filter(pl.col("steps") <= plan.steps[configuration.budget])
            .with_columns(
                **settings,
                seed=pl.lit(seed),
                examples=pl.col("steps") * configuration.batch_size,
                logits=pl.col("steps") * configuration.budget,
            )
        )
    return pl.concat(frames)


STUDY = Study(name="synthetic", count=count, stages=stages)
