"""Learning curves as a chart specification: hover, zoom, and curves that can be switched off.

Colours are the page's own variables, so that a chart follows light, dark and print without being drawn
again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from budgetrec.display.charts import AXIS_TITLES
from budgetrec.evaluation.curves import AXES
from budgetrec.report.page import Chart

_NUM_COLOURS = 8  # that style.css defines as --curve-1 and so on
_MOST_ROWS = 1000  # of a curve that are drawn
_MOST_POINTS = 60  # of a curve that get a dot
TARGET_SIZE = 500  # of what the pointer meets, in square pixels
# With a key, so that the page still scrolls over a chart.
ZOOM = "wheel![event.ctrlKey || event.metaKey || event.altKey]"


@dataclass(frozen=True)
class Switch:
    """A curve that can be switched off, with its colour."""

    name: str
    colour: str


@dataclass(frozen=True)
class Panels:
    """Charts of the same curves, each under its title, and the switches of the curves."""

    charts: list[Chart]
    titles: list[str]
    switches: list[Switch]


def draw_panels(curves: Mapping[str, Sequence[pl.DataFrame]], *, names: Sequence[str]) -> Panels:
    """Draw a chart for each title that has curves; `names` are all curves in the order of their colours."""
    held = {title: pl.concat(each, how="vertical_relaxed") for title, each in curves.items() if each}
    return Panels(
        charts=[curves_chart(each, names=names, title=title) for title, each in held.items()],
        titles=list(held),
        switches=[Switch(name, _colour(place)) for place, name in enumerate(names)],
    )


def _colour(place: int) -> str:
    """Return the colour of a curve by its place; more curves than colours share them."""
    return f"var(--curve-{place % _NUM_COLOURS + 1})"


def curve(metrics: pl.DataFrame, measure: str, *, name: str) -> pl.DataFrame:
    """Return the rows of a run in which a measure was taken, of very many every second, third and so on."""
    values = pl.col(measure).cast(pl.Float64)
    rows = metrics.filter(values.is_finite().fill_null(False)).select(
        pl.lit(name).alias("curve"), *(pl.col(column) for column in AXES.values()), values.alias("value")
    )
    apart = -(-len(rows) // _MOST_ROWS)  # a browser slows down over more
    return rows.reverse().gather_every(apart).reverse() if apart > 1 else rows


def curves_chart(curves: pl.DataFrame, *, names: Sequence[str], title: str) -> Chart:
    """Draw curves against steps; the page can switch them to the other axes.

    `names` are all curves of the page in the order of their colours; those that `curves` lacks are elsewhere.
    """
    longest = max((len(part) for _, part in curves.group_by("curve")), default=0)
    hover = alt.selection_point(
        name="hover", fields=["curve", "step"], on="pointerover", clear="pointerout", empty=False
    )
    zoom = alt.selection_interval(name="zoom", encodings=["x"], bind="scales", zoom=ZOOM)
    shown = alt.param(name="shown", value=list(names))
    x = alt.X(
        "step:Q",
        title=AXIS_TITLES["steps"],
        axis=alt.Axis(tickCount=6, format="~s"),
        scale=alt.Scale(nice=False, padding=8),
    )
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False, nice=5), axis=alt.Axis(tickCount=5))
    colours = alt.Color(
        "curve:N",
        scale=alt.Scale(domain=list(names), range=[_colour(place) for place in range(len(names))]),
        legend=None,
    )
    base = alt.Chart(alt.InlineData(values=curves.to_dicts())).transform_filter(
        "indexof(shown, datum.curve) >= 0"
    )
    line = base.mark_line(strokeWidth=2, clip=True, interpolate="linear").encode(x=x, y=y, color=colours)
    size = alt.condition(hover, alt.value(90), alt.value(26 if longest <= _MOST_POINTS else 0))
    tooltip = [
        alt.Tooltip("curve:N", title="curve"),
        alt.Tooltip("value:Q", title=title, format=".4f"),
        alt.Tooltip("step:Q", title="step", format=","),
        alt.Tooltip("examples:Q", title="sequences", format=","),
        alt.Tooltip("seconds:Q", title="seconds", format=",.1f"),
    ]
    points = base.mark_point(filled=True, opacity=1, clip=True).encode(x=x, y=y, color=colours, size=size)
    # What the pointer meets is larger than what is seen.
    targets = (
        base.mark_point(filled=True, opacity=0, size=TARGET_SIZE, clip=True)
        .encode(x=x, y=y, tooltip=tooltip)
        .add_params(hover, zoom)
    )
    chart = (
        alt.layer(line, points, targets)
        .add_params(shown)
        .properties(
            width="container", height=230, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
        )
    )
    return Chart(chart.to_dict(), _words(curves, title), fluid=True)


def _words(curves: pl.DataFrame, title: str) -> str:
    """Say what the chart shows to those who do not see it."""
    told = []
    for (name,), part in curves.group_by(["curve"], maintain_order=True):
        first, last = part["value"][0], part["value"][-1]
        if math.isfinite(first) and math.isfinite(last):
            told.append(f"{name} from {first:.4f} to {last:.4f}")
    return f"{title} over {len(told)} curve{'s' if len(told) != 1 else ''}: {'; '.join(told)}."
