"""The page of studies: what each was asked and found, its charts and its tables."""

import binascii
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.scanning import POLARS_ERRORS
from budgetrec.display.study_folder import EVERYTHING, MARKER, SHOWN, SPECIFICATION
from budgetrec.display.tables import StudyTable
from budgetrec.errors import DataError, first_line
from budgetrec.report.interactive import interactive
from budgetrec.report.page import Chart, render
from budgetrec.report.run_cells import environment_pairs
from budgetrec.report.sortable import Table, frame_table, setting_pairs, written_table
from budgetrec.runs.documents import read_json
from budgetrec.runs.environment import command_text
from budgetrec.runs.layout import ENVIRONMENT

_FOLDED_ROWS = 40  # of plain numbers
_FOLDED_WRITTEN_ROWS = 80  # of a table that was written for reading
_PNG = b"\x89PNG\r\n\x1a\n"
_SHOWN_KINDS: dict[str, type] = {"title": str, "text": list, "charts": dict, "tables": dict, "studies": dict}


@dataclass(frozen=True)
class Shown:
    """What a study says of itself: a title, paragraphs, captions in order; of all studies their questions."""

    title: str = ""
    text: Sequence[str] = ()
    charts: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    studies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    """A chart of the page by its number, or a picture where its specification was not kept."""

    name: str
    caption: str
    chart: int | None = None
    picture: str = ""
    width: int = 0


@dataclass(frozen=True)
class Study:
    """A study's folder as the page shows it."""

    name: str
    anchor: str
    title: str
    text: Sequence[str]
    settings: list[tuple[str, str]]
    drawings: list[Drawing]
    tables: list[tuple[Table, bool]]  # and whether it is folded
    environment: list[tuple[str, str]]
    command: str


def study_page(folders: Sequence[Path], *, title: str) -> str:
    """Return one page for the studies in these folders; one alone gives it its own name.

    Of several, a first one that holds all others gives the title, the lead, their order and questions.
    """
    lead = Shown()
    if len(folders) > 1:
        settings = read_json(folders[0] / MARKER) or {}
        if settings.get("study") == EVERYTHING:
            lead = _shown(settings, folders[0])
            order = {name: place for place, name in enumerate(lead.studies)}
            folders = sorted(folders[1:], key=lambda folder: order.get(folder.name, len(order)))
    charts: list[Chart] = []
    studies = [
        _study(folder, place, charts, lead.studies.get(folder.name)) for place, folder in enumerate(folders)
    ]
    names = Counter(study.name for study in studies)
    studies = [
        replace(study, name=f"{study.name} ({folder.resolve().name})") if names[study.name] > 1 else study
        for study, folder in zip(studies, folders, strict=True)
    ]
    if len(studies) == 1:
        title = studies[0].title or studies[0].name
    return render("study.html", charts=charts, title=lead.title or title, text=lead.text, studies=studies)


def _study(folder: Path, place: int, charts: list[Chart], question: str | None) -> Study:
    settings = read_json(folder / MARKER) or {}
    environment = read_json(folder / ENVIRONMENT)
    shown = _shown(settings, folder)
    name = settings.pop("study", None)
    return Study(
        name=name if isinstance(name, str) else folder.resolve().name,
        anchor=f"study-{place + 1}",
        title=question or shown.title,
        text=shown.text,
        settings=setting_pairs({key: value for key, value in settings.items() if key != SHOWN}),
        drawings=list(_drawings(folder, charts, shown.charts)),
        tables=list(_tables(folder, shown.tables)),
        environment=environment_pairs(environment),
        command=command_text(environment),
    )


def _shown(settings: Mapping[str, Any], folder: Path) -> Shown:
    """Read what the study says of itself; nothing where it says nothing."""
    found = settings.get(SHOWN, {})
    texts = found if isinstance(found, dict) else {SHOWN: None}
    for key, value in texts.items():
        kind = _SHOWN_KINDS.get(key)
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if kind is None or not isinstance(value, kind) or not all(isinstance(text, str) for text in inside):
            raise DataError(
                f"{folder / MARKER} has something other than text under {SHOWN!r} ({key}). "
                "Run the study again, or remove that part."
            )
    return Shown(**texts)


def _tables(folder: Path, captions: Mapping[str, str]) -> Iterator[tuple[Table, bool]]:
    """Return the tables that the study wrote for reading, then its other numbers, folded."""
    for name, caption in captions.items():
        path = folder / f"{name}.md"
        if path.is_file():
            table = written_table(_read_markdown(path), title=caption, source=path.name)
            yield table, table.num_rows > _FOLDED_WRITTEN_ROWS
    for path in sorted(folder.glob("*.csv")):
        if path.stem in captions and (folder / f"{path.stem}.md").is_file():
            continue
        frame = _read_csv(path)
        folded = bool(captions) or len(frame) > _FOLDED_ROWS
        yield frame_table(frame, title=path.name, source=path.name), folded


def _drawings(folder: Path, charts: list[Chart], captions: Mapping[str, str]) -> Iterator[Drawing]:
    names = {path.name.removesuffix(SPECIFICATION) for path in folder.glob(f"*{SPECIFICATION}")}
    names |= {path.stem for path in folder.glob("*.png")}
    for name in [*(name for name in captions if name in names), *sorted(names - captions.keys())]:
        spec = read_json(folder / f"{name}{SPECIFICATION}")
        if spec is None:
            yield _picture(folder / f"{name}.png", captions.get(name, ""))
            continue
        yield Drawing(name, captions.get(name, ""), chart=len(charts))
        charts.append(Chart(interactive(spec), captions.get(name) or _words(spec, name)))


def _words(spec: dict[str, Any], name: str) -> str:
    title = spec.get("title")
    text = title.get("text") if isinstance(title, dict) else title
    return text if isinstance(text, str) else name


def _picture(path: Path, caption: str) -> Drawing:
    content = path.read_bytes()
    if content[:8] != _PNG or len(content) < 24:
        raise DataError(f"{path} is not a PNG picture. Run the study again, or remove it.")
    width = struct.unpack(">I", content[16:20])[0]
    encoded = binascii.b2a_base64(content, newline=False).decode()
    return Drawing(path.stem, caption, picture=f"data:image/png;base64,{encoded}", width=width // 2)


def _read_csv(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path.read_bytes(), infer_schema_length=None)
    except (OSError, *POLARS_ERRORS) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {first_line(error)}. Run the study again, or remove it."
        ) from error


def _read_markdown(path: Path) -> StudyTable:
    try:
        return StudyTable.from_markdown(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {error}. Run the study again, or remove it."
        ) from error
