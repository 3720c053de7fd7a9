"""What the main table says: our numbers beside the printed ones, and what is best by each measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from budgetrec.data.store import Dataset
from budgetrec.display.tables import StudyTable
from budgetrec.study.engine.frame import Findings, Request
from budgetrec.study.engine.scale import Scale
from budgetrec.study.engine.tabulating import (
    Column,
    average_seeds,
    rows_with_best,
    tabulate,
    with_spread,
)
from budgetrec.study.table.comparisons import SHARINGS, compare, tell
from budgetrec.study.table.figures import draw_curves
from budgetrec.study.table.firsts import find_firsts, firsts_table, tell_firsts
from budgetrec.theory.paper.published import DATASETS, printed

if TYPE_CHECKING:
    from budgetrec.study.table.study import TablePlan

_GROUP = ["dataset", "optimizer", "loss", "sharing"]
_CONFIGURATION = [*_GROUP, "batch_size", "num_negatives", "source"]
# Columns of numbers: title, digits, whether more is better.
_NUMBERS = {
    "test_ndcg": ("NDCG@10", 4, True),
    "test_ndcg_last": ("NDCG@10, last", 4, True),
    "aul_thousands": ("AUL / 1000", 2, False),
    "mean_loss_over_steps": ("loss over steps", 3, False),
    "mean_loss_over_examples": ("loss over examples", 3, False),
    "mean_loss_over_seconds": ("loss over seconds", 3, False),
}
_TITLES = {name: title for name, (title, _, _) in _NUMBERS.items()}
_LARGEST = {name: largest for name, (_, _, largest) in _NUMBERS.items()}
_PRINTED = {"test_ndcg": "printed_ndcg", "aul_thousands": "printed_aul"}
_TESTED = ("test_ndcg", "mean_loss_over_examples")


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Two values of a setting, the caption of their table and how the sentence about them begins."""

    by: str
    first: str
    second: str
    caption: str
    words: str


_COMPARISONS = {
    "corrections": _Comparison(
        by="loss",
        first="vanilla",
        second="corrected",
        caption="Vanilla against corrected, paired over seeds",
        words="Vanilla against corrected, between which the paper saw no difference: corrected",
    ),
    "sharings": _Comparison(
        by="sharing",
        first="batch",
        second="sequence",
        caption="Shared against per sequence, paired over seeds",
        words="Shared against per sequence, at the paper's allocations: one set per sequence",
    ),
}


def describe(
    plan: "TablePlan",
    request: Request,
    datasets: Mapping[str, Dataset],
    rows: pl.DataFrame,
    curves: pl.DataFrame,
    horizons: Mapping[str, Mapping[str, float]],
) -> Findings:
    """Make tables, figures and the words of the page."""
    rows = rows.with_columns(aul_thousands=pl.col("aul_steps") / 1000)
    results = _with_printed(average_seeds(rows, _CONFIGURATION, (*_NUMBERS, "seconds")))
    tested = {name: _TITLES[name] for name in _TESTED}
    compared = {
        name: table
        for name, each in _COMPARISONS.items()
        for table in [compare(rows, by=each.by, first=each.first, second=each.second, metrics=tested)]
        if table is not None
    }
    firsts = find_firsts(results, group=_GROUP, measures=_LARGEST, printed=_PRINTED)
    charts = {
        f"curves-{_slug(name)}-{optimizer}-{loss}": (
            f"{name}, {optimizer}, {loss}: validation loss and NDCG@10 against batches, examples, seconds.",
            draw_curves(curves.filter(dataset=name, optimizer=optimizer, loss=loss)),
        )
        for name, optimizer, loss in curves.select(_GROUP[:3]).unique(maintain_order=True).iter_rows()
    }
    tables = {
        "firsts": (
            "What each measure puts first: the best of the paper's three, and the plan before it if better",
            firsts_table(firsts, group=_GROUP, titles=_TITLES, words=SHARINGS),
        ),
        "table": ("NDCG@10 and area under the loss", _main_table(results, plan.num_seeds)),
        **{name: (_COMPARISONS[name].caption, table) for name, table in compared.items()},
    }
    return Findings(
        title="SASRec with one budget, divided three ways, and the planner's division of bytes",
        text=[
            *_protocol(plan, request, datasets, results, horizons),
            *tell_firsts(firsts, _TITLES),
            *_differences(compared),
        ],
        tables=tables,
        frames={"runs": rows, "curves": curves},
        charts=charts,
        summary={
            "datasets": list(datasets),
            "configurations": len(results),
            "runs": len(rows),
            "horizons": {name: dict(each) for name, each in horizons.items()},
        },
    )


def _with_printed(results: pl.DataFrame) -> pl.DataFrame:
    found = [
        printed(row["dataset"], row["optimizer"], row["batch_size"], row["num_negatives"])
        for row in results.iter_rows(named=True)
    ]
    columns = {
        f"printed_{name}": pl.Series([getattr(each, name, None) for each in found], dtype=pl.Float64)
        for name in ("ndcg", "ndcg_deviation", "aul", "aul_deviation")
    }
    return results.with_columns(**columns)


def _main_table(results: pl.DataFrame, num_seeds: int) -> StudyTable:
    def measured(*names: str) -> dict[str, Column]:
        return {title: with_spread(name, digits) for name in names for title, digits, _ in [_NUMBERS[name]]}

    columns: dict[str, Column] = {
        "dataset": "{dataset}",
        "optimizer": "{optimizer}",
        "loss": "{loss}",
        "negatives": lambda row: SHARINGS[row["sharing"]],
        "chosen by": lambda row: "" if row["source"] == "paper" else row["source"],
        "n": "{batch_size}",
        "k": "{num_negatives}",
        **measured("test_ndcg", "test_ndcg_last"),
        "NDCG@10, printed": with_spread("printed_ndcg", 4),
        **measured("aul_thousands"),
        "AUL / 1000, printed": with_spread("printed_aul", 1),
        **measured(*(name for name in _NUMBERS if name.startswith("mean_loss"))),
        "seconds": "{seconds:.1f}",
        "learning rate": "{learning_rate:g}",
        "seeds": f"{{seeds}} of {num_seeds}",
    }
    return tabulate(results, columns, num_words=5, rows=rows_with_best(results, _GROUP, _LARGEST))


def _protocol(
    plan: "TablePlan",
    request: Request,
    datasets: Mapping[str, Dataset],
    results: pl.DataFrame,
    horizons: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """Say what was run, and how the numbers are to be read."""
    shown = "; ".join(
        f"{name} ({dataset.num_users:,} users, {dataset.num_items:,} items, "
        f"{len(dataset.items):,} interactions, split {dataset.info['split'].get('name', 'unnamed')})"
        for name, dataset in datasets.items()
    )
    settings = "; ".join(f"{name}: {_words(plan.run_settings(name))}" for name in datasets)
    missing = [name for name in DATASETS if name not in datasets]
    reach = "; ".join(
        f"{name} {each['steps']:,.0f} steps, {each['examples']:,.0f} examples and {each['seconds']:.1f} s"
        for name, each in horizons.items()
    )
    tuned = "the first seed" if plan.tuning_seeds == 1 else f"{plan.tuning_seeds} seeds"
    text = [
        f"Data: {shown}." + (f" Not given: {', '.join(missing)}." if missing else ""),
        f"Settings of every run, {settings}.",
        f"{plan.num_seeds} seeds. The learning rate of each configuration is the one of the paper's grid "
        f"with the best validation NDCG@10 on {tuned}; {results['rate_at_end'].sum()} of {len(results)} are "
        "at an end of the grid. A run that diverges is missing from its row. NDCG@10 is of the test part, of "
        "the weights that did best on the validation part, and of the last ones, as in the paper.",
        "AUL sums the validation loss over all steps, as the paper does, so that runs with more steps have "
        "more of it whatever they learn. The three after it are mean losses as far as every run on the "
        f"dataset goes: {reach}. The paper does not say for which loss and sharing its numbers are; they "
        "stand beside each.",
        "The paper's three rows hold n x k = 16,384 fixed. The planner's row does not: for each way of "
        f"sharing it is what `budgetrec plan` chooses for {plan.memory} and Adam, trained as that plan says "
        "with either optimiser. "
        + (
            "It aims at the least time to a loss, for a model as it is after a warm-up of "
            f"{plan.warm_up_targets:,} targets."
            if plan.warm_up_targets
            else "Its noise and speed are assumed, not measured."
        ),
    ]
    if request.scale is not Scale.PAPER:
        text.append(
            f"**Reduced** against the paper's protocol (scale {request.scale.value}): a smaller SASRec, "
            f"sequences of at most {plan.settings['max_length']} items, {plan.settings['epochs']} epochs, "
            f"{plan.num_seeds} seeds instead of 5, learning rates chosen on {tuned}"
            + (f", {plan.most_rates} of the rates" if plan.most_rates else "")
            + ", and the datasets named above."
        )
    return text


def _differences(compared: Mapping[str, StudyTable]) -> list[str]:
    """Say what the correction and sharing change."""
    metrics = {name: (_TITLES[name], _LARGEST[name]) for name in _TESTED}
    return [
        tell(table.frame, second=_COMPARISONS[name].words, metrics=metrics)
        for name, table in compared.items()
    ]


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _slug(name: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in name.lower())
