"""What the main table says: our numbers beside the printed ones, and whether the correction matters."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from budgetrec.data.store import Dataset
from budgetrec.study.frame import Findings, Request
from budgetrec.study.paired import compare_pairs
from budgetrec.study.published import DATASETS, printed
from budgetrec.study.scale import Scale
from budgetrec.study.table_figures import draw_curves
from budgetrec.study.tables import StudyTable, Text, best_of, spread

if TYPE_CHECKING:
    from budgetrec.study.table import TablePlan

_GROUP = ["dataset", "optimizer", "loss", "sharing"]
_CONFIGURATION = [*_GROUP, "batch_size", "num_negatives", "source"]
_TITLES = {"batch": "shared", "sequence": "per sequence"}
# Columns of numbers: title, digits, whether more is better.
_NUMBERS = {
    "test_ndcg": ("NDCG@10", 4, True),
    "test_ndcg_last": ("NDCG@10, last", 4, True),
    "aul_thousands": ("AUL / 1000", 2, False),
    "mean_loss_over_steps": ("loss over steps", 3, False),
    "mean_loss_over_examples": ("loss over examples", 3, False),
    "mean_loss_over_seconds": ("loss over seconds", 3, False),
}
_TESTED = ("test_ndcg", "mean_loss_over_examples")


def describe(
    plan: "TablePlan",
    request: Request,
    datasets: Mapping[str, Dataset],
    rows: pl.DataFrame,
    curves: pl.DataFrame,
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
    tested = _corrections(rows)
    charts = {
        f"curves-{_slug(name)}-{optimizer}-{loss}": (
            f"{name}, {optimizer}, {loss}: validation loss and NDCG@10 against batches, examples, seconds.",
            draw_curves(curves.filter(dataset=name, optimizer=optimizer, loss=loss)),
        )
        for name, optimizer, loss in curves.select(_GROUP[:3]).unique(maintain_order=True).iter_rows()
    }
    tables = {"table": ("NDCG@10 and area under the loss", _main_table(results, plan.num_seeds))}
    if tested is not None:
        tables["corrections"] = ("Vanilla against corrected, paired over seeds", tested)
    return Findings(
        title="SASRec with one budget, divided three ways, and the planner's division of bytes",
        text=_text(plan, request, datasets, results, None if tested is None else tested.frame),
        tables=tables,
        frames={"runs": rows, "curves": curves},
        charts=charts,
        summary={"datasets": list(datasets), "configurations": len(results), "runs": len(rows)},
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
                    Text(_TITLES[row["sharing"]]),
                    Text("" if row["source"] == "paper" else row["source"]),
                    Text(str(row["batch_size"])),
                    Text(str(row["num_negatives"])),
                    numbers["test_ndcg"],
                    numbers["test_ndcg_last"],
                    Text(spread(row["printed_ndcg"], row["printed_ndcg_deviation"], 4)),
                    numbers["aul_thousands"],
                    Text(spread(row["printed_aul"], row["printed_aul_deviation"], 1)),
                    *(numbers[name] for name in _NUMBERS if name.startswith("mean_loss")),
                    Text(f"{row['learning_rate']:g}"),
                    Text(f"{row['seeds']} of {num_seeds}"),
                )
            )
    titles = [title for title, _, _ in _NUMBERS.values()]
    columns = ["dataset", "optimizer", "loss", "negatives", "chosen by", "n", "k", titles[0], titles[1]]
    columns += ["NDCG@10, printed", titles[2], "AUL / 1000, printed", *titles[3:], "learning rate", "seeds"]
    return StudyTable(tuple(columns), rows, results, num_words=5)


def _corrections(rows: pl.DataFrame) -> StudyTable | None:
    """Compare corrected with vanilla in each configuration, and over all of a dataset and optimiser."""
    names = ["dataset", "optimizer", "sharing", "batch_size", "num_negatives"]
    pairs: list[tuple[dict[str, Any], dict[int, float], dict[int, float]]] = []
    for metric in _TESTED:
        for key, group in rows.group_by(names, maintain_order=True):
            about = {**dict(zip(names, key, strict=True)), "metric": metric}
            pairs.append((about, _by_seed(group, "vanilla", metric), _by_seed(group, "corrected", metric)))
        for key, group in _complete(rows, names).group_by(names[:2], maintain_order=True):
            about = {
                "dataset": key[0],
                "optimizer": key[1],
                "sharing": "all",
                "batch_size": None,
                "num_negatives": None,
                "metric": metric,
            }
            pairs.append((about, _by_seed(group, "vanilla", metric), _by_seed(group, "corrected", metric)))
    found = compare_pairs(pairs)
    if not found:
        return None
    text = [
        (
            Text(row["dataset"]),
            Text(row["optimizer"]),
            Text(_TITLES.get(row["sharing"], "all together")),
            Text("" if row["batch_size"] is None else f"({row['batch_size']}, {row['num_negatives']})"),
            Text(_NUMBERS[row["metric"]][0]),
            Text(f"{row['first']:.4f}"),
            Text(f"{row['second']:.4f}"),
            Text(f"{row['difference']:+.4f}"),
            Text(f"{row['low']:+.4f} to {row['high']:+.4f}"),
            Text("" if row["effect"] is None else f"{row['effect']:+.1f}"),
            Text(f"{row['p_value']:.2g}"),
            Text(f"{row['p_adjusted']:.2g}", row["p_adjusted"] < 0.05),
        )
        for row in found
    ]
    columns = ["dataset", "optimizer", "negatives", "(n, k)", "metric", "vanilla", "corrected", "difference"]
    columns += ["95% interval", "effect d_z", "p", "p, Holm"]
    return StudyTable(tuple(columns), text, pl.DataFrame(found, infer_schema_length=None), num_words=5)


def _complete(rows: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Keep the configurations whose runs all ended well, so that averages over them are of the same ones."""
    # The planner may have chosen as the paper did.
    rows = rows.unique([*names, "loss", "seed"], maintain_order=True)
    most = rows.group_by([*names, "loss"]).len()["len"].max()
    counts = rows.group_by(names).len().filter(pl.col("len") == 2 * (most or 0))  # type: ignore[operator]
    return rows.join(counts.select(names), on=names, how="semi", maintain_order="left")


def _by_seed(group: pl.DataFrame, loss: str, metric: str) -> dict[int, float]:
    """Give the mean of each seed over the configurations of a group."""
    means = group.filter(loss=loss).group_by("seed", maintain_order=True).agg(pl.col(metric).mean())
    return dict(means.iter_rows())


def _text(
    plan: "TablePlan",
    request: Request,
    datasets: Mapping[str, Dataset],
    results: pl.DataFrame,
    tested: pl.DataFrame | None,
) -> list[str]:
    shown = "; ".join(
        f"{name} ({dataset.num_users:,} users, {dataset.num_items:,} items, "
        f"{len(dataset.items):,} interactions, split {dataset.info['split'].get('name', 'unnamed')})"
        for name, dataset in datasets.items()
    )
    settings = "; ".join(f"{name}: {_words(plan.run_settings(name))}" for name in datasets)
    missing = [name for name in DATASETS if name not in datasets]
    tuned = "the first seed" if plan.tuning_seeds == 1 else f"{plan.tuning_seeds} seeds"
    text = [
        f"Data: {shown}." + (f" Not given: {', '.join(missing)}." if missing else ""),
        f"Settings of every run, {settings}.",
        f"{plan.num_seeds} seeds. The learning rate of each configuration is the one of the paper's grid "
        f"with the best validation NDCG@10 on {tuned}; {results['rate_at_end'].sum()} of {len(results)} are "
        "at an end of the grid. A run that diverges is missing from its row. NDCG@10 is of the test part, of "
        "the weights that did best on the validation part, and of the last ones, as in the paper.",
        "AUL sums the validation loss over all steps, as the paper does, so that runs with more steps have "
        "more of it whatever they learn. The last three are mean losses as far as every run on the dataset "
        "goes, in steps, in examples and in seconds. The paper does not say for which loss and sharing its "
        "numbers are; they stand beside each.",
        "The paper's three rows hold n x k = 16,384 fixed. The planner's row does not: for each way of "
        f"sharing it is what `budgetrec plan` chooses for {plan.memory} and Adam, trained as that plan says "
        "with either optimiser. It aims at the loss over seconds.",
    ]
    if tested is not None:
        differ = int((tested["p_adjusted"] < 0.05).sum())
        text.append(
            f"Vanilla and corrected differ in {differ} of {len(tested)} comparisons at the level of 5% after "
            "Holm's adjustment, and in "
            f"{int((tested['p_value'] < 0.05).sum())} without it; the paper saw no difference."
        )
    if request.scale is not Scale.PAPER:
        text.append(
            f"**Reduced** against the paper's protocol (scale {request.scale.value}): a smaller SASRec, "
            f"sequences of at most {plan.settings['max_length']} items, {plan.settings['epochs']} epochs, "
            f"{plan.num_seeds} seeds instead of 5, learning rates chosen on {tuned}"
            + (f", {plan.most_rates} of the rates" if plan.most_rates else "")
            + ", and the datasets named above."
        )
    return text


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _slug(name: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in name.lower())
