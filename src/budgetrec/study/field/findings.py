"""What came out of a field: one row per run and per contender, and whether the plan and its law were right.

Runs are compared over the seconds and the examples that every run at its contender's chosen learning rate
has reached, and the plan with each of the others over the examples that the two have reached: one slow
contender would otherwise cut the comparison of all others short. The plan is within one standard error if it
is behind the best by no more than the standard error of the best's own mean over seeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from budgetrec.display.tables import StudyTable
from budgetrec.errors import DataError
from budgetrec.evaluation.curves import AXES, common_horizons, mean_loss, summarise_curve
from budgetrec.study.engine.frame import Findings
from budgetrec.study.engine.tabulating import BEST, Column, known, tabulate, with_spread
from budgetrec.study.field.contenders import PLANNED, Contender
from budgetrec.study.field.design import LEARNING_RATES, SEEDS, FieldRun, FieldRuns
from budgetrec.study.field.figures import draw_field

# What the issue of planning is measured by, then what else is told; -1 where more is better.
JUDGED = {"mean_loss_over_seconds": 1, "mean_loss_over_examples": 1, "ndcg@10": -1}
TITLES = {
    "mean_loss_over_seconds": "loss over seconds",
    "mean_loss_over_examples": "loss over examples",
    "ndcg@10": "NDCG@10",
    "val_loss": "last loss",
    "aul_steps": "AUL",
}
_FEWEST_STEPS = 4.0
_CURVE_POINTS, _CURVE_SPAN = 120, 1000.0
Row = dict[str, Any]


def describe(fields: Sequence[FieldRuns]) -> Findings:
    """Make tables, the figure and the words of the page from what has finished; the rest is told."""
    notes = [note for each in fields for who in each.contenders for note in _notes(each, who)]
    fields = [each for each in fields if any(map(each.chosen, each.contenders))]
    if not fields:
        raise DataError("there is no finished run of a field. Train some first.")
    horizons = {
        each.name: common_horizons([run for who in each.contenders for run in each.chosen(who).values()])
        for each in fields
    }
    notes += [note for each in fields for note in _short_of_steps(each, horizons[each.name])]
    runs = [_run_row(each, run, horizons[each.name]) for each in fields for run in each.runs if run.done]
    summaries = [_summarise(each, runs) for each in fields]
    summary = pl.concat(summaries)
    pairs = [row for each in fields for row in _pair_up(each)]
    judged = [row for each in summaries for row in judge_plan(each)]
    tables = {
        "summary": ("Every contender, the best of each measure bold", _summary_table(summary)),
        "verdicts": ("The plan against the best", _verdict_table(judged, fields)),
    }
    if pairs:
        caption = "The plan and each of the others over the sequences that both have seen"
        tables["pairs"] = (caption, _pair_table(pairs))
    predicted = [{"dataset": each.name, **who.row} for each in fields for who in each.contenders]
    return Findings(
        title="The plan against the field",
        text=[*_text(horizons), *(["\n".join(f"- {note}" for note in notes)] if notes else [])],
        tables=tables,
        frames={
            "results": pl.DataFrame(runs, infer_schema_length=None),
            "predicted": pl.DataFrame(predicted, infer_schema_length=None),
        },
        charts={
            "curves": (
                "Validation loss, mean over seeds; dashed: as far as all runs go.",
                draw_field(pl.concat([_mean_curves(each) for each in fields]), horizons),
            )
        },
        summary={"study": "field", "horizons": horizons, "notes": notes},
    )


def _text(horizons: Mapping[str, Mapping[str, float]]) -> list[str]:
    reach = "; ".join(
        f"{name} over {each['seconds']:,.0f} s and over {each['examples']:,.0f} sequences"
        for name, each in horizons.items()
    )
    return [
        f"Means over up to {len(SEEDS)} seeds and their standard errors, each contender at its own learning "
        f"rate. Losses are averaged as far as every run has reached: {reach}. NDCG@10 is of the last "
        "evaluation, on the validation users of training. AUL sums over steps, of which larger batches take "
        "fewer, so it has no best. The score is the predicted time to the same loss, over the plan's."
    ]


def _notes(field: FieldRuns, who: Contender) -> list[str]:
    """Say what is missing of a contender, what failed, and what should be known of the rest."""
    own, runs, rate = f"{field.name} {who.name}", field.of(who), field.rate(who)
    missing = [run for run in runs if not run.done]
    tuned = not any(run.seed == SEEDS[0] for run in missing)
    notes = []
    if missing:
        rates = ", ".join(f"{run.learning_rate:g}" for run in missing)
        seeds = " and ".join(f"seed {run.seed}" for run in missing)
        told = seeds if tuned else f"learning rates {rates} of seed {SEEDS[0]}, then the other seeds"
        notes.append(f"{own}: still to be trained: {told}.")
    notes += [
        f"{own}, learning rate {run.learning_rate:g}, seed {run.seed}: {run.failure}"
        for run in runs
        if run.failure is not None
    ]
    if rate in (LEARNING_RATES[0], LEARNING_RATES[-1]) and tuned:
        end = "smallest" if rate == LEARNING_RATES[0] else "largest"
        notes.append(f"{own}: the chosen learning rate {rate:g} is the {end} of those tried.")
    return notes


def _short_of_steps(field: FieldRuns, horizons: Mapping[str, float]) -> list[str]:
    """Name the contenders that take too few steps up to the horizon of examples to have a curve there."""
    steps = {
        who.name: horizons["examples"] / who.allocation.batch_size
        for who in field.contenders
        if field.chosen(who)
    }
    return [
        f"{field.name} {name}: takes {count:.2g} steps up to the horizon of examples; its loss there is "
        "interpolated."
        for name, count in steps.items()
        if count < _FEWEST_STEPS
    ]


def _run_row(field: FieldRuns, run: FieldRun, horizons: Mapping[str, float]) -> Row:
    num_negatives, sharing = run.contender.drawn
    last: Row = {} if run.metrics is None else run.metrics.row(-1, named=True)
    return {
        "dataset": field.name,
        "allocation": run.contender.name,
        "batch_size": run.contender.allocation.batch_size,
        "num_negatives": num_negatives,
        "sharing": sharing,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "steps": last.get("step"),
        **{name: last.get(name) for name in ("examples", "seconds", "peak_bytes")},
        "evaluations": 0 if run.metrics is None else len(run.metrics),
        **_measures(run, last, horizons),
        "failure": run.failure,
    }


def _measures(run: FieldRun, last: Row, horizons: Mapping[str, float]) -> Row:
    """Return what a run is measured by: nothing if it failed, no means if it ends before a horizon."""
    if run.failure is not None or run.metrics is None:
        return dict.fromkeys(TITLES)
    reached = all(last[AXES[axis]] >= horizons[axis] for axis in AXES)
    own = summarise_curve(run.metrics, horizons if reached else None)
    found = {**last, **own, **({} if reached else {name: None for name in own if name.startswith("mean_")})}
    return {measure: found[measure] for measure in TITLES}


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean; one value has none.

    >>> standard_error([1.0, 2.0, 3.0])  # 1 / sqrt(3)
    0.5773502691896258
    """
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _summarise(field: FieldRuns, runs: Sequence[Row]) -> pl.DataFrame:
    rows = []
    for who in field.contenders:
        rate, seeds = field.rate(who), field.chosen(who)
        about = (field.name, who.name, rate)
        own = [
            row
            for row in runs
            if (row["dataset"], row["allocation"], row["learning_rate"]) == about and row["seed"] in seeds
        ]
        if not own:
            continue
        row = {
            key: own[0][key] for key in ("dataset", "allocation", "batch_size", "num_negatives", "sharing")
        }
        row |= {"learning_rate": rate, "seeds": len(own)}
        row |= {key: float(np.mean([each[key] for each in own])) for key in ("steps", "examples")}
        for measure in TITLES:
            values = [each[measure] for each in own]
            row |= {measure: float(np.mean(values)), f"{measure}_error": standard_error(values)}
        row["step_seconds"] = sum(each["seconds"] for each in own) / sum(each["steps"] for each in own)
        rows.append(row | {"predicted_step_seconds": who.step_seconds, "predicted_score": who.score})
    errors = {f"{measure}_error": pl.Float64 for measure in TITLES}
    schema = {"num_negatives": pl.Int64, **errors}
    frame = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    ranks = {"predicted_rank": ("predicted_score", 1)}
    ranks |= {f"rank_{measure}": (measure, sign) for measure, sign in JUDGED.items()}
    return frame.with_columns(
        (sign * pl.col(name)).rank("min").cast(pl.Int64).alias(rank) for rank, (name, sign) in ranks.items()
    )


def judge_plan(summary: pl.DataFrame) -> list[Row]:
    """Say for each measure by how much the plan is behind the best of one dataset, in the measure's unit.

    `spearman` is the correlation of the predicted score with the measure, above 0 where they agree.
    """
    plans = summary.filter(pl.col("allocation").str.starts_with(PLANNED))
    rows = []
    for measure, sign in JUDGED.items():
        order = rank_correlation(summary["predicted_score"].to_list(), (sign * summary[measure]).to_list())
        row: Row = {"dataset": summary["dataset"][0], "measure": measure}
        best = summary.sort(sign * pl.col(measure)).row(0, named=True)
        error = best[f"{measure}_error"]
        behind = sign * (plans[measure][0] - best[measure]) if len(plans) else None
        row |= {"best": best["allocation"], "plan": plans["allocation"][0] if len(plans) else None}
        row |= {"behind": behind, "standard_error": error, "verdict": verdict(behind, error)}
        rows.append(row | {"allocations": len(summary), "spearman": order})
    return rows


def verdict(behind: float | None, error: float | None) -> str:
    """Judge a distance from the best by the standard error of the best.

    >>> verdict(0.0, None), verdict(0.1, 0.2), verdict(0.3, 0.2), verdict(0.3, None), verdict(None, 0.2)
    ('best', 'within one standard error', 'behind', 'not known yet', 'not trained yet')
    """
    if behind is None:
        return "not trained yet"
    if behind <= 0:
        return "best"
    if error is None:
        return "not known yet"
    return "within one standard error" if behind <= error else "behind"


def _pair_up(field: FieldRuns) -> list[Row]:
    """Compare the plan with each other contender over the examples that the two have reached."""
    planned = [run for who in field.contenders if who.planned for run in field.chosen(who).values()]
    rows = []
    for who in field.contenders:
        rivals = list(field.chosen(who).values())
        if who.planned or not planned or not rivals:
            continue
        horizon = common_horizons([*planned, *rivals])["examples"]
        row = {"dataset": field.name, "allocation": who.name, "examples": horizon}
        for whose, runs in (("plan", planned), ("own", rivals)):
            losses = [mean_loss(*_curve(run, "examples"), horizon) for run in runs]
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


def _curve(metrics: pl.DataFrame, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return metrics[AXES[axis]].cast(pl.Float64).to_numpy(), metrics["val_loss"].to_numpy()


def _mean_curves(field: FieldRuns) -> pl.DataFrame:
    """Average the loss over seeds at places that all of a contender's runs reach, linear between them."""
    frames = []
    for who in field.contenders:
        runs = list(field.chosen(who).values())
        for axis in ("seconds", "examples") if runs else ():
            end = common_horizons(runs)[axis]
            places = np.append(0.0, np.geomspace(end / _CURVE_SPAN, end, _CURVE_POINTS))
            losses = np.mean([np.interp(places, *_curve(run, axis)) for run in runs], axis=0)
            about = {"dataset": field.name, "allocation": "the plan" if who.planned else who.name}
            frames.append(pl.DataFrame({**about, "axis": axis, "place": places, "val_loss": losses}))
    return pl.concat(frames)


def _summary_table(summary: pl.DataFrame) -> StudyTable:
    rows = []
    for _, group in summary.group_by("dataset", maintain_order=True):
        plans = group.filter(pl.col("allocation").str.starts_with(PLANNED))["predicted_score"]
        best = {measure: (sign * group[measure]).min() for measure, sign in JUDGED.items()}
        for row in group.iter_rows(named=True):
            first = {measure for measure, sign in JUDGED.items() if sign * row[measure] == best[measure]}
            relative = row["predicted_score"] / plans[0] if len(plans) else None
            rows.append({**row, BEST: first, "relative_score": relative})
    columns: dict[str, Column] = {
        "dataset": "{dataset}",
        "allocation": "{allocation}",
        "negatives": "{sharing}",
        "n": "{batch_size:,}",
        "k": known("{num_negatives:,}", "num_negatives", "all"),
        "learning rate": "{learning_rate:g}",
        "seeds": "{seeds}",
        "steps": "{steps:,.0f}",
        "sequences": "{examples:,.0f}",
        "ms per step": lambda row: f"{1000 * row['step_seconds']:,.1f}",
        "predicted": lambda row: f"{1000 * row['predicted_step_seconds']:,.1f}",
        **{
            title: with_spread(name, 0 if name == "aul_steps" else 4, "error")
            for name, title in TITLES.items()
        },
        "score": known("{relative_score:,.2f}", "relative_score", "?"),
        "rank by score": "{predicted_rank}",
        **{f"by {TITLES[measure]}": f"{{rank_{measure}}}" for measure in JUDGED},
    }
    return tabulate(summary, columns, num_words=3, rows=rows)


def _verdict_table(judged: Sequence[Row], fields: Sequence[FieldRuns]) -> StudyTable:
    incomplete = {each.name for each in fields if not all(run.done for run in each.runs)}
    columns: dict[str, Column] = {
        "dataset": lambda row: row["dataset"] + (", so far" if row["dataset"] in incomplete else ""),
        "measure": lambda row: TITLES[row["measure"]],
        "best": "{best}",
        "the plan": "{verdict}",
        "behind by": lambda row: "?" if row["behind"] is None else f"{abs(row['behind']):.4f}",
        "standard error": known("{standard_error:.4f}", "standard_error", "?"),
        "Spearman with the score": known("{spearman:.2f} of {allocations}", "spearman", "?"),
    }
    return tabulate(pl.DataFrame(judged, infer_schema_length=None), columns, num_words=4)


def _pair_table(pairs: Sequence[Row]) -> StudyTable:
    columns: dict[str, Column] = {
        "dataset": "{dataset}",
        "allocation": "{allocation}",
        "sequences": "{examples:,.0f}",
        "its mean loss": with_spread("own_loss", 4, "error"),
        "the plan's": with_spread("plan_loss", 4, "error"),
    }
    rows = [
        {**row, BEST: {"plan_loss" if row["plan_loss"] <= row["own_loss"] else "own_loss"}} for row in pairs
    ]
    return tabulate(pl.DataFrame(pairs, infer_schema_length=None), columns, num_words=2, rows=rows)
