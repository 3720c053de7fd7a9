"""The paper's main table: SASRec with (n, k) of one budget, and the fair version beside it.

To the paper's allocations comes the planner's for the same way of sharing. Each is trained with both
optimisers, vanilla and corrected, with negatives shared by the batch and drawn for each sequence. The
learning rate of a configuration is the one of the paper's grid with the best validation NDCG@10 (on the first
seed alone, except at the paper's scale); the other seeds follow with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.allocation import Allocation
from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import DataError
from budgetrec.evaluation.curves import common_horizons, summarise_curve
from budgetrec.planner.plan import Plan
from budgetrec.planner.planning import plan as make_plan
from budgetrec.planner.request import PlanOptions
from budgetrec.settings.sections import RunConfig
from budgetrec.study.engine.datasets import open_datasets
from budgetrec.study.engine.frame import PLANS as PLANS_FOLDER
from budgetrec.study.engine.frame import Findings, Request, Study
from budgetrec.study.engine.grid import Cell, Outcome, Stage, Stages, went_well
from budgetrec.study.engine.scale import Scale
from budgetrec.study.engine.training import training_cell
from budgetrec.study.table.comparisons import SHARINGS
from budgetrec.study.table.findings import describe
from budgetrec.theory.paper.published import ALLOCATIONS, LEARNING_RATES, OPTIMIZERS

VERSION = 2
LOSSES = {"vanilla": "none", "corrected": "theorem"}
_ROW = (
    *("dataset", "optimizer", "loss", "sharing", "batch_size", "num_negatives", "source"),
    *("lean", "micro_batches", "table_updates"),
)
_CURVE = ("step", "examples", "seconds", "val_loss", "ndcg@10")


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The size of the study: settings of every run, some by dataset, seeds and rates."""

    settings: Mapping[str, Any]
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pairs: Sequence[tuple[int, int]] = ALLOCATIONS  # (n, k)
    num_seeds: int = 5
    most_rates: int | None = None
    tuning_seeds: int = 1
    memory: str = "512MiB"  # that the planner may use
    warm_up_targets: int = 200_000  # 0 plans by what is assumed instead of measured

    def run_settings(self, dataset: str) -> dict[str, Any]:
        """Return what all runs on a dataset share."""
        return {**self.settings, **self.by_dataset.get(dataset, {})}

    def rates(self, dataset: str, optimizer: str) -> tuple[float, ...]:
        """Return the paper's grid; data that the paper has not gets that of MovieLens-1M."""
        grid = LEARNING_RATES.get((dataset, optimizer)) or LEARNING_RATES["MovieLens-1M", optimizer]
        return grid[-self.most_rates :] if self.most_rates else grid


_SASREC = {"model": "sasrec", "num_blocks": 2, "num_heads": 2, "dropout": 0.2}
PLANS = {
    Scale.SMOKE: TablePlan(
        settings={"dim": 8, "num_blocks": 1, "num_heads": 1, "max_length": 8, "epochs": 2},
        pairs=((8, 32), (32, 8)),
        num_seeds=2,
        most_rates=1,
        warm_up_targets=0,
    ),
    Scale.SMALL: TablePlan(
        settings={
            **_SASREC,
            "dim": 32,
            "num_blocks": 1,
            "num_heads": 1,
            "max_length": 32,
            "validation_users": 500,
            "epochs": 8,
        },
        by_dataset={"Gowalla": {"windows": "all"}},
        num_seeds=3,
    ),
    Scale.PAPER: TablePlan(
        settings={**_SASREC, "dim": 64, "max_length": 200, "validation_users": 10_000},
        by_dataset={
            "MovieLens-1M": {"epochs": 100},
            "Gowalla": {"epochs": 50},
            "Netflix": {"epochs": 10},
            "MovieLens-20M": {"epochs": 10},
        },
        num_seeds=5,
        tuning_seeds=5,
    ),
}


def planned_allocation(
    plan: TablePlan, name: str, dataset: Dataset, sharing: str, folder: Path
) -> Allocation:
    """Ask the planner, for a way of sharing and the plan's bytes; what it answers is kept for reruns."""
    path = folder / PLANS_FOLDER / f"{name}-{dataset.identity[:8]}-{sharing}.toml"
    settings = plan.run_settings(name)
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        _plan(plan, dataset, settings, sharing).write(path)
    chosen = Plan.read(path).allocation
    most = TrainingBatches(
        dataset,
        batch_size=1,
        max_length=settings["max_length"],
        windows=settings.get("windows", "last"),
    ).num_sequences
    return replace(chosen, batch_size=min(chosen.batch_size, most))


def _plan(plan: TablePlan, dataset: Dataset, settings: Mapping[str, Any], sharing: str) -> Plan:
    config = RunConfig().replaced({**settings, "optimizer": "adam"})
    options = PlanOptions(objective="sampled-softmax", sharing=sharing, warm_up_targets=plan.warm_up_targets)
    if plan.warm_up_targets:
        config = config.replaced({"threads": 1})
        return make_plan(dataset, memory=plan.memory, config=config, options=options)
    # Nothing is measured, so that every run of the study plans alike.
    mean = dataset.info["statistics"]["mean_length"]
    return make_plan(
        memory=plan.memory, config=config, options=options, num_items=dataset.num_items, mean_length=mean
    )


@dataclass(frozen=True, kw_only=True)
class TableSetup:
    """What is compared: everything of a run but its learning rate and seed; `source` chose the allocation."""

    dataset: str
    optimizer: str
    loss: str
    source: str
    allocation: Allocation

    @property
    def row(self) -> dict[str, Any]:
        """Everything about it by the names of columns."""
        everything = asdict(self) | asdict(self.allocation)
        return {name: everything[name] for name in _ROW}


def configurations(plan: TablePlan, datasets: Mapping[str, Dataset], folder: Path) -> list[TableSetup]:
    """List every configuration of the study: the paper's allocations, and the planner's."""
    found = []
    for name, dataset in datasets.items():
        planned = {each: planned_allocation(plan, name, dataset, each, folder) for each in SHARINGS}
        for optimizer, loss, sharing in product(OPTIMIZERS, LOSSES, SHARINGS):
            paper = [Allocation(batch_size=n, num_negatives=k, sharing=sharing) for n, k in plan.pairs]
            found += [
                TableSetup(dataset=name, optimizer=optimizer, loss=loss, source=source, allocation=each)
                for source, several in (("paper", paper), ("budgetrec plan", [planned[sharing]]))
                for each in several
            ]
    return found


def make_cell(
    plan: TablePlan, configuration: TableSetup, dataset: Dataset, *, rate: float, seed: int
) -> Cell:
    """Describe one run."""
    allocation = configuration.allocation.settings
    del allocation["objective"]  # the default of every run, and not in the keys of cells
    run = {
        **plan.run_settings(configuration.dataset),
        "optimizer": configuration.optimizer,
        "learning_rate": rate,
        "correction": LOSSES[configuration.loss],
        **allocation,
        "seed": seed,
    }
    return training_cell(
        "table",
        VERSION,
        "budgetrec.study.table.cells:train_cell",
        dataset=dataset.identity,
        place=str(dataset.folder),
        run=run,
    )


def count(request: Request) -> int:
    """Count cells, those that are looked up again included."""
    plan, names = PLANS[request.scale], list(request.data) or ["generated"]
    per_rate = len(LOSSES) * len(SHARINGS) * (len(plan.pairs) + 1)
    return sum(
        per_rate * (len(plan.rates(name, optimizer)) * plan.tuning_seeds + plan.num_seeds)
        for name in names
        for optimizer in OPTIMIZERS
    )


def stages(request: Request, folder: Path) -> Stages[Findings]:
    """Choose learning rates on the first seed, run the other seeds, and compare."""
    plan, datasets = PLANS[request.scale], open_datasets(request, folder)
    everything = configurations(plan, datasets, folder)
    seeds = range(request.seed, request.seed + plan.num_seeds)
    tried = [
        (each, rate, seed)
        for each in everything
        for rate in plan.rates(each.dataset, each.optimizer)
        for seed in seeds[: plan.tuning_seeds]
    ]
    cells = [
        make_cell(plan, each, datasets[each.dataset], rate=rate, seed=seed) for each, rate, seed in tried
    ]
    best = _best_rates(tried, (yield Stage(cells)))
    chosen = [(each, seed) for each in best for seed in seeds]
    cells = [
        make_cell(plan, each, datasets[each.dataset], rate=best[each], seed=seed) for each, seed in chosen
    ]
    outcomes = yield Stage(cells)
    runs = [
        (each, seed, outcome)
        for (each, seed), outcome in zip(chosen, outcomes, strict=True)
        if went_well(outcome)
    ]
    if not runs:
        raise DataError("no run of the table has ended well. Look into cells/*.failed.json.")
    ends = {
        each: rate in (min(grid), max(grid))
        for each, rate in best.items()
        for grid in [plan.rates(each.dataset, each.optimizer)]
    }
    horizons = _horizons(runs)
    rows = [
        {
            **each.row,
            "learning_rate": best[each],
            "rate_at_end": ends[each],
            "seed": seed,
            "test_ndcg": outcome.values["test_ndcg"],
            "test_ndcg_last": outcome.values["test_ndcg_last"],
            **summarise_curve(_frame(outcome), horizons[each.dataset]),
            "seconds": outcome.measured["seconds"][-1],
        }
        for each, seed, outcome in runs
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return describe(plan, request, datasets, frame, _curves(runs), horizons)


def _best_rates(
    tried: Sequence[tuple[TableSetup, float, int]], outcomes: Sequence[Outcome | None]
) -> dict[TableSetup, float]:
    """Return the rate with the best validation NDCG@10, the mean over seeds; what diverged counts as 0."""
    scores: dict[TableSetup, dict[float, float]] = {}
    for (each, rate, _), outcome in zip(tried, outcomes, strict=True):
        rates = scores.setdefault(each, {})
        rates.setdefault(rate, 0.0)
        if went_well(outcome):
            rates[rate] += max(outcome.values["curve"]["ndcg@10"])
    return {
        each: max(rates, key=lambda rate: rates[rate])
        for each, rates in scores.items()
        if any(rates.values())
    }


_Run = tuple[TableSetup, int, Outcome]


def _frame(outcome: Outcome) -> pl.DataFrame:
    return pl.DataFrame({**outcome.values["curve"], "seconds": outcome.measured["seconds"]})


def _horizons(runs: Sequence[_Run]) -> dict[str, dict[str, float]]:
    """Return for each dataset and axis how far all runs on it go."""
    by_dataset: dict[str, list[pl.DataFrame]] = {}
    for each, _, outcome in runs:
        by_dataset.setdefault(each.dataset, []).append(_frame(outcome))
    return {name: common_horizons(frames) for name, frames in by_dataset.items()}


def _curves(runs: Sequence[_Run]) -> pl.DataFrame:
    """Return the curves of every configuration, averaged over its seeds."""
    frames = [
        _frame(outcome)
        .with_columns(**{name: pl.lit(value) for name, value in each.row.items()})
        .with_row_index("evaluation")
        for each, _, outcome in runs
    ]
    names = [*runs[0][0].row, "evaluation"]
    return (
        pl.concat(frames, how="vertical_relaxed")
        .group_by(names, maintain_order=True)
        .agg(pl.col(name).cast(pl.Float64).mean() for name in _CURVE)
    )


STUDY = Study(name="table", count=count, stages=stages)
