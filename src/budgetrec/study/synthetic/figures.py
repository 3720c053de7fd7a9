"""Figures of the synthetic study: loss curves, mean losses against n/k, and the law's noise."""

from collections.abc import Callable, Iterable

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLUE, ORANGE
from budgetrec.study.engine.encodings import Panel, coloured, dashed, in_rows

AXES = {"steps": "iterations", "examples": "examples", "logits": "logits"}
_SHARINGS = {"shared": ORANGE, "per target": BLUE}
_COLOUR = coloured("sharing", _SHARINGS, title="negatives")
_AS_RATIO = "datum.value < 1 ? '1/' + format(1 / datum.value, ',.4~g') : format(datum.value, ',.4~g')"
_RATIO = alt.X(
    "ratio:Q",
    title="n / k",
    scale=alt.Scale(type="log", base=2),
    axis=alt.Axis(tickCount=5, labelExpr=_AS_RATIO),
)
_RATIO_COLOUR = alt.Color(
    "ratio:Q",
    title="n / k",
    scale=alt.Scale(type="log", base=2, scheme="viridis"),
    legend=alt.Legend(labelExpr=_AS_RATIO),
)


def draw_curves(frame: pl.DataFrame, axis: str, oracle: float | None) -> alt.TopLevelMixin:
    """Draw a column for each B and a row for each way of sharing, coloured by n/k; cut where runs diverge."""
    data = frame.filter(pl.col(axis) > 0)
    highest = float(frame.filter(pl.col("steps") == 0)["val_loss"].max() or 1.0)  # type: ignore[arg-type]
    lowest = min(float(data["val_loss"].min()), oracle or highest)  # type: ignore[arg-type]
    x = alt.X(
        f"{axis}:Q",
        title=AXES[axis],
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(tickCount=4, format="~s"),
    )
    y = alt.Y("val_loss:Q", title="validation loss", scale=alt.Scale(domain=[lowest, highest * 1.03]))

    def panel(here: pl.DataFrame) -> Panel:
        lines: alt.Chart = alt.Chart(here).mark_line(strokeWidth=1.8, clip=True)
        return lines.encode(x=x, y=y, color=_RATIO_COLOUR, detail="ratio:Q")

    chart = _by_budget(data, "sharing", _SHARINGS, panel)
    titled: alt.TopLevelMixin = chart.configure_title(fontSize=12, anchor="start")
    return titled


def draw_averages(results: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw mean loss against n/k: a column for each B, a row for each optimiser."""
    dash = dashed("loss", "corrected", "vanilla")
    y = alt.Y("mean_loss:Q", title="mean loss", scale=alt.Scale(zero=False))

    def panel(here: pl.DataFrame) -> Panel:
        base = alt.Chart(here).encode(x=_RATIO, y=y, color=_COLOUR)
        lines = base.mark_line(strokeWidth=1.8).encode(strokeDash=dash)
        points = base.mark_point(filled=True, size=30).encode(detail="loss:N")
        return alt.layer(lines, points)

    optimizers = results["optimizer"].unique(maintain_order=True)
    return arranged(_by_budget(results, "optimizer", optimizers, panel))


def draw_noise(noise: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw the law's noise of a step against n/k: a column for each B, start and truth as rows."""
    y = alt.Y(
        "noise:Q",
        title="noise of a step",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(tickCount=4),
    )

    def panel(here: pl.DataFrame) -> Panel:
        lines: alt.Chart = alt.Chart(here).mark_line(point=True, strokeWidth=1.8)
        return lines.encode(x=_RATIO, y=y, color=_COLOUR)

    return arranged(_by_budget(noise, "at", ("start", "truth"), panel, words="at the "))


def _by_budget(
    frame: pl.DataFrame,
    by: str,
    values: Iterable[str],
    panel: Callable[[pl.DataFrame], Panel],
    *,
    words: str = "",
) -> alt.VConcatChart:
    """Draw a panel for each budget B (columns) and value of the column `by` (rows)."""
    data = frame.with_columns(ratio=pl.col("batch_size") / pl.col("num_negatives"))
    budgets = data["budget"].unique().sort()
    return in_rows(
        [
            panel(data.filter(pl.col(by) == value, budget=budget)).properties(
                width=170, height=130, title=f"B = {budget:,}, {words}{value}"
            )
            for budget in budgets
        ]
        for value in values
    )
