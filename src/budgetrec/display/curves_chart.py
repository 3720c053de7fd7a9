"""Learning curves of several runs: validation loss and NDCG@10 against steps, examples and seconds."""

from collections.abc import Mapping

import altair as alt
import polars as pl

from budgetrec.display.charts import AXIS_TITLES, arranged
from budgetrec.display.colours import GREY, curve_colours
from budgetrec.evaluation.curves import AXES


def draw_curves(curves: pl.DataFrame, horizons: Mapping[str, float]) -> alt.TopLevelMixin:
    """Draw a row for each measure and a column for each axis; dashed is the horizon that all runs reach."""
    names = curves["run"].unique(maintain_order=True).to_list()
    colour = alt.Color(
        "run:N",
        sort=names,
        scale=alt.Scale(domain=names, range=curve_colours(len(names))),
        title=None,
    )
    frame = curves.rename({"ndcg@10": "ndcg"})
    charts = [
        _panel(frame, axis, measure, title, colour, horizons[axis])
        for measure, title in (("val_loss", "validation loss"), ("ndcg", "validation NDCG@10"))
        for axis in AXES
    ]
    chart = alt.concat(*charts, columns=len(AXES))
    chart = chart.properties(title="Learning curves; dashed: as far as all runs go")
    return arranged(chart, title_size=14, label_size=12, columns=4)


def _panel(
    frame: pl.DataFrame, axis: str, measure: str, title: str, colour: alt.Color, horizon: float
) -> alt.LayerChart | alt.FacetChart:
    line = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, point={"size": 20})
        .encode(
            x=alt.X(f"{AXES[axis]}:Q", title=AXIS_TITLES[axis], axis=alt.Axis(tickCount=5)),
            y=alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(zero=False)),
            color=colour,
            tooltip=["run:N", f"{AXES[axis]}:Q", f"{measure}:Q"],
        )
    )
    rule = (
        alt.Chart(pl.DataFrame({AXES[axis]: [horizon]}))
        .mark_rule(strokeDash=[4, 4], color=GREY)
        .encode(x=f"{AXES[axis]}:Q")
    )
    return alt.layer(rule, line).properties(width=260, height=200)
