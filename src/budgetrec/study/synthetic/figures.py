"""Figures of the synthetic study: loss curves, mean losses against n/k, and the law's noise."""

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLUE, ORANGE

_SHARINGS = ["shared", "per target"]
_COLOUR = alt.Color("sharing:N", scale=alt.Scale(domain=_SHARINGS, range=[ORANGE, BLUE]), title="negatives")
_AS_RATIO = "datum.value < 1 ? '1/' + format(1 / datum.value, ',.4~g') : format(datum.value, ',.4~g')"
_RATIO = alt.X(
    "ratio:Q",
    title="n / k",
    scale=alt.Scale(type="log", base=2),
    axis=alt.Axis(tickCount=5, labelExpr=_AS_RATIO),
)
_AXES = {"steps": "iterations", "examples": "examples", "logits": "logits"}


def draw_curves(frame: pl.DataFrame, axis: str, oracle: float | None) -> alt.TopLevelMixin:
    """Draw a column for each B and a row for each way of sharing, coloured by n/k; cut where runs diverge."""
    data = _with_ratio(frame).filter(pl.col(axis) > 0)
    highest = float(frame.filter(pl.col("steps") == 0)["val_loss"].max() or 1.0)  # type: ignore[arg-type]
    lowest = min(float(data["val_loss"].min()), oracle or highest)  # type: ignore[arg-type]
    panels = []
    for sharing in _SHARINGS:
        row = []
        for budget in data["budget"].unique().sort():
            here = data.filter(budget=budget, sharing=sharing)
            row.append(
                alt.Chart(here)
                .mark_line(strokeWidth=1.8, clip=True)
                .encode(
                    x=alt.X(
                        f"{axis}:Q",
                        title=_AXES[axis],
                        scale=alt.Scale(type="log", nice=False),
                        axis=alt.Axis(tickCount=4, format="~s"),
                    ),
                    y=alt.Y(
                        "val_loss:Q",
                        title="validation loss",
                        scale=alt.Scale(domain=[lowest, highest * 1.03]),
                    ),
                    color=alt.Color(
                        "ratio:Q",
                        title="n / k",
                        scale=alt.Scale(type="log", base=2, scheme="viridis"),
                        legend=alt.Legend(labelExpr=_AS_RATIO),
                    ),
                    detail="ratio:Q",
                )
                .properties(width=170, height=130, title=f"B = {budget:,}, {sharing}")
            )
        panels.append(alt.hconcat(*row))
    chart: alt.TopLevelMixin = alt.vconcat(*panels).configure_title(fontSize=12, anchor="start")
    return chart


def draw_averages(results: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw mean loss against n/k: a column for each B, a row for each optimiser."""
    data = _with_ratio(results)
    dash = alt.StrokeDash(
        "loss:N",
        scale=alt.Scale(domain=["corrected", "vanilla"], range=[[1, 0], [4, 3]]),
        title="loss",
        legend=alt.Legend(symbolType="stroke"),
    )
    panels = []
    for optimizer in data["optimizer"].unique(maintain_order=True):
        row = []
        for budget in data["budget"].unique().sort():
            here = data.filter(optimizer=optimizer, budget=budget)
            base = alt.Chart(here).encode(
                x=_RATIO,
                y=alt.Y("mean_loss:Q", title="mean loss", scale=alt.Scale(zero=False)),
                color=_COLOUR,
            )
            row.append(
                alt.layer(
                    base.mark_line(strokeWidth=1.8).encode(strokeDash=dash),
                    base.mark_point(filled=True, size=30).encode(detail="loss:N"),
                ).properties(width=170, height=130, title=f"B = {budget:,}, {optimizer}")
            )
        panels.append(alt.hconcat(*row))
    return arranged(alt.vconcat(*panels))


def draw_noise(noise: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw the law's noise of a step against n/k: a column for each B, start and truth as rows."""
    data = _with_ratio(noise)
    panels = []
    for place in ("start", "truth"):
        row = [
            alt.Chart(data.filter(at=place, budget=budget))
            .mark_line(point=True, strokeWidth=1.8)
            .encode(
                x=_RATIO,
                y=alt.Y(
                    "noise:Q",
                    title="noise of a step",
                    scale=alt.Scale(type="log", nice=False),
                    axis=alt.Axis(tickCount=4),
                ),
                color=_COLOUR,
            )
            .properties(width=170, height=130, title=f"B = {budget:,}, at the {place}")
            for budget in data["budget"].unique().sort()
        ]
        panels.append(alt.hconcat(*row))
    return arranged(alt.vconcat(*panels))


def _with_ratio(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(ratio=pl.col("batch_size") / pl.col("num_negatives"))
