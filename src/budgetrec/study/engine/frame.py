"""The frame that every study stands in: a request, a folder that can be gone on with, and what is found."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from budgetrec.display.study_folder import MARKER, SHOWN
from budgetrec.display.tables import StudyTable
from budgetrec.errors import DataError
from budgetrec.files import check_free, claim
from budgetrec.study.engine.grid import CELLS, RUNS, Engine, Failure, Grid, Stages, run_stages
from budgetrec.study.engine.outputs import FILES as STUDY_FILES
from budgetrec.study.engine.outputs import Progress, write_marker, write_study
from budgetrec.study.engine.scale import Scale
from budgetrec.study.synthetic.world import WORLDS

PAGE = "study.md"
PLANS = "plans"  # what the planner chose
DATA = "data"  # generated, where no other is given
FILES = (*STUDY_FILES, PAGE, "*.md", "*.tex", CELLS, RUNS, WORLDS, DATA, PLANS)
FAILURES = "failures"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a study: how much, with which seed, on which prepared datasets by name."""

    scale: Scale
    seed: int = 0
    data: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a study found.

    `title` and `text` (paragraphs) lead a page; `tables` stand in it and are written as Markdown, LaTeX and
    CSV; `frames` are written as CSV only; `charts` as SVG and PNG, each with what it shows; `summary` goes
    into `study.json`.
    """

    title: str
    text: Sequence[str]
    tables: Mapping[str, tuple[str, StudyTable]] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    charts: Mapping[str, tuple[str, alt.TopLevelMixin]] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """Return what a page of the folder says: title, paragraphs, and the captions in their order."""
        return {
            "title": self.title,
            "text": list(self.text),
            "charts": {name: caption for name, (caption, _) in self.charts.items()},
            "tables": {name: caption for name, (caption, _) in self.tables.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study by its name: how many cells it has at most, and its stages in a folder."""

    name: str
    count: Callable[[Request], int]
    stages: Callable[[Request, Path], Stages[Findings]]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A study that was run: its folder, what it found and how many cells failed."""

    name: str
    folder: Path
    findings: Findings
    files: list[str]
    num_failed: int


def run_study(
    study: Study, request: Request, folder: Path, *, engine: Engine, progress: Progress, overwrite: bool
) -> Finished:
    """Run what is missing of a study in its folder, and write tables, figures and a page."""
    settings = {"study": study.name, "scale": request.scale.value, "seed": request.seed}
    with claim(folder):
        begin_folder(folder, settings, overwrite=overwrite)
        grid = Grid(folder, engine, progress)
        findings = run_stages(study.stages(request, folder), grid)
        files = write_findings(folder, settings, findings, grid.failures)
    return Finished(
        name=study.name, folder=folder, findings=findings, files=files, num_failed=len(grid.failures)
    )


def write_findings(
    folder: Path, settings: Mapping[str, Any], findings: Findings, failures: Mapping[str, Failure]
) -> list[str]:
    """Write tables, figures and a page into a folder; return the names of the files."""
    failed = pl.DataFrame({"cell": [*failures], "reason": [each.reason for each in failures.values()]})
    frames = {**findings.frames, **{name: table.frame for name, (_, table) in findings.tables.items()}}
    (folder / f"{FAILURES}.csv").unlink(missing_ok=True)
    files = write_study(
        folder,
        settings={**settings, **findings.summary, "failed_cells": len(failed), SHOWN: findings.shown()},
        tables={**frames, **({FAILURES: failed} if len(failed) else {})},
        charts={name: chart for name, (_, chart) in findings.charts.items()},
    )
    texts = {PAGE: _page(findings, len(failed))}
    for name, (_, table) in findings.tables.items():
        texts |= {f"{name}.md": table.to_markdown(), f"{name}.tex": table.to_latex()}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return [*files, *texts]


def begin_folder(
    folder: Path, settings: Mapping[str, Any], *, overwrite: bool, files: Sequence[str] = FILES
) -> None:
    """Take up a folder of the same study, or make one; anything else in its place is refused.

    With `overwrite` a folder of a study is emptied first, finished cells and all.
    """
    if overwrite:
        check_free(folder, overwrite=True, files=files)
        shutil.rmtree(folder, ignore_errors=True)
    if (folder / MARKER).is_file():
        found = _read_marker(folder / MARKER)
        other = [name for name, value in settings.items() if found.get(name) != value]
        if other:
            name = other[0]
            raise DataError(
                f"{folder} holds a study with {name} {found.get(name)}, not {settings[name]}. "
                "Pass --overwrite to replace it, or another name."
            )
        return
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    check_free(folder, overwrite=False, files=files)
    folder.mkdir(parents=True)
    write_marker(folder, settings)


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. Pass --overwrite, or another name.") from error
    return found if isinstance(found, dict) else {}


def _page(findings: Findings, num_failed: int) -> str:
    parts = [f"# {findings.title}", *findings.text]
    if num_failed:
        parts.append(
            f"**{num_failed} cells failed** and are missing below; [{FAILURES}.csv]({FAILURES}.csv) says "
            "why. The same command tries them again."
        )
    for name, (caption, _) in findings.charts.items():
        parts.append(f"![{caption}]({name}.svg)\n\n*{caption}*")
    for name, (caption, table) in findings.tables.items():
        parts.append(
            f"## {caption}\n\n{table.to_markdown()}\nAlso as [CSV]({name}.csv) and [LaTeX]({name}.tex)."
        )
    return "\n\n".join(parts) + "\n"
