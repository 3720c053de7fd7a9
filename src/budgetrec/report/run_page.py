"""The page of one run: what was run, its plan, its curves, how good it is, and with what."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from budgetrec.display.evaluation_text import MEASURES, how_measured, what_repeats_mean
from budgetrec.display.words import as_bytes, as_number, as_seconds, as_share, as_text, label
from budgetrec.errors import DataError
from budgetrec.evaluation.evaluate import LOSSES
from budgetrec.models.registry import MODELS
from budgetrec.report.page import render
from budgetrec.report.plan_view import view_plan
from budgetrec.report.run_cells import QUALITY, environment_pairs, interval, mean_cell
from budgetrec.report.run_charts import Panels, curve, draw_panels
from budgetrec.report.sortable import Column, Entry, Table, frame_table, setting_pairs, value_cell
from budgetrec.runs.documents import number
from budgetrec.runs.environment import command_text
from budgetrec.runs.layout import METRICS_FILE, PLAN, evaluation_summary
from budgetrec.runs.record import RunRecord, training_bytes

_PANELS = {
    "Loss": {"val_loss": "validation loss", "train_loss": "training loss"},
    "Validation NDCG@10": {QUALITY: "validation NDCG@10"},
}
_USERS_SHOWN, _ITEMS_SHOWN = 3, 5


@dataclass(frozen=True)
class Figure:
    """A number that is worth large print, and what stands below it."""

    name: str
    value: str
    note: str = ""


def run_page(run: RunRecord) -> str:
    """Return the whole page of a run."""
    added = training_bytes(run.metrics)
    plan = None
    if run.plan is not None:
        plan = view_plan(run.plan, source=run.folder / PLAN, added_bytes=added)
    panels = _curves(run.metrics)
    return render(
        "run.html",
        charts=panels.charts,
        title=f"{_model_name(run)} on {run.dataset['name']}",
        subtitle=_subtitle(run),
        figures=_figures(run, added),
        plan=plan,
        panels=panels,
        evaluations_taken=frame_table(run.metrics, title="Every evaluation", source=METRICS_FILE),
        evaluations=[
            _view_evaluation(found, part, run.folder / evaluation_summary(part))
            for part, found in run.evaluations.items()
        ],
        recommendations=_recommendations(run.recommendations),
        statistics=setting_pairs(run.dataset["statistics"]),
        dataset=run.dataset,
        settings={section: setting_pairs(values) for section, values in run.settings.items()},
        environment=environment_pairs(run.environment),
        command=command_text(run.environment),
        run=run,
    )


def _model_name(run: RunRecord) -> str:
    name = run.settings["model"].get("model", "model")
    return MODELS[name].title if name in MODELS else str(name)


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


def _figures(run: RunRecord, added: float | None) -> list[Figure]:
    figures = []
    test = run.evaluations.get("test")
    source = run.folder / evaluation_summary("test")
    if test is not None and (mean := number(test, QUALITY, source)) is not None:
        figures.append(Figure("test NDCG@10", f"{mean:.4f}", _note(test, source)))
    if len(run.metrics):
        last = run.metrics.row(-1, named=True)
        best = _best(run.metrics)
        if best is not None and test is None:
            figures.append(Figure("best validation NDCG@10", f"{best[1]:.4f}", f"at step {best[0]:,}"))
        loss = last["val_loss"]
        figures.append(Figure("validation loss", "" if loss is None else f"{loss:.4f}", "at the last step"))
        if added is not None:
            budget = number(run.plan, "budget_bytes", run.folder / PLAN) if run.plan else None
            note = f"{as_share(added / budget)} of {as_bytes(budget)}" if budget else "no budget given"
            figures.append(Figure(label("training_bytes"), as_bytes(added), note))
        speed = f"{last['examples'] / last['seconds']:,.0f} sequences per second" if last["seconds"] else ""
        figures.append(Figure("training time", as_seconds(last["seconds"]), speed))
        figures.append(Figure("steps", as_number(last["step"]), f"{as_number(last['examples'])} sequences"))
    return figures


def _note(test: dict[str, Any], source: object) -> str:
    """Return the interval of the test NDCG, and what it is for new and for repeated items."""
    groups = _groups(test, source)
    values = {name: number(groups.get(name, {}), QUALITY, source) for name in ("new", "repeated")}
    known = [f"{name} {value:.4f}" for name, value in values.items() if value is not None]
    return "; ".join(part for part in (interval(test, QUALITY), ", ".join(known)) if part)


def _best(metrics: pl.DataFrame) -> tuple[int, float] | None:
    if QUALITY not in metrics.columns:
        return None
    kept = metrics.filter(pl.col(QUALITY).is_finite())
    if kept.is_empty():
        return None
    row = kept.sort(QUALITY, descending=True, maintain_order=True).row(0, named=True)
    return row["step"], row[QUALITY]


def _curves(metrics: pl.DataFrame) -> Panels:
    known = () if metrics.is_empty() else metrics.columns
    curves = {
        title: [curve(metrics, key, name=name) for key, name in part.items() if key in known]
        for title, part in _PANELS.items()
    }
    names = [name for part in _PANELS.values() for key, name in part.items() if key in known]
    return draw_panels(curves, names=names)


def _evaluation_table(found: dict[str, Any], part: str, source: object) -> Table:
    """Return one row per measure and one column per cut-off, the interval below the mean."""
    cutoffs = found.get("cutoffs", [])
    if not isinstance(cutoffs, list):
        raise DataError(f"{source} says cutoffs is {cutoffs!r}, not a list. Evaluate again, or remove it.")
    columns = [Column("metric", numeric=False), *(Column(f"@{cutoff}") for cutoff in cutoffs)]
    rows = []
    for measure in (*MEASURES, LOSSES[part]):
        names = [*(f"{measure}@{cutoff}" for cutoff in cutoffs), measure]
        cells = [mean_cell(found, name, source) for name in names]
        if any(cell.text for cell in cells):
            rows.append([Entry(label(measure)), *cells])
    return Table([*columns, Column("all items")], rows)


@dataclass(frozen=True)
class EvaluationView:
    """An evaluation as the page shows it; `apart` and `repeats` only where users have items again."""

    part: str
    how: str
    table: Table
    apart: Table | None
    repeats: str


def _view_evaluation(found: dict[str, Any], part: str, source: object) -> EvaluationView:
    groups = _groups(found, source)
    return EvaluationView(
        part=part,
        how=_how(part, found),
        table=_evaluation_table(found, part, source),
        apart=_groups_table(groups, part, source) if groups else None,
        repeats=_repeats(groups, found, source) if groups else "",
    )


def _groups(found: dict[str, Any], source: object) -> dict[str, dict[str, Any]]:
    """Return what is said of new and of repeated items apart, if there are any repeated ones."""
    groups = found.get("groups", {})
    if not isinstance(groups, dict) or not all(isinstance(each, dict) for each in groups.values()):
        raise DataError(f"{source} says groups is {groups!r}. Evaluate again, or remove it.")
    return groups if "repeated" in groups else {}


def _groups_table(groups: dict[str, dict[str, Any]], part: str, source: object) -> Table:
    names = [QUALITY, "hit_rate@10", "mrr", LOSSES[part]]
    rows = [
        [
            Entry(name),
            value_cell("users", number(group, "num_users", source)),
            *(mean_cell(group, each, source) for each in names),
        ]
        for name, group in groups.items()
    ]
    return Table([Column("items", numeric=False), Column("users"), *(Column(label(n)) for n in names)], rows)


def _repeats(groups: dict[str, dict[str, Any]], found: dict[str, Any], source: object) -> str:
    """Say what repeated items mean for the averages, where enough is known of them."""
    new, repeated = groups.get("new", {}), groups["repeated"]
    value, count = (number(repeated, name, source) for name in (QUALITY, "num_users"))
    if value is None or not count:
        return ""
    return what_repeats_mean(
        "NDCG@10",
        new=number(new, QUALITY, source),
        repeated=value,
        num_new=int(number(new, "num_users", source) or 0),
        num_repeated=int(count),
        keep_seen=found.get("keep_seen") is True,
    )


def _how(part: str, found: dict[str, Any]) -> str:
    users = found.get("num_users")
    counted = f" Averages over {users:,} users, 95% intervals below." if isinstance(users, int) else ""
    return how_measured(part, keep_seen=found.get("keep_seen") is True) + counted


def _recommendations(frame: pl.DataFrame | None) -> Table | None:
    """Return the lists of the first few users."""
    if frame is None or frame.is_empty():
        return None
    if "user" in frame.columns:
        users = frame["user"].unique(maintain_order=True).head(_USERS_SHOWN)
        frame = frame.filter(pl.col("user").is_in(users.implode()))
        frame = frame.group_by("user", maintain_order=True).head(_ITEMS_SHOWN)
    words = [name for name in ("user", "item") if name in frame.columns]
    return frame_table(frame.with_columns(pl.col(words).cast(pl.String)))
