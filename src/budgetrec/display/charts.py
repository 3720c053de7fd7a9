"""What all charts share: where titles and legends stand, what axes are called, and how they are saved."""

from pathlib import Path

import altair as alt

AXIS_TITLES = {"steps": "steps", "examples": "sequences seen", "seconds": "training seconds"}
_LABEL_WIDTH = 300  # in pixels, of a legend in columns


def arranged(
    chart: alt.TopLevelMixin,
    *,
    title_size: int = 12,
    label_size: int | None = None,
    columns: int | None = None,
) -> alt.TopLevelMixin:
    """Return a chart with its titles to the left and its legend below, in `columns` columns."""
    titled: alt.TopLevelMixin = chart.configure_title(fontSize=title_size, anchor="start")
    finished: alt.TopLevelMixin = titled.configure_legend(
        orient="bottom",
        labelFontSize=alt.Undefined if label_size is None else label_size,
        columns=alt.Undefined if columns is None else columns,
        labelLimit=alt.Undefined if columns is None else _LABEL_WIDTH,
    )
    return finished


def save_pictures(chart: alt.TopLevelMixin, folder: Path, name: str) -> list[str]:
    """Save a chart as SVG, and as PNG in twice the resolution; return the files' names."""
    for kind, scale in (("svg", 1), ("png", 2)):
        chart.save(str(folder / f"{name}.{kind}"), scale_factor=scale)
    return [f"{name}.svg", f"{name}.png"]
