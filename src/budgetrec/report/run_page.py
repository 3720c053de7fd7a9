"""The page of one run: what was run, its plan, its curves, how good it is, and with what."""

import shlex
from dataclasses import dataclass
from typing import Any

import polars as pl

from budgetrec.evaluation.evaluate import LOSSES
from budgetrec.evaluation.tables import MEASURES, how_measured
from budgetrec.report.charts import colour, curve, curves_chart
from budgetrec.report.page import Chart, render
from budgetrec.report.plan_view import view_plan
from budgetrec.report.records import PLAN_FILE, RunRecord, number
from budgetrec.report.tables import Cell, Column, Table, frame_table
from budgetrec.report.words import as_bytes, as_number, as_seconds, as_share, as_text, label

MODEL_NAMES = {"sasrec": "SASRec", "bert4rec": "BERT4Rec"}
_LOSS_CURVES = {"val_loss": "validation loss", "train_loss": "training loss"}
_QUALITY = "ndcg@10"
_USERS_SHOWN, _ITEMS_SHOWN = 3, 5


@dataclass(frozen=True)
class Figure:
    """A number that is worth large print, and what stands below it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """A chart under its title; `chart` counts the charts of the page."""

    title: str
    chart: int


@dataclass(frozen=True)
class Switch:
    """A curve that can be switched off, with its colour."""

    name: str
    colour: str


def run_page(run: RunRecord) -> str:
    """Give the whole page of a run."""
    peak = run.metrics["peak_bytes"].max() if "peak_bytes" in run.metrics.columns else None
    peak_bytes = float(peak) if isinstance(peak, int | float) else None
    plan = None
    if run.plan is not None:
        plan = view_plan(run.plan, source=run.folder / PLAN_FILE, peak_bytes=peak_bytes)
    charts, panels, switches = _curves(run.metrics)
    return render(
        "run.html",
        charts=charts,
        title=f"{_model_name(run)} on {run.dataset['name']}",
        subtitle=_subtitle(run),
        figures=_figures(run, peak_bytes),
        plan=plan,
        panels=panels,
        switches=switches,
        evaluations_taken=frame_table(run.metrics, title="Every evaluation") if len(run.metrics) else None,
        evaluations=[
            (part, _evaluation_table(found, run), _how(part, found))
            for part, found in run.evaluations.items()
        ],
        recommendations=_recommendations(run.recommendations),
        statistics=_pairs(run.dataset["statistics"]),
        dataset=run.dataset,
        settings={section: _pairs(values) for section, values in run.settings.items()},
        environment=_environment(run.environment),
        command=_command(run.environment),
        run=run,
    )


def _model_name(run: RunRecord) -> str:
    name = run.settings["model"].get("model", "model")
    return MODEL_NAMES.get(name, str(name))


def _subtitle(run: RunRecord) -> str:
    model = run.settings["model"]
    told = [
        f"{key.replace('_', ' ')} {as_text(key, model[key])}"
        for key in ("dim", "num_blocks", "max_length")
        if key in model
    ]
    statistics = run.dataset["statistics"]
    told += [
        f"{as_text(key, statistics[key])} {key}"
        for key in ("users", "items", "interactions")
        if key in statistics
    ]
    return " · ".join(told)


def _figures(run: RunRecord, peak_bytes: float | None) -> list[Figure]:
    figures = []
    test = run.evaluations.get("test")
    source = run.folder / "evaluation-test.json"
    if test is not None and (mean := number(test, _QUALITY, source)) is not None:
        figures.append(Figure("test NDCG@10", f"{mean:.4f}", _interval(test, _QUALITY)))
    if len(run.metrics):
        last = run.metrics.row(-1, named=True)
        best = _best(run.metrics)
        if best is not None and test is None:
            figures.append(Figure("best validation NDCG@10", f"{best[1]:.4f}", f"at step {best[0]:,}"))
        loss = last["val_loss"]
        figures.append(Figure("validation loss", "" if loss is None else f"{loss:.4f}", "at the last step"))
        if peak_bytes is not None:
            budget = number(run.plan, "budget_bytes", run.folder / PLAN_FILE) if run.plan else None
            note = f"{as_share(peak_bytes / budget)} of {as_bytes(budget)}" if budget else "no budget given"
            figures.append(Figure("peak memory", as_bytes(peak_bytes), note))
        speed = f"{last['examples'] / last['seconds']:,.0f} sequences a second" if last["seconds"] else ""
        figures.append(Figure("training time", as_seconds(last["seconds"]), speed))
        figures.append(Figure("steps", as_number(last["step"]), f"{as_number(last['examples'])} sequences"))
    return figures


def _best(metrics: pl.DataFrame) -> tuple[int, float] | None:
    if _QUALITY not in metrics.columns:
        return None
    kept = metrics.filter(pl.col(_QUALITY).is_finite())
    if kept.is_empty():
        return None
    row = kept.sort(_QUALITY, descending=True, maintain_order=True).row(0, named=True)
    return row["step"], row[_QUALITY]


def _curves(metrics: pl.DataFrame) -> tuple[list[Chart], list[Panel], list[Switch]]:
    names = {key: name for key, name in _LOSS_CURVES.items() if key in metrics.columns}
    if metrics.is_empty():
        return [], [], []
    panels = {"Loss": names}
    if _QUALITY in metrics.columns:
        panels["Validation NDCG@10"] = {_QUALITY: "validation NDCG@10"}
    everything = [name for part in panels.values() for name in part.values()]
    charts = []
    for title, part in panels.items():
        curves = pl.concat([curve(metrics, key, name=name) for key, name in part.items()])
        charts.append(curves_chart(curves, names=everything, title=title))
    return (
        charts,
        [Panel(title, place) for place, title in enumerate(panels)],
        [Switch(name, colour(place)) for place, name in enumerate(everything)],
    )


def _evaluation_table(found: dict[str, Any], run: RunRecord) -> Table:
    """Give a row a measure and a column a cut-off, the interval below the mean."""
    cutoffs = [each for each in found.get("cutoffs", []) if isinstance(each, int)]
    part = str(found.get("part", "test"))
    columns = [
        Column("metric", numeric=False),
        *(Column(f"@{cutoff}") for cutoff in cutoffs),
        Column("all items"),
    ]
    rows = []
    for measure in (*MEASURES, LOSSES.get(part, "test_loss")):
        names = [*(f"{measure}@{cutoff}" for cutoff in cutoffs), measure]
        cells = [_mean_cell(found, name, run) for name in names]
        if any(cell.text for cell in cells):
            rows.append([Cell(label(measure)), *cells])
    return Table(columns, rows)


def _mean_cell(found: dict[str, Any], name: str, run: RunRecord) -> Cell:
    mean = number(found, name, run.folder / "the evaluation")
    return Cell("") if mean is None else Cell(f"{mean:.4f}", mean, _interval(found, name))


def _interval(found: dict[str, Any], name: str) -> str:
    intervals = found.get("intervals")
    ends = intervals.get(name) if isinstance(intervals, dict) else None
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        return ""
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _how(part: str, found: dict[str, Any]) -> str:
    users = found.get("num_users")
    counted = f" Averages over {users:,} users, 95% intervals below." if isinstance(users, int) else ""
    return how_measured(part, keep_seen=found.get("keep_seen") is True) + counted


def _recommendations(frame: pl.DataFrame | None) -> Table | None:
    """Give the lists of the first few users."""
    if frame is None or frame.is_empty():
        return None
    if "user" in frame.columns:
        users = frame["user"].unique(maintain_order=True).head(_USERS_SHOWN)
        frame = frame.filter(pl.col("user").is_in(users.implode()))
        frame = frame.group_by("user", maintain_order=True).head(_ITEMS_SHOWN)
    words = [name for name in ("user", "item") if name in frame.columns]
    return frame_table(frame.with_columns(pl.col(words).cast(pl.String)))


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += [(f"{label(name)} {each}", text) for each, text in _pairs(value)]
        else:
            pairs.append((label(name), as_text(name, value)))
    return pairs


def _environment(environment: dict[str, Any] | None) -> list[tuple[str, str]]:
    kept = {
        name: value for name, value in (environment or {}).items() if name != "command" and value is not None
    }
    return _pairs(kept)


def _command(environment: dict[str, Any] | None) -> str:
    command = (environment or {}).get("command")
    return shlex.join(str(part) for part in command) if isinstance(command, list) else ""
