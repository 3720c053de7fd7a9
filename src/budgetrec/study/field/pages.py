"""The comparison with the field for people: tables in Markdown and a figure."""

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLACK, BLUE, GREEN, GREY, ORANGE, PINK
from budgetrec.study.field.results import JUDGED, FieldResults
from budgetrec.study.field.study import SEEDS

_TITLES = {
    "mean_loss_over_seconds": "loss over seconds",
    "mean_loss_over_examples": "loss over examples",
    "ndcg@10": "NDCG@10",
    "val_loss": "last loss",
    "aul_steps": "AUL",
}
_AXIS_TITLES = {"seconds": "training seconds", "examples": "sequences seen"}
_PLAN = "the plan"
_COLOURS = [BLUE, ORANGE, GREEN, PINK, BLACK, GREY]


def describe_field(results: FieldResults) -> str:
    """Return tables, verdicts, correlations and what is missing as Markdown."""
    parts = [_section(results, name) for name in results.horizons]
    if results.notes:
        parts.append("## To be known\n\n" + "\n".join(f"- {note}" for note in results.notes))
    return "\n\n".join(["# The plan against the field", *parts]) + "\n"


def _section(results: FieldResults, name: str) -> str:
    summary = results.summary.filter(dataset=name)
    horizons = results.horizons[name]
    intro = (
        f"Means over up to {len(SEEDS)} seeds and their standard errors, each allocation at its own learning "
        f"rate. Losses are averaged over {horizons['seconds']:,.0f} s and over {horizons['examples']:,.0f} "
        "sequences, which every run has reached; NDCG@10 is of the last evaluation, on the validation users "
        "of training. The best is bold. AUL sums over steps, of which larger batches take fewer, so it has "
        "no best. The score is the predicted time to the same loss, over the plan's."
    )
    parts = [f"## {name}", intro, _table(summary), _judgement(results, name)]
    pairs = results.pairs.filter(dataset=name)
    return "\n\n".join([*parts, _pair_table(pairs)] if len(pairs) else parts)


def _table(summary: pl.DataFrame) -> str:
    head = ["allocation", "n", "k", "negatives", "learning rate", "seeds", "steps", "sequences", "ms a step"]
    head += ["predicted", *_TITLES.values(), "score", "rank by score"]
    head += [f"by {_TITLES[measure]}" for measure in JUDGED]
    lines = [_line(head), _line(["---"] * len(head))]
    plans = summary.filter(pl.col("allocation").str.starts_with("planned-"))["predicted_score"]
    unit = plans[0] if len(plans) else None
    best = {measure: (sign * summary[measure]).min() for measure, sign in JUDGED.items()}
    for row in summary.iter_rows(named=True):
        score = row["predicted_score"]
        cells = [row["allocation"], f"{row['batch_size']:,}"]
        cells += ["all" if row["num_negatives"] is None else f"{row['num_negatives']:,}", row["sharing"]]
        cells += [f"{row['learning_rate']:g}", str(row["seeds"]), f"{row['steps']:,.0f}"]
        cells += [f"{row['examples']:,.0f}", _milliseconds(row["step_seconds"])]
        cells.append(_milliseconds(row["predicted_step_seconds"]))
        for measure in _TITLES:
            text = _mean(measure, row[measure], row[f"{measure}_error"])
            first = measure in JUDGED and JUDGED[measure] * row[measure] == best[measure]
            cells.append(f"**{text}**" if first else text)
        cells.append("?" if score is None or unit is None else f"{score / unit:,.2f}")
        ranks = ["predicted_rank", *(f"rank_{measure}" for measure in JUDGED)]
        cells += ["?" if row[rank] is None else str(row[rank]) for rank in ranks]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:,.1f}"


def _mean(measure: str, mean: float, error: float | None) -> str:
    digits = 0 if measure == "aul_steps" else 4
    return f"{mean:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")


def _judgement(results: FieldResults, name: str) -> str:
    so_far = " so far" if name in results.incomplete else ""
    lines = [
        _line(["measure", f"best{so_far}", f"the plan{so_far}", "behind by", "Spearman with the score"]),
        _line(["---"] * 5),
    ]
    verdicts = {row["measure"]: row for row in results.verdicts.filter(dataset=name).iter_rows(named=True)}
    for row in results.correlations.filter(dataset=name).iter_rows(named=True):
        measure, found = row["measure"], verdicts.get(row["measure"])
        order = "?" if row["spearman"] is None else f"{row['spearman']:.2f} of {row['allocations']}"
        if found is None:
            lines.append(_line([_TITLES[measure], "?", "not trained yet", "?", order]))
            continue
        mark = "✓" if found["verdict"] in ("best", "within one standard error") else "✗"
        told = f"{found['verdict']} {mark}" if found["verdict"] != "not known yet" else found["verdict"]
        error = found["standard_error"]
        spread = "" if error is None else f" (standard error {error:.4f})"
        lines.append(
            _line([_TITLES[measure], found["best"], told, f"{abs(found['behind']):.4f}{spread}", order])
        )
    return "\n".join(lines)


def _pair_table(pairs: pl.DataFrame) -> str:
    lines = [
        "The plan and each of the others over the sequences that both have seen:\n",
        _line(["allocation", "sequences", "its mean loss", "the plan's"]),
        _line(["---"] * 4),
    ]
    for row in pairs.iter_rows(named=True):
        losses = [
            _mean("mean_loss_over_examples", row[f"{whose}_loss"], row[f"{whose}_loss_error"])
            for whose in ("own", "plan")
        ]
        better = row["plan_loss"] <= row["own_loss"]
        losses[better] = f"**{losses[better]}**"
        lines.append(_line([row["allocation"], f"{row['examples']:,.0f}", *losses]))
    return "\n".join(lines)


def draw_field(results: FieldResults) -> alt.TopLevelMixin:
    """Draw validation loss against seconds and examples, a row a dataset; dashed is the common horizon."""
    frame = results.curves.with_columns(
        allocation=pl.when(pl.col("allocation").str.starts_with("planned-"))
        .then(pl.lit(_PLAN))
        .otherwise("allocation")
    )
    names = frame["allocation"].unique(maintain_order=True).to_list()
    names.sort(key=lambda name: name != _PLAN)
    colour = alt.Color(
        "allocation:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[_COLOURS[i % len(_COLOURS)] for i in range(len(names))]),
        title=None,
    )
    panels = [
        _panel(
            frame.filter(dataset=name, axis=axis),
            f"{name}: {title}",
            colour,
            horizons[axis],
            logarithmic=axis == "examples",
        )
        for name, horizons in results.horizons.items()
        for axis, title in _AXIS_TITLES.items()
    ]
    chart = alt.concat(*panels, columns=len(_AXIS_TITLES))
    chart = chart.properties(title="Validation loss, mean over seeds; dashed: as far as all runs go")
    return arranged(chart, title_size=14, label_size=12, columns=3)


def _panel(
    frame: pl.DataFrame, title: str, colour: alt.Color, horizon: float, *, logarithmic: bool
) -> alt.LayerChart | alt.FacetChart:
    # Sequences seen differ by factors of hundreds: from the horizon on the axis is logarithmic.
    scale, axis = alt.Scale(), alt.Axis(tickCount=5)
    if logarithmic:
        rungs = (first * 10**power for power in range(2, 9) for first in (1, 3))
        ticks = [0, *(place for place in rungs if place > horizon / 2)]
        scale = alt.Scale(type="symlog", constant=horizon)
        thousands = "datum.value >= 1e6 ? datum.value / 1e6 + 'M' : datum.value / 1e3 + 'k'"
        axis = alt.Axis(values=ticks, labelExpr=f"datum.value ? {thousands} : '0'", labelOverlap="greedy")
    line = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("place:Q", title=title, axis=axis, scale=scale),
            y=alt.Y("val_loss:Q", title="validation loss", scale=alt.Scale(zero=False)),
            color=colour,
            tooltip=["allocation:N", "place:Q", "val_loss:Q"],
        )
    )
    rule = (
        alt.Chart(pl.DataFrame({"place": [horizon]}))
        .mark_rule(strokeDash=[4, 4], color=GREY)
        .encode(x="place:Q")
    )
    return alt.layer(rule, line).properties(width=340, height=230)
