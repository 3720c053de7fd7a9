"""What the studies write into their folder: settings, tables and figures."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import altair as alt
import polars as pl

from budgetrec.files import write_whole
from budgetrec.runs.environment import write_environment
from budgetrec.runs.layout import ENVIRONMENT as ENVIRONMENT_FILE

MARKER = "study.json"
SHOWN = "shown"  # in the marker: title, paragraphs and captions for a page
SPECIFICATION = ".vl.json"  # ends the name of a chart's Vega-Lite specification
# What a study writes, and may replace.
FILES = (MARKER, ENVIRONMENT_FILE, "*.csv", "*.svg", "*.png", f"*{SPECIFICATION}", "report.html")

Progress = Callable[[int], None]

# Okabe and Ito's colours: told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#000000", "#999999"
PINK = "#CC79A7"


def write_study(
    directory: Path,
    *,
    settings: Mapping[str, object],
    tables: Mapping[str, pl.DataFrame],
    charts: Mapping[str, alt.TopLevelMixin],
) -> list[str]:
    """Write settings as JSON, tables as CSV, charts as SVG, PNG and specification; give the files' names."""
    names = [MARKER, ENVIRONMENT_FILE]
    write_environment(directory)
    write_marker(directory, settings)
    for name, table in tables.items():
        (directory / f"{name}.csv").write_text(table.write_csv(), "utf-8")
        names.append(f"{name}.csv")
    for name, chart in charts.items():
        for kind in ("svg", "png"):
            chart.save(str(directory / f"{name}.{kind}"), scale_factor=2 if kind == "png" else 1)
            names.append(f"{name}.{kind}")
        (directory / f"{name}{SPECIFICATION}").write_text(chart.to_json(indent=None) + "\n", "utf-8")
        names.append(f"{name}{SPECIFICATION}")
    return names


def write_marker(directory: Path, settings: Mapping[str, object]) -> None:
    """Write what tells a study's folder: its name and settings, and what a page of it says."""
    text = json.dumps(settings, indent=2) + "\n"
    write_whole(directory / MARKER, lambda partial: partial.write_text(text, "utf-8"))
