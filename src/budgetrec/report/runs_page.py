"""The page of several runs: side by side, curves overlaid, and paired over users where they share them."""

from collections.abc import Iterator, Sequence

import polars as pl

from budgetrec.display.words import as_number, as_range, as_seconds, label
from budgetrec.evaluation.compare import TESTED, varied_settings
from budgetrec.evaluation.curves import AXES, common_horizons, summarise_curve
from budgetrec.evaluation.intervals import compare_users
from budgetrec.report.page import render
from budgetrec.report.run_cells import QUALITY, mean_cell
from budgetrec.report.run_charts import Panels, curve, draw_panels
from budgetrec.report.sortable import Column, Entry, Table, is_numeric, value_cell
from budgetrec.runs.layout import evaluation_summary
from budgetrec.runs.record import RunRecord, read_users, training_bytes

_PANELS = {"val_loss": "Validation loss", QUALITY: "Validation NDCG@10"}


def runs_page(runs: Sequence[RunRecord], *, title: str) -> str:
    """Return the page that compares runs; the first is the baseline."""
    trained = [run for run in runs if len(run.metrics)]
    panels = _curves(trained)
    curves = [run.metrics for run in trained if _has_losses(run.metrics)]
    horizons = common_horizons(curves) if curves else {}
    return render(
        "runs.html",
        charts=panels.charts,
        title=title,
        runs=_runs_table(runs, horizons),
        horizons=_ends(horizons),
        untrained=[run.name for run in runs if run not in trained],
        datasets=sorted({run.dataset["name"] for run in runs}),
        same_data=len({run.dataset["identity"] for run in runs}) == 1,
        panels=panels,
        users=_users_table(runs),
    )


def _curves(runs: Sequence[RunRecord]) -> Panels:
    curves = {
        title: [curve(run.metrics, measure, name=run.name) for run in runs if measure in run.metrics.columns]
        for measure, title in _PANELS.items()
    }
    return draw_panels(curves, names=[run.name for run in runs])


def _runs_table(runs: Sequence[RunRecord], horizons: dict[str, float]) -> Table:
    flat = [
        {key: value for section in run.settings.values() for key, value in section.items()} for run in runs
    ]
    varied = {name: is_numeric(flat, name) for name in varied_settings(flat)}
    columns = [Column("run", numeric=False)]
    columns += [Column(label(name), numeric) for name, numeric in varied.items()]
    columns += [Column("test NDCG@10"), Column("test loss"), Column("validation loss")]
    columns += [Column(f"mean loss over {axis}") for axis in horizons]
    columns += [Column("steps"), Column("seconds"), Column(label("training_bytes"))]
    rows = []
    for run, own in zip(runs, flat, strict=True):
        cells = [Entry(run.name)]
        cells += [value_cell(name, own.get(name), numeric=numeric) for name, numeric in varied.items()]
        test, source = run.evaluations.get("test", {}), run.folder / evaluation_summary("test")
        cells += [mean_cell(test, name, source) for name in (QUALITY, "test_loss")]
        rows.append([*cells, *_training_cells(run, horizons)])
    return Table(columns, rows)


def _training_cells(run: RunRecord, horizons: dict[str, float]) -> Iterator[Entry]:
    if run.metrics.is_empty():
        yield from [Entry("")] * (4 + len(horizons))
        return
    last = run.metrics.row(-1, named=True)
    means = summarise_curve(run.metrics, horizons) if _has_losses(run.metrics) else {}
    for value in (last["val_loss"], *(means.get(f"mean_loss_over_{axis}") for axis in horizons)):
        yield Entry("") if value is None else Entry(f"{value:.4f}", value)
    yield value_cell("steps", last["step"])
    yield Entry(as_seconds(last["seconds"]), last["seconds"])
    yield value_cell("training_bytes", training_bytes(run.metrics))


def _has_losses(metrics: pl.DataFrame) -> bool:
    """Say whether every loss is a number: a run that diverged has no mean loss."""
    return bool(metrics["val_loss"].cast(pl.Float64).is_finite().fill_null(False).all())


def _users_table(runs: Sequence[RunRecord]) -> Table | None:
    """Compare the runs that were tested on the users of the first, from the values that evaluate kept."""
    tested = [(run, users) for run in runs if (users := read_users(run)) is not None]
    rows = [
        [
            Entry(run.name),
            Entry("test loss" if name == "loss" else label(name)),
            Entry(f"{found.mean:+.4f}", found.mean, as_range(found.low, found.high, "+.4f")),
            Entry(f"{found.p_value:.2g}", found.p_value),
            value_cell("users", found.count),
        ]
        for run, users in tested[1:]
        if _same_task(tested[0][0], run, tested[0][1], users)
        for name in (*TESTED, "loss")
        if name in tested[0][1].columns and name in users.columns
        for found in [compare_users(tested[0][1][name].to_numpy(), users[name].to_numpy(), seed=0)]
    ]
    if not rows:
        return None
    columns = [Column("run", numeric=False), Column("metric", numeric=False), Column("difference")]
    return Table([*columns, Column("p"), Column("users")], rows, title=f"Differences to {tested[0][0].name}")


def _same_task(first: RunRecord, run: RunRecord, users: pl.DataFrame, others: pl.DataFrame) -> bool:
    columns = ["user", "item"]
    seen = [each.evaluations.get("test", {}).get("keep_seen") for each in (first, run)]
    same = first.dataset["identity"] == run.dataset["identity"] and seen[0] == seen[1]
    return same and users.select(columns).equals(others.select(columns))


def _ends(horizons: dict[str, float]) -> str:
    texts = {
        axis: as_seconds(end) if axis == "seconds" else f"{as_number(end)} {axis}"
        for axis, end in horizons.items()
    }
    return ", ".join(texts[axis] for axis in AXES if axis in texts)
