"""What the synthetic study says: results over seeds, which allocation is best, and whether the law knew."""

from typing import TYPE_CHECKING

import polars as pl
from scipy import stats

from budgetrec.display.tables import StudyTable, Text, best_of, spread
from budgetrec.errors import DataError
from budgetrec.study.engine.frame import Findings, Request
from budgetrec.study.engine.grid import Outcome
from budgetrec.study.engine.scale import Scale
from budgetrec.study.synthetic.cells import PLACES
from budgetrec.study.synthetic.figures import draw_averages, draw_curves, draw_noise
from budgetrec.theory.paper.published import BUDGETS

if TYPE_CHECKING:
    from budgetrec.study.synthetic.study import SyntheticPlan

_CONFIGURATION = ["axis", "budget", "optimizer", "loss", "sharing", "batch_size", "num_negatives"]
_WORDS = {"steps": "iterations", "examples": "examples", "logits": "logits"}
_GROUP = _CONFIGURATION[:5]
_SHOWN_THEORY = {"noise_at_start": "noise, start", "noise_at_truth": "noise, truth"}


def describe(
    plan: "SyntheticPlan", request: Request, rows: pl.DataFrame, curves: pl.DataFrame, facts: Outcome | None
) -> Findings:
    """Make tables, figures and the words of the page."""
    if rows.is_empty():
        raise DataError("no run of the study has ended well. Look into cells/*.failed.json.")
    results = _results(rows, facts)
    oracle = None if facts is None else facts.values["oracle_loss"]
    averaged = curves.group_by([*_CONFIGURATION[1:], "steps", "examples", "logits"], maintain_order=True).agg(
        pl.col("val_loss").mean()
    )
    charts = {
        f"aul-{axis}": (
            f"Mean validation loss over the same number of {words}, against n/k; the paper's AUL is this "
            "times the number of steps.",
            draw_averages(results.filter(axis=axis)),
        )
        for axis, words in (("steps", "steps, and so of logits"), ("examples", "examples"))
    }
    for optimizer in results["optimizer"].unique(maintain_order=True):
        for loss in results["loss"].unique(maintain_order=True):
            part = averaged.filter(optimizer=optimizer, loss=loss)
            for axis in ("steps", "examples", "logits") if loss == "corrected" else ("steps",):
                charts[f"curves-{axis}-{optimizer}-{loss}"] = (
                    f"Validation loss against {_WORDS[axis]}: {optimizer}, {loss}.",
                    draw_curves(part, axis, oracle),
                )
    tables = {
        "best": ("The best allocation of each budget", _best(results)),
        "results": ("Every configuration", _all(results)),
    }
    if facts is not None:
        theory = pl.DataFrame(facts.values["theory"]).with_columns(
            budget=pl.col("batch_size") * pl.col("num_negatives")
        )
        charts["noise"] = ("Noise of a step by the law, at the start and at the truth.", draw_noise(theory))
        tables = {
            "law": (
                "Does theory order the allocations? Rank correlation of the mean loss over steps with the "
                "law's noise and with the steps to a gain (T23)",
                _law(results),
            ),
            **tables,
        }
    return Findings(
        title="Synthetic study: B = n x k, linear model",
        text=_text(plan, request, results, oracle),
        tables=tables,
        frames={"runs": rows, "curves": averaged},
        charts=charts,
        summary={"oracle_loss": oracle, "configurations": len(results), "runs": len(rows)},
    )


def _results(rows: pl.DataFrame, facts: Outcome | None) -> pl.DataFrame:
    rows = rows.sort(pl.col("axis") != "steps", "budget", maintain_order=True)
    results = rows.group_by(_CONFIGURATION, maintain_order=True).agg(
        pl.col("learning_rate", "rate_at_end").first(),
        pl.len().alias("seeds"),
        *(
            expression
            for name in ("mean_loss", "aul_steps", "final_loss")
            for expression in (pl.col(name).mean(), pl.col(name).std().alias(f"{name}_deviation"))
        ),
    )
    if facts is None:
        return results
    theory = pl.DataFrame(facts.values["theory"])
    names = ["batch_size", "num_negatives", "sharing"]
    for place in PLACES:
        here = theory.filter(at=place).select(
            *names, pl.col("noise").alias(f"noise_at_{place}"), pl.col("steps").alias(f"steps_at_{place}")
        )
        results = results.join(here, on=names, how="left", maintain_order="left")
    return results


def _best(results: pl.DataFrame) -> StudyTable:
    """Return the (n, k) of the smallest mean loss of each group, and whether the loss falls all the way."""
    frame = pl.DataFrame(
        [
            {
                **dict(zip(_GROUP, key, strict=True)),
                "best_n": best["batch_size"][0],
                "best_k": best["num_negatives"][0],
                "mean_loss": best["mean_loss"][0],
                "largest_n_loss": own["mean_loss"][0],
                "falls_with_n": bool((own["mean_loss"].diff().drop_nulls() > 0).all()),
            }
            for key, group in results.group_by(_GROUP, maintain_order=True)
            for own in [group.sort("batch_size", descending=True)]
            for best in [group.sort("mean_loss").head(1)]
        ]
    )
    rows = [
        (
            *(Text(str(row[name])) for name in _GROUP),
            Text(f"({row['best_n']}, {row['best_k']})"),
            Text(f"{row['mean_loss']:.3f}"),
            Text(f"{row['largest_n_loss']:.3f}"),
            Text("yes" if row["falls_with_n"] else "no"),
        )
        for row in frame.iter_rows(named=True)
    ]
    columns = ("over", "B", "optimizer", "loss", "negatives", "best (n, k)", "its loss", "of the largest n")
    return StudyTable((*columns, "falls with n/k throughout"), rows, frame, num_words=5)


def _law(results: pl.DataFrame) -> StudyTable:
    """Correlate ranks of what theory says with ranks of the mean loss, over all allocations of a budget."""
    predictions = [f"{what}_at_{place}" for what in ("noise", "steps") for place in PLACES]
    rows = []
    for key, group in results.filter(axis="steps", loss="corrected").group_by(
        ["budget", "optimizer"], maintain_order=True
    ):
        if group["mean_loss"].n_unique() > 2:  # ranks of fewer say nothing
            ranks = {
                name: float(stats.spearmanr(group[name], group["mean_loss"]).statistic)
                for name in predictions
            }
            rows.append({"budget": key[0], "optimizer": key[1], "allocations": len(group), **ranks})
    text = [
        (
            *(Text(str(row[name])) for name in ("budget", "optimizer", "allocations")),
            *(Text(f"{row[name]:.2f}") for name in predictions),
        )
        for row in rows
    ]
    titles = [name.replace("noise_at_", "noise, ").replace("steps_at_", "steps, ") for name in predictions]
    columns = ("B", "optimizer", "allocations", *titles)
    return StudyTable(columns, text, pl.DataFrame(rows), num_words=2)


def _all(results: pl.DataFrame) -> StudyTable:
    rows = []
    for _, group in results.group_by(_GROUP, maintain_order=True):
        best = best_of(group["mean_loss"].to_list(), largest=False)
        for place, row in enumerate(group.iter_rows(named=True)):
            rate = f"{row['learning_rate']:.3g}{' (end of the ladder)' if row['rate_at_end'] else ''}"
            laws = [f"{row[name]:.3g}" for name in _SHOWN_THEORY if name in row]
            rows.append(
                (
                    *(Text(str(row[name])) for name in _GROUP),
                    Text(str(row["batch_size"])),
                    Text(str(row["num_negatives"])),
                    Text(spread(row["mean_loss"], row["mean_loss_deviation"], 3), place == best),
                    Text(spread(row["aul_steps"], row["aul_steps_deviation"], 0)),
                    Text(f"{row['final_loss']:.3f}"),
                    Text(rate),
                    *(Text(law) for law in laws),
                )
            )
    columns = [
        "over",
        "B",
        "optimizer",
        "loss",
        "negatives",
        "n",
        "k",
        "mean loss",
        "AUL",
        "last loss",
        "rate",
    ]
    columns += [title for name, title in _SHOWN_THEORY.items() if name in results.columns]
    return StudyTable(tuple(columns), rows, results, num_words=5)


def _text(plan: "SyntheticPlan", request: Request, results: pl.DataFrame, oracle: float | None) -> list[str]:
    steps = ", ".join(f"{steps:,} at B = {budget:,}" for budget, steps in plan.steps.items())
    best = "" if oracle is None else f"; the table that made the targets has {oracle:.3f}"
    ladders = {name: ", ".join(f"{rate:g}" for rate in rates) for name, rates in plan.rates.items()}
    rates = f"{ladders['sgd']} times n for SGD and {ladders['adam']} for Adam"
    text = [
        f"N = {plan.num_examples:,} examples with Gaussian features of width {plan.dim}, "
        f"K = {plan.num_items:,} classes, targets from a multinomial logit whose logits have deviation "
        f"{plan.logit_scale:g}; a linear model from zero. {plan.num_validation:,} other examples give the "
        f"exact validation loss{best}. Steps: {steps}. Comparisons over examples end at "
        f"{plan.horizon_examples:,}, and leave out batches that take fewer than four steps until then. Adam "
        "is dense, with betas 0.9 and 0.98.",
        f"{plan.num_seeds} seeds. The learning rate is chosen for every configuration and axis by the mean "
        f"validation loss of the first seed, from a ladder of factor 4 that starts with {rates}, and grows "
        f"up to {plan.most_extensions} times while the best is at an end; {results['rate_at_end'].sum()} of "
        f"{len(results)} rates are at an end.",
    ]
    if request.scale is Scale.PAPER:
        return [
            *text,
            "Width, deviation of the logits and number of steps are our choice: the paper gives none.",
        ]
    dropped = ", ".join(f"{budget:,}" for budget in BUDGETS if budget not in plan.steps)
    return [
        *text,
        f"**Reduced** against the paper's set-up (scale {request.scale.value}): N from 100,000 and K from "
        f"50,000; n in powers of {plan.stride} instead of 2, k at most K; {plan.num_seeds} seeds instead of 5"
        + (f"; budgets left out: {dropped}" if dropped else "")
        + ". Width, deviation of the logits and number of steps are our choice: the paper gives none.",
    ]
