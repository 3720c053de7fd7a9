"""The figure of a field: validation loss against seconds and examples."""

from collections.abc import Mapping
from itertools import cycle

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLACK, BLUE, GREEN, GREY, ORANGE, PINK
from budgetrec.study.engine.encodings import coloured

_AXES = {"seconds": "training seconds", "examples": "sequences seen"}
_COLOURS = [BLUE, ORANGE, GREEN, PINK, BLACK, GREY]


def draw_field(curves: pl.DataFrame, horizons: Mapping[str, Mapping[str, float]]) -> alt.TopLevelMixin:
    """Draw one row per dataset; dashed is the common horizon."""
    names = curves["allocation"].unique(maintain_order=True).to_list()
    colour = coloured("allocation", dict(zip(names, cycle(_COLOURS), strict=False)), in_order=True)
    panels = [
        _panel(curves.filter(dataset=name, axis=axis), f"{name}: {title}", colour, reached[axis], axis)
        for name, reached in horizons.items()
        for axis, title in _AXES.items()
    ]
    chart = alt.concat(*panels, columns=len(_AXES))
    chart = chart.properties(title="Validation loss, mean over seeds; dashed: as far as all runs go")
    return arranged(chart, title_size=14, label_size=12, columns=3)


def _panel(
    frame: pl.DataFrame, title: str, colour: alt.Color, horizon: float, measured: str
) -> alt.LayerChart | alt.FacetChart:
    scale, axis = alt.Scale(), alt.Axis(tickCount=5)
    if measured == "examples":  # they differ by factors of hundreds: logarithmic from the horizon on
        rungs = (first * 10**power for power in range(2, 9) for first in (1, 3))
        ticks = [0, *(place for place in rungs if place > horizon / 2)]
        scale = alt.Scale(type="symlog", constant=horizon)
        thousands = "datum.value >= 1e6 ? datum.value / 1e6 + 'M' : datum.value / 1e3 + 'k'"
        axis = alt.Axis(values=ticks, labelExpr=f"datum.value ? {thousands} : '0'", labelOverlap="greedy")
    line = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("place:Q", title=title, axis=axis, scale=scale),
            y=alt.Y("val_loss:Q", title="validation loss", scale=alt.Scale(zero=False)),
            color=colour,
            tooltip=["allocation:N", "place:Q", "val_loss:Q"],
        )
    )
    rule = alt.Chart(pl.DataFrame({"place": [horizon]})).mark_rule(strokeDash=[4, 4], color=GREY)
    return alt.layer(rule.encode(x="place:Q"), line).properties(width=340, height=230)
