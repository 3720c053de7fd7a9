"""The paper's timing study: seconds per epoch against k at n = 256, for each way of sharing negatives."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLACK, BLUE, GREEN, ORANGE
from budgetrec.display.tables import spread
from budgetrec.errors import DataError
from budgetrec.options import Value
from budgetrec.settings.sections import RunConfig
from budgetrec.study.engine.datasets import open_datasets
from budgetrec.study.engine.encodings import coloured
from budgetrec.study.engine.frame import Findings, Request, Study
from budgetrec.study.engine.grid import RUNS, Cell, Outcome, Stage, Stages
from budgetrec.study.engine.scale import by_scale
from budgetrec.study.engine.tabulating import Column, tabulate
from budgetrec.study.engine.training import training_cell
from budgetrec.training.loop import train
from budgetrec.training.tracking import Watcher

VERSION = 1
SHARINGS = {"batch": "shared", "sequence": "per sequence", "target": "per target"}
_MOST_GATHERED = 2**30  # bytes of item vectors that a step may gather


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """The size of the study; `settings` are those of every run."""

    batch_size: int
    num_negatives: tuple[int, ...]
    steps: int
    num_seeds: int
    settings: Mapping[str, Any]


_SASREC = {"dim": 64, "num_blocks": 2, "num_heads": 2}
PLANS = by_scale(
    TimingPlan,
    batch_size=(32, 256, 256),
    num_negatives=(
        (8, 64),
        tuple(2**power for power in range(4, 12)),
        tuple(2**power for power in range(4, 14)),
    ),
    steps=(3, 30, 50),
    num_seeds=(2, 3, 5),
    settings=(
        {"dim": 8, "num_blocks": 1, "num_heads": 1, "max_length": 8},
        {**_SASREC, "max_length": 50},
        {**_SASREC, "max_length": 200},
    ),
)
_COLUMNS: dict[str, Column] = {
    "dataset": "{dataset}",
    "negatives": lambda row: SHARINGS[row["sharing"]],
    "k": "{num_negatives}",
    "seconds an epoch": lambda row: spread(row["epoch_seconds"], row["deviation"], 3),
    "ms a step": lambda row: f"{1000 * row['step_seconds']:.2f}",
    "peak MiB of the process": lambda row: f"{row['peak_bytes'] / 2**20:,.0f}",
}


class _Stopwatch(Watcher):
    """Keeps the seconds of every step."""

    def __init__(self) -> None:
        self.seconds = [0.0]

    def step(self, *, seconds: float, **seen: float) -> None:
        """Note how long the run has trained."""
        self.seconds.append(seconds)


def measure_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Train for some steps after one to warm up, and give the seconds of each."""
    dataset, watch = Dataset.open(places["dataset"]), _Stopwatch()
    place = folder / RUNS / places["run"]
    shutil.rmtree(place, ignore_errors=True)
    own: dict[str, Value] = {"threads": 1, "device": "cpu", "validation_users": 1}
    run = train(dataset, place, RunConfig().replaced({**settings["run"], **own}), watcher=watch)
    shutil.rmtree(place)
    last, config = run.metrics.row(-1, named=True), run.config
    batches = TrainingBatches(
        dataset, batch_size=config.training.batch_size, max_length=config.model.max_length
    )
    return Outcome(
        values={"steps_per_epoch": len(batches), "targets_per_step": last["targets"] / last["step"]},
        measured={
            "step_seconds": np.diff(watch.seconds).tolist()[1:],
            "peak_bytes": int(last["peak_bytes"]),
        },
    )


def _cells(plan: TimingPlan, request: Request, dataset: Dataset) -> Iterator[Cell]:
    """Describe the runs on a dataset, without those whose steps would gather too much."""
    targets = plan.batch_size * min(plan.settings["max_length"], len(dataset.items) // dataset.num_users)
    groups = {"batch": 1, "sequence": plan.batch_size, "target": targets}
    seeds = range(request.seed, request.seed + plan.num_seeds)
    for seed, sharing, k in product(seeds, SHARINGS, plan.num_negatives):
        if groups[sharing] * k * plan.settings["dim"] * 4 > _MOST_GATHERED:
            continue
        run = {
            **plan.settings,
            "batch_size": plan.batch_size,
            "num_negatives": k,
            "sharing": sharing,
            "steps": plan.steps + 1,
            "seed": seed,
        }
        yield training_cell(
            "timing",
            VERSION,
            f"{__name__}:measure_cell",
            dataset=dataset.identity,
            place=str(dataset.folder),
            run=run,
        )


def count(request: Request) -> int:
    """Count cells if none gathers too much."""
    plan = PLANS[request.scale]
    return max(1, len(request.data)) * plan.num_seeds * len(SHARINGS) * len(plan.num_negatives)


def stages(request: Request, folder: Path) -> Stages[Findings]:
    """Measure one cell at a time, so that none disturbs another."""
    plan, datasets = PLANS[request.scale], open_datasets(request, folder)
    cells = [(name, cell) for name, dataset in datasets.items() for cell in _cells(plan, request, dataset)]
    outcomes = yield Stage([cell for _, cell in cells], alone=True)
    rows = pl.DataFrame(
        [
            _row(name, cell.settings["run"], outcome)
            for (name, cell), outcome in zip(cells, outcomes, strict=True)
            if outcome is not None
        ]
    )
    if rows.is_empty():
        raise DataError("no run of the timing study has ended well. Look into cells/*.failed.json.")
    return _describe(plan, rows)


def _row(dataset: str, run: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    step = float(np.median(outcome.measured["step_seconds"]))
    return {
        "dataset": dataset,
        **{name: run[name] for name in ("sharing", "num_negatives", "seed")},
        "step_seconds": step,
        "epoch_seconds": step * outcome.values["steps_per_epoch"],
        "targets_per_step": outcome.values["targets_per_step"],
        "peak_bytes": outcome.measured["peak_bytes"],
    }


def _describe(plan: TimingPlan, rows: pl.DataFrame) -> Findings:
    names = ["dataset", "sharing", "num_negatives"]
    results = rows.group_by(names, maintain_order=True).agg(
        pl.col("epoch_seconds").mean(),
        pl.col("epoch_seconds").std().alias("deviation"),
        pl.col("step_seconds").mean(),
        pl.col("peak_bytes").max(),
    )
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in plan.settings.items())
    return Findings(
        title=f"Seconds an epoch against k at n = {plan.batch_size}",
        text=[
            f"SASRec ({settings}), Adam, one thread; the median of {plan.steps} steps after one to warm up, "
            f"times the steps of an epoch; {plan.num_seeds} seeds, one cell at a time. Where a set for each "
            f"target would gather more than {_MOST_GATHERED // 2**20:,} MiB of item vectors a step, nothing "
            "was measured. Peak memory is that of a process which may have run other cells before.",
            "The paper reports growth faster than linear, and compares k <= n for that reason.",
        ],
        tables={"timing": ("Mean over seeds", tabulate(results, _COLUMNS, num_words=2))},
        frames={"runs": rows},
        charts={
            "timing": (
                f"Seconds an epoch against k; a line for each seed, and k = n = {plan.batch_size}.",
                _draw(rows, plan.batch_size),
            )
        },
        summary={"plan": asdict(plan)},
    )


def _draw(rows: pl.DataFrame, batch_size: int) -> alt.TopLevelMixin:
    data = rows.with_columns(negatives=pl.col("sharing").replace(SHARINGS))
    colours = dict(zip(SHARINGS.values(), [ORANGE, BLUE, GREEN], strict=True))
    x = alt.X(
        "num_negatives:Q",
        title="negatives k",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=data["num_negatives"].unique().sort().to_list()),
    )
    y = alt.Y("epoch_seconds:Q", title="seconds an epoch", scale=alt.Scale(type="log"))
    base = pl.DataFrame({"num_negatives": [batch_size]})
    rule = alt.Chart(base).mark_rule(color=BLACK, strokeWidth=1).encode(x="num_negatives:Q")
    panels = []
    for name in data["dataset"].unique(maintain_order=True):
        lines = alt.Chart(data.filter(dataset=name)).mark_line(point={"size": 20}, strokeWidth=1.5)
        colour = coloured("negatives", colours, title="negatives")
        lines = lines.encode(x=x, y=y, color=colour, detail="seed:N")
        panels.append(alt.layer(rule, lines).properties(width=320, height=220, title=name))
    return arranged(alt.hconcat(*panels))


STUDY = Study(name="timing", count=count, stages=stages)
