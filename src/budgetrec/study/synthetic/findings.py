"""What the synthetic study says: results over seeds, which allocation is best, and whether the law knew."""

from typing import TYPE_CHECKING

import polars as pl
from scipy import stats

from budgetrec.display.tables import StudyTable
from budgetrec.study.engine.frame import Findings, Request
from budgetrec.study.engine.grid import Outcome
from budgetrec.study.engine.scale import Scale
from budgetrec.study.engine.tabulating import (
    Column,
    average_seeds,
    rows_with_best,
    tabulate,
    with_spread,
)
from budgetrec.study.synthetic.cells import PLACES
from budgetrec.study.synthetic.figures import AXES, draw_averages, draw_curves, draw_noise
from budgetrec.theory.paper.published import BUDGETS

if TYPE_CHECKING:
    from budgetrec.study.synthetic.study import SyntheticPlan

_CONFIGURATION = ["axis", "budget", "optimizer", "loss", "sharing", "batch_size", "num_negatives"]
_GROUP = _CONFIGURATION[:5]
_ALLOCATION = ["batch_size", "num_negatives", "sharing"]
_OF_GROUP = {
    "over": "{axis}",
    "B": "{budget}",
    "optimizer": "{optimizer}",
    "loss": "{loss}",
    "negatives": "{sharing}",
}
_OF_BEST: dict[str, Column] = {
    **_OF_GROUP,
    "best (n, k)": "({best_n}, {best_k})",
    "its loss": "{mean_loss:.3f}",
    "of the largest n": "{largest_n_loss:.3f}",
    "falls with n/k throughout": lambda row: "yes" if row["falls_with_n"] else "no",
}
_OF_ALL: dict[str, Column] = {
    **_OF_GROUP,
    "n": "{batch_size}",
    "k": "{num_negatives}",
    "mean loss": with_spread("mean_loss", 3),
    "AUL": with_spread("aul_steps", 0),
    "last loss": "{final_loss:.3f}",
    "rate": lambda row: f"{row['learning_rate']:.3g}{' (end of the ladder)' if row['rate_at_end'] else ''}",
}
_OF_THEORY = {"noise, start": "{noise_at_start:.3g}", "noise, truth": "{noise_at_truth:.3g}"}


def describe(
    plan: "SyntheticPlan", request: Request, rows: pl.DataFrame, curves: pl.DataFrame, facts: Outcome | None
) -> Findings:
    """Make tables, figures and the words of the page."""
    results = _results(rows, facts)
    oracle = None if facts is None else facts.values["oracle_loss"]
    averaged = curves.group_by([*_CONFIGURATION[1:], *AXES], maintain_order=True).agg(
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
            for axis in AXES if loss == "corrected" else ("steps",):
                charts[f"curves-{axis}-{optimizer}-{loss}"] = (
                    f"Validation loss against {AXES[axis]}: {optimizer}, {loss}.",
                    draw_curves(part, axis, oracle),
                )
    tables = {
        "best": ("The best allocation of each budget", _best(results)),
        "results": ("Every configuration", _all(results, with_theory=facts is not None)),
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
    results = average_seeds(rows, _CONFIGURATION, ("mean_loss", "aul_steps", "final_loss"))
    if facts is None:
        return results
    theory = pl.DataFrame(facts.values["theory"])
    for place in PLACES:
        here = theory.filter(at=place).select(
            *_ALLOCATION,
            pl.col("noise").alias(f"noise_at_{place}"),
            pl.col("steps").alias(f"steps_at_{place}"),
        )
        results = results.join(here, on=_ALLOCATION, how="left", maintain_order="left")
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
    return tabulate(frame, _OF_BEST, num_words=5)


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
    columns = {"B": "{budget}", "optimizer": "{optimizer}", "allocations": "{allocations}"}
    columns |= {name.replace("_at_", ", "): f"{{{name}:.2f}}" for name in predictions}
    return tabulate(pl.DataFrame(rows), columns, num_words=2)


def _all(results: pl.DataFrame, *, with_theory: bool) -> StudyTable:
    columns = _OF_ALL | (_OF_THEORY if with_theory else {})
    rows = rows_with_best(results, _GROUP, {"mean_loss": False})
    return tabulate(results, columns, num_words=5, rows=rows)


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
