"""What the studies write into their folder: settings, tables and figures."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import altair as alt
import polars as pl

from budgetrec.display.charts import save_pictures
from budgetrec.display.study_folder import MARKER, SPECIFICATION
from budgetrec.files import write_whole
from budgetrec.runs.environment import write_environment
from budgetrec.runs.layout import ENVIRONMENT as ENVIRONMENT_FILE

# What a study writes, and may replace.
FILES = (MARKER, ENVIRONMENT_FILE, "*.csv", "*.svg", "*.png", f"*{SPECIFICATION}", "report.html")

Progress = Callable[[int], None]


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
        names += save_pictures(chart, directory, name)
        (directory / f"{name}{SPECIFICATION}").write_text(chart.to_json(indent=None) + "\n", "utf-8")
        names.append(f"{name}{SPECIFICATION}")
    return names


def write_marker(directory: Path, settings: Mapping[str, object]) -> None:
    """Write what tells a study's folder: its name and settings, and what a page of it says."""
    text = json.dumps(settings, indent=2) + "\n"
    write_whole(directory / MARKER, lambda partial: partial.write_text(text, "utf-8"))
