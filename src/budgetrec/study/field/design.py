"""The plan against the field on one dataset: its cells and the order in which they run.

The learning rate of a contender is chosen from three on the first seed, by the mean validation loss over the
seconds that all three reached; the other seeds are trained with it.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.evaluation.curves import common_horizons, summarise_curve
from budgetrec.study.engine.grid import DIVERGED, Cell, Outcome, Stage, Stages
from budgetrec.study.engine.training import train_run, training_cell
from budgetrec.study.field.contenders import Contender

LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2)
VERSION = 1
_CURVE = ("step", "examples", "seconds", "val_loss", "ndcg@10", "peak_bytes")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A dataset by name, identity and folder, who competes on it, and the settings of every run."""

    name: str
    dataset: str
    place: str
    contenders: Sequence[Contender]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FieldRun:
    """A run of a contender: its metrics, why it failed, or neither while it is still to be trained."""

    contender: Contender
    learning_rate: float
    seed: int
    metrics: pl.DataFrame | None = None
    failure: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.metrics is not None or self.failure is not None


@dataclass(frozen=True, kw_only=True)
class FieldRuns:
    """All runs of a dataset, done or open."""

    name: str
    contenders: Sequence[Contender]
    runs: Sequence[FieldRun]

    def of(self, contender: Contender) -> list[FieldRun]:
        """List the runs of a contender."""
        return [run for run in self.runs if run.contender == contender]

    def rate(self, contender: Contender) -> float | None:
        """Choose the learning rate of a contender from what is done of its first seed."""
        first = [run for run in self.of(contender) if run.seed == SEEDS[0]]
        return choose_learning_rate(
            {run.learning_rate: run.metrics for run in first if run.metrics is not None and not run.failure}
        )

    def chosen(self, contender: Contender) -> dict[int, pl.DataFrame]:
        """Return by seed the metrics of runs that went to their end at the chosen learning rate."""
        rate = self.rate(contender)
        return {
            run.seed: run.metrics
            for run in self.of(contender)
            if run.learning_rate == rate and run.metrics is not None and not run.failure
        }


def choose_learning_rate(curves: Mapping[float, pl.DataFrame]) -> float | None:
    """Return the learning rate with the lowest mean loss over seconds; None if there are no curves."""
    if not curves:
        return None
    horizons = common_horizons(list(curves.values()))
    losses = {
        rate: summarise_curve(curve, horizons)["mean_loss_over_seconds"] for rate, curve in curves.items()
    }
    return min(losses, key=lambda rate: losses[rate])


def train_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Train for some seconds and return the curve, all of which depends on the machine; keep no weights."""
    run = train_run(settings, places, folder)
    if isinstance(run, Outcome):
        return run
    shutil.rmtree(run.folder / "checkpoint")
    return Outcome(values={}, measured={"curve": run.metrics.select(_CURVE).to_dict(as_series=False)})


def make_cell(field: Field, run: FieldRun) -> Cell:
    """Describe one run."""
    own = {"learning_rate": run.learning_rate, "seed": run.seed}
    return training_cell(
        "field",
        VERSION,
        f"{__name__}:train_cell",
        dataset=field.dataset,
        place=field.place,
        run={**field.settings, **run.contender.allocation.settings, **own},
    )


def stages(field: Field) -> Stages[FieldRuns]:
    """Train three learning rates on the first seed, then the other seeds of contenders with all three."""
    first = [
        FieldRun(contender=each, learning_rate=rate, seed=SEEDS[0])
        for each in field.contenders
        for rate in LEARNING_RATES
    ]
    outcomes = yield Stage([make_cell(field, run) for run in first])
    found = FieldRuns(name=field.name, contenders=field.contenders, runs=_read(field, first, outcomes))
    others = [
        FieldRun(contender=each, learning_rate=rate, seed=seed)
        for each in field.contenders
        if (rate := found.rate(each)) is not None and all(run.done for run in found.of(each))
        for seed in SEEDS[1:]
    ]
    outcomes = yield Stage([make_cell(field, run) for run in others])
    return replace(found, runs=[*found.runs, *_read(field, others, outcomes)])


def _read(field: Field, runs: Sequence[FieldRun], outcomes: Sequence[Outcome | None]) -> list[FieldRun]:
    return [
        run if outcome is None else _finish(run, outcome, field.settings["seconds"])
        for run, outcome in zip(runs, outcomes, strict=True)
    ]


def _finish(run: FieldRun, outcome: Outcome, wanted: float) -> FieldRun:
    """Add what came of a run; one that stopped before its seconds has failed."""
    if DIVERGED in outcome.values:
        return replace(run, failure=outcome.values[DIVERGED])
    metrics = pl.DataFrame(outcome.measured["curve"])
    reached = float(metrics["seconds"][-1])
    failure = f"ended after {reached:.0f} of {wanted:.0f} s" if reached < wanted else None
    return replace(run, metrics=metrics, failure=failure)
