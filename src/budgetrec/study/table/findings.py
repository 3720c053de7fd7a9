"""What the main table says: our numbers beside the printed ones, and what is best by each measure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from budgetrec.data.store import Dataset
from budgetrec.display.tables import StudyTable, Text, best_of, spread
from budgetrec.study.engine.frame import Findings, Request
from budgetrec.study.engine.scale import Scale
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
_PRINTED = {"test_ndcg": "printed_ndcg", "aul_thousands": "printed_aul"}
_TESTED = ("test_ndcg", "mean_loss_over_examples")


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
    results = rows.group_by(_CONFIGURATION, maintain_order=True).agg(
        pl.col("learning_rate", "rate_at_end").first(),
        pl.len().alias("seeds"),
        *(
            expression
            for name in (*_NUMBERS, "seconds")
            for expression in (pl.col(name).mean(), pl.col(name).std().alias(f"{name}_deviation"))
        ),
    )
    results = _with_printed(results)
    tested = {name: _TITLES[name] for name in _TESTED}
    corrections = compare(rows, by="loss", first="vanilla", second="corrected", metrics=tested)
    sharings = compare(rows, by="sharing", first="batch", second="sequence", metrics=tested)
    firsts = find_firsts(
        results,
        group=_GROUP,
        measures={name: largest for name, (_, _, largest) in _NUMBERS.items()},
        printed=_PRINTED,
    )
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
    }
    if corrections is not None:
        tables["corrections"] = ("Vanilla against corrected, paired over seeds", corrections)
    if sharings is not None:
        tables["sharings"] = ("Shared against per sequence, paired over seeds", sharings)
    return Findings(
        title="SASRec with one budget, divided three ways, and the planner's division of bytes",
        text=[
            *_protocol(plan, request, datasets, results, horizons),
            *tell_firsts(firsts, _TITLES),
            *_differences(corrections, sharings),
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
    rows = []
    for _, group in results.group_by(_GROUP, maintain_order=True):
        best = {
            name: best_of(group[name].to_list(), largest=largest)
            for name, (_, _, largest) in _NUMBERS.items()
        }
        for place, row in enumerate(group.iter_rows(named=True)):
            numbers = {
                name: Text(spread(row[name], row[f"{name}_deviation"], digits), best[name] == place)
                for name, (_, digits, _) in _NUMBERS.items()
            }
            rows.append(
                (
                    Text(row["dataset"]),
                    Text(row["optimizer"]),
                    Text(row["loss"]),
                    Text(SHARINGS[row["sharing"]]),
                    Text("" if row["source"] == "paper" else row["source"]),
                    Text(str(row["batch_size"])),
                    Text(str(row["num_negatives"])),
                    numbers["test_ndcg"],
                    numbers["test_ndcg_last"],
                    Text(spread(row["printed_ndcg"], row["printed_ndcg_deviation"], 4)),
                    numbers["aul_thousands"],
                    Text(spread(row["printed_aul"], row["printed_aul_deviation"], 1)),
                    *(numbers[name] for name in _NUMBERS if name.startswith("mean_loss")),
                    Text(f"{row['seconds']:.1f}"),
                    Text(f"{row['learning_rate']:g}"),
                    Text(f"{row['seeds']} of {num_seeds}"),
                )
            )
    titles = list(_TITLES.values())
    columns = ["dataset", "optimizer", "loss", "negatives", "chosen by", "n", "k", titles[0], titles[1]]
    columns += [
        "NDCG@10, printed",
        titles[2],
        "AUL / 1000, printed",
        *titles[3:],
        "seconds",
        "learning rate",
        "seeds",
    ]
    return StudyTable(tuple(columns), rows, results, num_words=5)


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


def _differences(corrections: StudyTable | None, sharings: StudyTable | None) -> list[str]:
    """Say what the correction and sharing change."""
    metrics = {name: (_NUMBERS[name][0], _NUMBERS[name][2]) for name in _TESTED}
    told = []
    if corrections is not None:
        words = "Vanilla against corrected, between which the paper saw no difference: corrected"
        told.append(tell(corrections.frame, second=words, metrics=metrics))
    if sharings is not None:
        words = "Shared against per sequence, at the paper's allocations: one set per sequence"
        told.append(tell(sharings.frame, second=words, metrics=metrics))
    return told


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _slug(name: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in name.lower())
