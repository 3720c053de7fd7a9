"""What came out of a field: a row a run, a row an allocation, and whether the plan and its law were right.

Runs are compared over the seconds and the examples that every run at its allocation's chosen learning rate
has reached, and the plan with each of the others over the examples that the two have reached: one slow
allocation would otherwise cut the comparison of all others short. The plan is within one standard error if it
is behind the best by no more than the standard error of the best's own mean over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from budgetrec.errors import DataError
from budgetrec.evaluation.curves import AXES, area, common_horizons, mean_loss
from budgetrec.study.field.study import (
    LEARNING_RATES,
    PREDICTED_FILE,
    SEEDS,
    STANDARD,
    Allocation,
    Cell,
    FinishedRun,
    chosen_rate,
    open_cells,
    read_finished,
    read_predicted,
)

# What the issue of planning is measured by, then what else is told; -1 where more is better.
JUDGED = {"mean_loss_over_seconds": 1, "mean_loss_over_examples": 1, "ndcg@10": -1}
MEASURES = (*JUDGED, "val_loss", "aul_steps")
_FEWEST_STEPS = 4.0
_CURVE_POINTS, _CURVE_SPAN = 120, 1000.0


@dataclass(frozen=True, kw_only=True)
class FieldResults:
    """The tables of a comparison; `horizons` are by dataset, `notes` say what is missing or was left out.

    Datasets that are `incomplete` have runs still to be trained, so that their best is the best so far.
    """

    runs: pl.DataFrame
    summary: pl.DataFrame
    verdicts: pl.DataFrame
    correlations: pl.DataFrame
    pairs: pl.DataFrame
    predicted: pl.DataFrame
    curves: pl.DataFrame
    horizons: dict[str, dict[str, float]]
    notes: list[str]
    incomplete: set[str]


@dataclass(frozen=True, kw_only=True)
class _Dataset:
    """What is known of one dataset: allocations in order, what is predicted of them, and their runs."""

    name: str
    allocations: list[str]
    predicted: dict[str, Allocation]
    finished: dict[Cell, FinishedRun]

    def chosen(self, allocation: str) -> list[FinishedRun]:
        """Return the runs of an allocation that went to their end at its chosen learning rate."""
        rate = chosen_rate(self.name, allocation, self.finished)
        cells = [Cell(self.name, allocation, rate, seed) for seed in SEEDS] if rate is not None else []
        runs = [self.finished[cell] for cell in cells if cell in self.finished]
        return [run for run in runs if run.failure is None]

    def missing(self) -> list[Cell]:
        """List the runs that can be trained now."""
        return [cell for name in self.allocations for cell in open_cells(self.name, name, self.finished)]


def summarise_field(folder: Path) -> FieldResults:
    """Read the runs and predictions under a folder; what is missing is told in `notes`."""
    finished = read_finished(folder / "runs")
    predicted = {
        path.parent.name: read_predicted(path) for path in sorted(folder.glob(f"*/{PREDICTED_FILE}"))
    }
    names = [*dict.fromkeys([*predicted, *(cell.dataset for cell in finished)])]
    datasets = [_gather(name, predicted.get(name), finished) for name in names]
    notes = _unknown_folders(folder / "runs") + [
        note for each in datasets for note in _notes(each, predicted)
    ]
    datasets = [each for each in datasets if any(each.chosen(name) for name in each.allocations)]
    if not datasets:
        raise DataError(f"{folder} has no finished run of a field. Train some first.")
    horizons = {each.name: _horizons(each) for each in datasets}
    notes += [note for each in datasets for note in _short_of_steps(each, horizons[each.name])]
    runs = pl.DataFrame(
        [row for each in datasets for row in _run_rows(each, horizons[each.name])], infer_schema_length=None
    )
    summary = pl.concat([_summarise(each, runs.filter(dataset=each.name)) for each in datasets])
    rows = [
        {"dataset": name, **vars(allocation)}
        for name, allocations in predicted.items()
        for allocation in allocations
    ]
    return FieldResults(
        runs=runs,
        summary=summary,
        verdicts=pl.DataFrame(
            [row for each in datasets for row in judge_plan(summary.filter(dataset=each.name))],
            schema=_VERDICT_SCHEMA,
        ),
        correlations=pl.DataFrame(
            [row for each in datasets for row in correlate(summary.filter(dataset=each.name))],
            schema=_CORRELATION_SCHEMA,
        ),
        pairs=pl.DataFrame([row for each in datasets for row in _pair_up(each)], schema=_PAIR_SCHEMA),
        predicted=pl.DataFrame(rows, infer_schema_length=None),
        curves=pl.concat([_mean_curves(each) for each in datasets]),
        horizons=horizons,
        notes=notes,
        incomplete={each.name for each in datasets if each.missing()},
    )


def _gather(
    name: str, predicted: Sequence[Allocation] | None, finished: Mapping[Cell, FinishedRun]
) -> _Dataset:
    own = {cell: run for cell, run in finished.items() if cell.dataset == name}
    planned = [*dict.fromkeys(cell.allocation for cell in own if cell.allocation not in STANDARD)]
    return _Dataset(
        name=name,
        allocations=[*planned, *STANDARD] if predicted is None else [each.allocation for each in predicted],
        predicted={} if predicted is None else {each.allocation: each for each in predicted},
        finished=own,
    )


def _unknown_folders(runs: Path) -> list[str]:
    names = [path.name for path in sorted(runs.iterdir()) if path.is_dir()] if runs.is_dir() else []
    return [
        f"{name}: left out, its name is of no allocation of a field."
        for name in names
        if Cell.of(name) is None
    ]


def _notes(dataset: _Dataset, predicted: Mapping[str, Sequence[Allocation]]) -> list[str]:
    notes = []
    if dataset.name not in predicted:
        notes.append(f"{dataset.name}: there is no {PREDICTED_FILE}, so no order can be compared.")
    notes += [
        f"{cell.name}: left out, {PREDICTED_FILE} has no such allocation."
        for cell in dataset.finished
        if cell.allocation not in dataset.allocations
    ]
    for name in dataset.allocations:
        notes += _notes_of(dataset, name)
    return notes


def _notes_of(dataset: _Dataset, name: str) -> list[str]:
    """Say what is missing of an allocation, what failed, and what should be known of the rest."""
    own = f"{dataset.name} {name}"
    runs = [run for cell, run in dataset.finished.items() if cell.allocation == name]
    missing = open_cells(dataset.name, name, dataset.finished)
    notes = []
    if missing:
        first = missing[0].seed == SEEDS[0]
        rates = ", ".join(f"{cell.learning_rate:g}" for cell in missing)
        seeds = " and ".join(f"seed {cell.seed}" for cell in missing)
        told = f"learning rates {rates} of seed {SEEDS[0]}, then the other seeds" if first else seeds
        notes.append(f"{own}: still to be trained: {told}.")
    notes += [f"{run.cell.name}: {run.failure}" for run in runs if run.failure is not None]
    rate = chosen_rate(dataset.name, name, dataset.finished)
    if rate in (LEARNING_RATES[0], LEARNING_RATES[-1]) and not any(cell.seed == SEEDS[0] for cell in missing):
        end = "smallest" if rate == LEARNING_RATES[0] else "largest"
        notes.append(f"{own}: the chosen learning rate {rate:g} is the {end} of those tried.")
    predicted = dataset.predicted.get(name)
    if predicted is not None and any(_settings_of(run) != _settings_of(predicted) for run in runs):
        notes.append(f"{own}: some runs have another n, k or sharing than {PREDICTED_FILE} says.")
    return notes


def _settings_of(one: FinishedRun | Allocation) -> tuple[int, int | None, str]:
    """Return n, k and sharing, or None and "full" where every item is scored."""
    if isinstance(one, Allocation):
        n, k, sharing, objective = one.batch_size, one.num_negatives, one.sharing, one.objective
    else:
        n, k = one.config.training.batch_size, one.config.objective.num_negatives
        sharing, objective = one.config.objective.sharing, one.config.objective.objective
    return (n, None, "full") if objective == "full-softmax" else (n, k, sharing)


def _horizons(dataset: _Dataset) -> dict[str, float]:
    return common_horizons([run.metrics for name in dataset.allocations for run in dataset.chosen(name)])


def _short_of_steps(dataset: _Dataset, horizons: Mapping[str, float]) -> list[str]:
    """Name the allocations that take too few steps up to the horizon of examples to have a curve there."""
    notes = []
    for name in dataset.allocations:
        runs = dataset.chosen(name)
        steps = horizons["examples"] / runs[0].config.training.batch_size if runs else _FEWEST_STEPS
        if steps < _FEWEST_STEPS:
            told = f"takes {steps:.2g} steps up to the horizon of examples; its loss there is interpolated."
            notes.append(f"{dataset.name} {name}: {told}")
    return notes


def _run_rows(dataset: _Dataset, horizons: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        _run_row(run, horizons)
        for name in dataset.allocations
        for cell, run in dataset.finished.items()
        if cell.allocation == name
    ]


def _run_row(run: FinishedRun, horizons: Mapping[str, float]) -> dict[str, Any]:
    n, k, sharing = _settings_of(run)
    last = run.metrics.row(-1, named=True)
    row = {
        "dataset": run.cell.dataset,
        "allocation": run.cell.allocation,
        "batch_size": n,
        "num_negatives": k,
        "sharing": sharing,
        "learning_rate": run.config.optimizer.learning_rate,
        "seed": run.config.training.seed,
        "steps": last["step"],
        "examples": last["examples"],
        "seconds": last["seconds"],
        "evaluations": len(run.metrics),
        "peak_bytes": last["peak_bytes"],
    }
    if run.failure is not None:
        return row | dict.fromkeys(MEASURES) | {"failure": run.failure}
    for axis in ("seconds", "examples"):
        places, losses = _curve(run.metrics, axis)
        reached = places[-1] >= horizons[axis]
        row[f"mean_loss_over_{axis}"] = mean_loss(places, losses, horizons[axis]) if reached else None
    row |= {"ndcg@10": last["ndcg@10"], "val_loss": last["val_loss"]}
    return row | {"aul_steps": area(*_curve(run.metrics, "steps")), "failure": None}


def _curve(metrics: pl.DataFrame, axis: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return metrics[AXES[axis]].cast(pl.Float64).to_numpy(), metrics["val_loss"].to_numpy()


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean; one value has none.

    >>> standard_error([1.0, 2.0, 3.0])  # 1 / sqrt(3)
    0.5773502691896258
    """
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _summarise(dataset: _Dataset, runs: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for name in dataset.allocations:
        seeds = [run.cell.seed for run in dataset.chosen(name)]
        if not seeds:
            continue
        rate = chosen_rate(dataset.name, name, dataset.finished)
        own = runs.filter(
            pl.col("allocation") == name, pl.col("learning_rate") == rate, pl.col("seed").is_in(seeds)
        )
        first = own.row(0, named=True)
        row = {key: first[key] for key in ("dataset", "allocation", "batch_size", "num_negatives", "sharing")}
        row |= {"learning_rate": rate, "seeds": len(own)}
        row |= {key: float(np.mean(own[key].to_list())) for key in ("steps", "examples")}
        for measure in MEASURES:
            values = own[measure].to_list()
            row |= {measure: float(np.mean(values)), f"{measure}_error": standard_error(values)}
        predicted = dataset.predicted.get(name)
        row["step_seconds"] = float(np.sum(own["seconds"].to_list())) / sum(own["steps"].to_list())
        row["predicted_step_seconds"] = predicted and predicted.step_seconds
        row["predicted_score"] = predicted and predicted.score
        rows.append(row)
    frame = pl.DataFrame(rows, schema=_SUMMARY_SCHEMA)
    ranks = {"predicted_rank": ("predicted_score", 1)}
    ranks |= {f"rank_{measure}": (measure, sign) for measure, sign in JUDGED.items()}
    return frame.with_columns(
        (sign * pl.col(name)).rank("min").cast(pl.Int64).alias(rank) for rank, (name, sign) in ranks.items()
    )


_SUMMARY_SCHEMA = {
    "dataset": pl.String,
    "allocation": pl.String,
    "batch_size": pl.Int64,
    "num_negatives": pl.Int64,
    "sharing": pl.String,
    "learning_rate": pl.Float64,
    "seeds": pl.Int64,
    "steps": pl.Float64,
    "examples": pl.Float64,
    **{f"{measure}{end}": pl.Float64 for measure in MEASURES for end in ("", "_error")},
    "step_seconds": pl.Float64,
    "predicted_step_seconds": pl.Float64,
    "predicted_score": pl.Float64,
}

_VERDICT_SCHEMA = {
    "dataset": pl.String,
    "measure": pl.String,
    "best": pl.String,
    "plan": pl.String,
    "behind": pl.Float64,
    "standard_error": pl.Float64,
    "verdict": pl.String,
}


def judge_plan(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Say for each measure by how much the plan is behind the best of one dataset, in the measure's unit."""
    plans = summary.filter(pl.col("allocation").str.starts_with("planned-"))
    if plans.is_empty():
        return []
    plan = plans.row(0, named=True)
    rows = []
    for measure, sign in JUDGED.items():
        best = summary.sort(sign * pl.col(measure)).row(0, named=True)
        behind, error = sign * (plan[measure] - best[measure]), best[f"{measure}_error"]
        rows.append(
            {
                "dataset": plan["dataset"],
                "measure": measure,
                "best": best["allocation"],
                "plan": plan["allocation"],
                "behind": behind,
                "standard_error": error,
                "verdict": verdict(behind, error),
            }
        )
    return rows


def verdict(behind: float, error: float | None) -> str:
    """Judge a distance from the best by the standard error of the best.

    >>> verdict(0.0, None), verdict(0.1, 0.2), verdict(0.3, 0.2), verdict(0.3, None)
    ('best', 'within one standard error', 'behind', 'not known yet')
    """
    if behind <= 0:
        return "best"
    if error is None:
        return "not known yet"
    return "within one standard error" if behind <= error else "behind"


_CORRELATION_SCHEMA = {
    "dataset": pl.String,
    "measure": pl.String,
    "allocations": pl.Int64,
    "spearman": pl.Float64,
}


def correlate(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return Spearman's correlation of the predicted score with each measure, above 0 where they agree."""
    known = summary.filter(pl.col("predicted_score").is_not_null())
    return [
        {
            "dataset": summary["dataset"][0],
            "measure": measure,
            "allocations": len(known),
            "spearman": rank_correlation(
                known["predicted_score"].to_list(), (sign * known[measure]).to_list()
            ),
        }
        for measure, sign in JUDGED.items()
    ]


_PAIR_SCHEMA = {
    "dataset": pl.String,
    "allocation": pl.String,
    "examples": pl.Float64,
    **{f"{whose}_loss{end}": pl.Float64 for whose in ("plan", "own") for end in ("", "_error")},
}


def _pair_up(dataset: _Dataset) -> list[dict[str, Any]]:
    """Compare the plan with each other allocation over the examples that the two have reached."""
    plan = next((name for name in dataset.allocations if name.startswith("planned-")), None)
    planned = dataset.chosen(plan) if plan is not None else []
    rows = []
    for name in dataset.allocations:
        rivals = dataset.chosen(name)
        if name == plan or not planned or not rivals:
            continue
        horizon = common_horizons([run.metrics for run in (*planned, *rivals)])["examples"]
        row = {"dataset": dataset.name, "allocation": name, "examples": horizon}
        for whose, runs in (("plan", planned), ("own", rivals)):
            losses = [mean_loss(*_curve(run.metrics, "examples"), horizon) for run in runs]
            row |= {f"{whose}_loss": float(np.mean(losses)), f"{whose}_loss_error": standard_error(losses)}
        rows.append(row)
    return rows


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None where there are fewer than three pairs, or no order.

    >>> rank_correlation([1, 2, 3, 4], [10, 30, 20, 40])  # 1 - 6 * 2 / (4 * 15)
    0.8
    """
    if len(first) < 3 or len({*first}) == 1 or len({*second}) == 1:
        return None
    return round(float(stats.spearmanr(first, second).statistic), 12)


def _mean_curves(dataset: _Dataset) -> pl.DataFrame:
    """Average the loss over seeds at places that all of an allocation's runs reach, linear between them."""
    frames = []
    for name in dataset.allocations:
        curves = [run.metrics for run in dataset.chosen(name)]
        for axis in ("seconds", "examples") if curves else ():
            end = min(float(_curve(curve, axis)[0][-1]) for curve in curves)
            places = np.append(0.0, np.geomspace(end / _CURVE_SPAN, end, _CURVE_POINTS))
            losses = np.mean([np.interp(places, *_curve(curve, axis)) for curve in curves], axis=0)
            frames.append(
                pl.DataFrame({"place": places, "val_loss": losses}).select(
                    pl.lit(dataset.name).alias("dataset"),
                    pl.lit(name).alias("allocation"),
                    pl.lit(axis).alias("axis"),
                    "place",
                    "val_loss",
                )
            )
    return pl.concat(frames)
