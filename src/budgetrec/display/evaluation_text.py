"""The tables of an evaluation and a comparison as text, for the terminal and for Markdown."""

from collections.abc import Sequence

import polars as pl

from budgetrec.display.tables import TextTable
from budgetrec.display.words import as_range, as_share, label
from budgetrec.evaluation.compare import Comparison
from budgetrec.evaluation.curves import AXES
from budgetrec.evaluation.evaluate import LOSSES, Evaluation
from budgetrec.evaluation.intervals import LEVEL, Interval
from budgetrec.units import format_bytes

_FORMATS = {"aul_steps": ",.1f", "steps": ",d", "best_step": ",d", "examples_per_second": ",.0f", "seed": "d"}
_ENDS = {"steps": ",.0f", "examples": ",.0f", "seconds": ",.1f"}
MEASURES = ("ndcg", "hit_rate", "recall", "precision", "mrr", "map", "coverage", "surprisal")


def how_measured(part: str, *, keep_seen: bool) -> str:
    """Say what was ranked against what, in a sentence."""
    seen = "items of the history kept" if keep_seen else "items of the history removed"
    return f"The {part} item of each user among all items; {seen}; ties count against the model."


def shown_cutoff(cutoffs: Sequence[int]) -> int:
    """Return the length of the lists that a sentence speaks of: 10, or the longest that were judged."""
    return 10 if 10 in cutoffs else max(cutoffs)


def what_repeats_mean(
    metric: str, *, new: float | None, repeated: float, num_new: int, num_repeated: int, keep_seen: bool
) -> str:
    """Say, in a sentence, how much of an average is of items that the users had before."""
    total = num_new + num_repeated
    who = f"{num_repeated:,} of the {total:,} held-out items ({as_share(num_repeated / total)}) are ones"
    for_new = "" if new is None else f" and {new:.4f} for new ones"
    if keep_seen:
        return (
            f"{who} that the user had before: {metric} is {repeated:.4f} for these{for_new}, so the average "
            "does not tell how well new items are found."
        )
    return (
        f"{who} that the user had before: as they are never recommended they count as missed, {metric} is "
        f"{repeated:.4f} for these{for_new}. Ranked with --keep-seen, they can be found."
    )


def repeats_sentence(evaluation: Evaluation) -> str:
    """Say what repeated items mean for the averages of an evaluation that has some."""
    metric, groups = f"ndcg@{shown_cutoff(evaluation.cutoffs)}", evaluation.groups
    new = groups.get("new")
    return what_repeats_mean(
        metric,
        new=None if new is None else new.intervals[metric].mean,
        repeated=groups["repeated"].intervals[metric].mean,
        num_new=0 if new is None else new.num_users,
        num_repeated=groups["repeated"].num_users,
        keep_seen=evaluation.keep_seen,
    )


def groups_table(evaluation: Evaluation) -> TextTable:
    """Return a row for new and a row for repeated items."""
    cutoff = shown_cutoff(evaluation.cutoffs)
    names = [f"ndcg@{cutoff}", f"hit_rate@{cutoff}", "mrr", LOSSES[evaluation.part]]
    rows = [
        (name, f"{group.num_users:,}", *(_with_interval(group.intervals[each]) for each in names))
        for name, group in evaluation.groups.items()
    ]
    return TextTable("New items, and items that the user had before", ("", "users", *names), rows)


def evaluation_table(evaluation: Evaluation) -> TextTable:
    """Return a row for each measure and a column for each cut-off, averages with their intervals."""
    rows = [
        (
            measure,
            *(_average(evaluation, f"{measure}@{cutoff}") for cutoff in evaluation.cutoffs),
            _average(evaluation, measure),
        )
        for measure in (*MEASURES, LOSSES[evaluation.part])
    ]
    columns = ("metric", *(f"@{cutoff}" for cutoff in evaluation.cutoffs), "all items")
    title = (
        f"{evaluation.run}, {evaluation.part}, {evaluation.num_users:,} users: mean [{LEVEL:.0%} interval]"
    )
    return TextTable(title, columns, rows)


def training_table(evaluation: Evaluation) -> TextTable:
    """Return what the run's training says, one line for each number."""
    rows = [(label(name), _number(name, value)) for name, value in evaluation.training.items()]
    return TextTable("Its training", ("", ""), rows)


def _average(evaluation: Evaluation, name: str) -> str:
    if name not in evaluation.metrics:
        return ""
    interval = evaluation.intervals.get(name)
    return _with_interval(interval) if interval else f"{evaluation.metrics[name]:.4f}"


def _with_interval(interval: Interval) -> str:
    return f"{interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def comparison_tables(comparison: Comparison) -> list[TextTable]:
    """Return the runs, the differences over users, and over seeds if there are groups of them."""
    tables = [_runs(comparison), _users(comparison.users)]
    if not comparison.seeds.is_empty():
        tables.append(_seeds(comparison.seeds))
    return tables


def _runs(comparison: Comparison) -> TextTable:
    frame = comparison.runs
    measures = ["ndcg@10", "hit_rate@10", "mrr", *dict.fromkeys((LOSSES[comparison.part], "val_loss"))]
    means = [f"mean_loss_over_{axis}" for axis in AXES]
    rest = ["aul_steps", "steps", "examples_per_second", "training_bytes", "peak_bytes"]
    settings = [dict(part.split("=", 1) for part in text.split()) for text in frame["settings"]]
    # One column per run: a terminal has no room for as many columns as there are measures.
    rows = [(name, *(own[name] for own in settings)) for name in settings[0]]
    names = ["seed", *measures, *means, *rest]
    rows += [(label(name), *(_number(name, value) for value in frame[name])) for name in names]
    ends = ", ".join(f"{comparison.horizons[axis]:{_ENDS[axis]}} {axis}" for axis in AXES)
    return TextTable(f"Runs; mean losses up to {ends}", ("", *frame["run"]), rows)


def _users(frame: pl.DataFrame) -> TextTable:
    rows = [
        (
            row["run"],
            row["metric"],
            f"{row['difference']:+.4f}",
            as_range(row["low"], row["high"], "+.4f"),
            _p_value(row["p_value"]),
        )
        for row in frame.iter_rows(named=True)
    ]
    first, users = frame["against"][0], frame["users"][0]
    title = f"Against {first}, paired over {users:,} users"
    return TextTable(title, ("run", "metric", "difference", f"{LEVEL:.0%} interval", "p"), rows, 2)


def _seeds(frame: pl.DataFrame) -> TextTable:
    rows = []
    for row in frame.iter_rows(named=True):
        spread = "" if row["low"] is None else as_range(row["low"], row["high"])
        difference, between, p = "", "", ""
        if row["difference"] is not None:
            difference, p = f"{row['difference']:+.4f}", _p_value(row["p_value"])
            between = as_range(row["difference_low"], row["difference_high"], "+.4f")
        group = row["settings"] or row["group"]
        seeds = f"{row['seeds']}"
        rows.append((group, row["metric"], seeds, f"{row['mean']:.4f}", spread, difference, between, p))
    interval = f"{LEVEL:.0%} interval"
    columns = ("group", "metric", "seeds", "mean", interval, "difference", interval, "p")
    return TextTable("Over seeds; differences to the first group, paired by seed", columns, rows, 2)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:{_FORMATS.get(name, '.4f')}}"


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
