"""Compare runs: over horizons they share, paired over users, and paired over seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, DataError
from budgetrec.evaluation.curves import AXES, common_horizons, summarise_curve
from budgetrec.evaluation.evaluate import LOSSES, Evaluation, evaluate
from budgetrec.evaluation.intervals import Difference, compare_seeds, compare_users, t_interval
from budgetrec.runs.run import Run, features_hash

# What is tested; the loss of the part comes last.
TESTED = ("ndcg@10", "hit_rate@10", "mrr")


@dataclass(frozen=True)
class Comparison:
    """Several runs on one part of one dataset, as tables.

    `runs` has a row for each run with its metrics and its mean losses up to the common `horizons`; `users`
    compares each run with the first, paired over users; `seeds` has a row for each metric of each group of
    runs that differ in their seed alone, compared with the first group where they share two seeds, and is
    empty if no group has two runs; `curves` has all evaluations of all runs, for figures.
    """

    part: str
    keep_seen: bool
    horizons: dict[str, float]
    runs: pl.DataFrame
    users: pl.DataFrame
    seeds: pl.DataFrame
    curves: pl.DataFrame

    def to_dict(self) -> dict[str, object]:
        """Return the tables for JSON."""
        return {
            "part": self.part,
            "ties": "pessimistic",
            "keep_seen": self.keep_seen,
            "horizons": self.horizons,
            "runs": self.runs.to_dicts(),
            "users": self.users.to_dicts(),
            "seeds": self.seeds.to_dicts(),
        }


@dataclass(frozen=True)
class _Entry:
    """What is kept of a run once it has been evaluated; its weights are not."""

    name: str
    folder: Path
    seed: int
    settings: dict[str, Any]  # all but the seed
    dataset: str  # its identity
    metrics: pl.DataFrame
    evaluation: Evaluation

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return the per-user values of a metric."""
        column = "loss" if metric == LOSSES[self.evaluation.part] else metric
        return self.evaluation.per_user[column].to_numpy()


def compare(
    runs: Sequence[Run | Path | str],
    *,
    part: str = "test",
    keep_seen: bool | None = None,
    dataset: Dataset | Path | str | None = None,
    seed: int = 0,
    device: str = "cpu",
    report: Callable[[str], None] = lambda stage: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Evaluate runs of one dataset and compare them, users and seeds paired; the first is the baseline.

    A run is opened, evaluated and freed before the next, so memory holds one model at a time. The `seed` is
    of the bootstrap; `dataset` says where the data is now if it has moved. Of runs with the same settings and
    the same seed the first stands for its seed. Whether items of a user's history are left out is what the
    first run does, if `keep_seen` does not say.
    """
    if len(runs) < 2:
        raise ArgumentError("a comparison needs two runs or more. Pass another one, or use evaluate.")
    _check_each_once([run.folder if isinstance(run, Run) else Path(run) for run in runs])
    entries: list[_Entry] = []
    for run in runs:
        if not isinstance(run, Run):
            report(f"opening {run}")
            run = Run.open(run, dataset=dataset, device=device)
        keep_seen = run.keep_seen if keep_seen is None else keep_seen
        entry = _enter(run, part=part, keep_seen=keep_seen, seed=seed, report=report, progress=progress)
        _check_same_data(entries[0] if entries else entry, entry)
        entries.append(entry)
    entries = _with_own_names(entries)
    report("comparing")
    horizons = common_horizons([entry.metrics for entry in entries])
    metrics = [*TESTED, LOSSES[part]]
    return Comparison(
        part=part,
        keep_seen=entries[0].evaluation.keep_seen,
        horizons=horizons,
        runs=_table_of_runs(entries, horizons),
        users=_table_of_users(entries, metrics, seed=seed),
        seeds=_table_of_seeds(entries, metrics, horizons),
        curves=_table_of_curves(entries),
    )


def _check_each_once(folders: list[Path]) -> None:
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise ArgumentError(f"{folders[place]} was passed twice. Pass each run once.")


def _enter(
    run: Run,
    *,
    part: str,
    keep_seen: bool,
    seed: int,
    report: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> _Entry:
    evaluation = evaluate(
        run,
        part=part,
        keep_seen=keep_seen,
        seed=seed,
        report=lambda stage: report(f"{run.name}: {stage}"),
        progress=progress,
    )
    flat = {
        key: value
        for section in run.config.to_dict().values()
        for key, value in section.items()  # no two sections share a name
        if key != "seed"
    }
    if run.features is not None:
        flat["item_features"] = features_hash(run.features)[:8]
    return _Entry(
        name=run.name,
        folder=run.folder,
        seed=run.config.training.seed,
        settings=flat,
        dataset=run.source.identity,
        metrics=run.metrics,
        evaluation=evaluation,
    )


def _check_same_data(first: _Entry, other: _Entry) -> None:
    columns = ["user", "item"]
    same = first.evaluation.per_user.select(columns).equals(other.evaluation.per_user.select(columns))
    if first.dataset != other.dataset or not same:
        raise DataError(
            f"{first.folder} and {other.folder} were trained on different datasets, so their users cannot be "
            "paired. Compare runs of one prepared dataset."
        )


def _with_own_names(entries: list[_Entry]) -> list[_Entry]:
    """Call runs by their folder's name, or by its whole path where two have the same name."""
    names = [entry.name for entry in entries]
    if len(set(names)) == len(names):
        return entries
    return [_Entry(**{**vars(entry), "name": str(entry.folder)}) for entry in entries]


def _table_of_runs(entries: list[_Entry], horizons: dict[str, float]) -> pl.DataFrame:
    varied = _varied(entries)
    rows = []
    for entry in entries:
        evaluation = entry.evaluation
        areas = summarise_curve(entry.metrics, horizons)
        training = {**evaluation.training, **areas}
        averages = {name: evaluation.metrics[name] for name in (*TESTED, LOSSES[evaluation.part])}
        others = {name: value for name, value in evaluation.metrics.items() if name not in averages}
        rows.append(
            {
                "run": entry.name,
                "settings": _described(entry, varied),
                "seed": entry.seed,
                **averages,
                **{name: value for name, value in training.items() if name not in averages},
                **others,
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def _varied(entries: list[_Entry]) -> list[str]:
    return varied_settings([entry.settings for entry in entries])


def varied_settings(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the settings in which any two runs differ."""
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({repr(own.get(name)) for own in settings}) > 1]


def _described(entry: _Entry, varied: list[str]) -> str:
    return " ".join(f"{name}={entry.settings.get(name, 'default')}" for name in varied)


def _table_of_users(entries: list[_Entry], metrics: list[str], *, seed: int) -> pl.DataFrame:
    first = entries[0]
    return pl.DataFrame(
        [
            {"run": entry.name, "against": first.name, "metric": metric, **_fields(difference, "users")}
            for entry in entries[1:]
            for metric in metrics
            for difference in [compare_users(first.values(metric), entry.values(metric), seed=seed)]
        ]
    )


def _fields(difference: Difference, unit: str) -> dict[str, float | int]:
    return {
        "difference": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "p_value": difference.p_value,
        unit: difference.count,
    }


_SEEDS_SCHEMA = {
    "group": pl.String,
    "settings": pl.String,
    "seeds": pl.Int64,
    "metric": pl.String,
    "mean": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "difference": pl.Float64,
    "difference_low": pl.Float64,
    "difference_high": pl.Float64,
    "p_value": pl.Float64,
    "pairs": pl.Int64,
}


def _table_of_seeds(entries: list[_Entry], metrics: list[str], horizons: dict[str, float]) -> pl.DataFrame:
    groups: dict[str, list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(json.dumps(entry.settings, sort_keys=True, default=str), []).append(entry)
    varied = _varied(entries)
    names = [*metrics, *(f"mean_loss_over_{axis}" for axis in AXES)]
    rows: list[dict[str, Any]] = []
    if all(len({entry.seed for entry in group}) < 2 for group in groups.values()):
        return pl.DataFrame(schema=_SEEDS_SCHEMA)
    by_seed = [_values_by_seed(group, horizons) for group in groups.values()]
    for values, group in zip(by_seed, groups.values(), strict=True):
        for metric in names:
            ours = {seed: each[metric] for seed, each in values.items()}
            base = {seed: each[metric] for seed, each in by_seed[0].items()}
            mean = float(np.mean(list(ours.values())))
            interval = t_interval(np.array(list(ours.values()))) if len(ours) > 1 else None
            difference = compare_seeds(base, ours) if values is not by_seed[0] else None
            rows.append(
                {
                    "group": group[0].name,
                    "settings": _described(group[0], varied),
                    "seeds": len(ours),
                    "metric": metric,
                    "mean": mean,
                    "low": interval and interval.low,
                    "high": interval and interval.high,
                    "difference": difference and difference.mean,
                    "difference_low": difference and difference.low,
                    "difference_high": difference and difference.high,
                    "p_value": difference and difference.p_value,
                    "pairs": difference and difference.count,
                }
            )
    return pl.DataFrame(rows, schema=_SEEDS_SCHEMA)


def _values_by_seed(group: list[_Entry], horizons: dict[str, float]) -> dict[int, dict[str, float]]:
    values: dict[int, dict[str, float]] = {}
    for entry in group:
        own = {**entry.evaluation.metrics, **summarise_curve(entry.metrics, horizons)}
        values.setdefault(entry.seed, own)
    return values


def _table_of_curves(entries: list[_Entry]) -> pl.DataFrame:
    columns = [*AXES.values(), "val_loss", "ndcg@10"]
    return pl.concat(
        [
            entry.metrics.select(
                pl.lit(entry.name).alias("run"), *(pl.col(name).cast(pl.Float64) for name in columns)
            )
            for entry in entries
        ]
    )
