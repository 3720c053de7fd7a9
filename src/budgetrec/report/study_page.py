"""The page of studies: what each was asked, its charts and its tables."""

import binascii
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.environment import FILE as ENVIRONMENT_FILE
from budgetrec.errors import DataError
from budgetrec.report.charts import ZOOM
from budgetrec.report.page import Chart, render
from budgetrec.report.records import command_text, environment_pairs, read_json
from budgetrec.report.tables import Table, frame_table, setting_pairs
from budgetrec.study.outputs import BLACK, BLUE, GREEN, GREY, MARKER, ORANGE, SPECIFICATION

_FOLDED_ROWS = 40
_PNG = b"\x89PNG\r\n\x1a\n"
# The colours of the studies, as the page has them for light and dark.
_COLOURS = {
    BLUE: "var(--curve-1)",
    ORANGE: "var(--curve-2)",
    GREEN: "var(--curve-3)",
    GREY: "var(--curve-7)",
    BLACK: "var(--ink)",
}


@dataclass(frozen=True)
class Drawing:
    """A chart of the page by its number, or a picture where its specification was not kept."""

    name: str
    chart: int | None = None
    picture: str = ""
    width: int = 0


@dataclass(frozen=True)
class Study:
    """A study's folder as the page shows it."""

    name: str
    anchor: str
    settings: list[tuple[str, str]]
    drawings: list[Drawing]
    tables: list[tuple[Table, bool]]  # and whether it is folded
    environment: list[tuple[str, str]]
    command: str


def study_page(folders: Sequence[Path], *, title: str) -> str:
    """Give one page for the studies in these folders; one alone gives it its own name."""
    charts: list[Chart] = []
    studies = [_study(folder, place, charts) for place, folder in enumerate(folders)]
    names = Counter(study.name for study in studies)
    studies = [
        replace(study, name=f"{study.name} ({folder.resolve().name})") if names[study.name] > 1 else study
        for study, folder in zip(studies, folders, strict=True)
    ]
    title = studies[0].name if len(studies) == 1 else title
    return render("study.html", charts=charts, title=title, studies=studies)


def _study(folder: Path, place: int, charts: list[Chart]) -> Study:
    settings = read_json(folder / MARKER) or {}
    environment = read_json(folder / ENVIRONMENT_FILE)
    name = settings.pop("study", None)
    tables = []
    for path in sorted(folder.glob("*.csv")):
        frame = _read_csv(path)
        tables.append((frame_table(frame, title=path.name, source=path.name), len(frame) > _FOLDED_ROWS))
    return Study(
        name=name if isinstance(name, str) else folder.resolve().name,
        anchor=f"study-{place + 1}",
        settings=setting_pairs(settings),
        drawings=list(_drawings(folder, charts)),
        tables=tables,
        environment=environment_pairs(environment),
        command=command_text(environment),
    )


def _drawings(folder: Path, charts: list[Chart]) -> Iterator[Drawing]:
    names = {path.name.removesuffix(SPECIFICATION) for path in folder.glob(f"*{SPECIFICATION}")}
    for name in sorted(names | {path.stem for path in folder.glob("*.png")}):
        spec = read_json(folder / f"{name}{SPECIFICATION}")
        if spec is None:
            yield _picture(folder / f"{name}.png")
            continue
        yield Drawing(name, chart=len(charts))
        charts.append(Chart(interactive(spec), _words(spec, name)))


def interactive(spec: dict[str, Any]) -> dict[str, Any]:
    """Give a specification that zooms, whose legend switches curves, in the page's colours.

    One that has parameters of its own is left as it is but for its colours.
    """
    spec = _recoloured(spec)
    if "params" in spec:
        return spec
    views: list[str] = []
    fields: list[str] = []
    channels = {"x", "y"}  # that can be zoomed: of numbers in every view
    for unit, leads in _units(spec):
        if leads:
            unit["name"] = f"view_{len(views) + 1}"
            views.append(unit["name"])
        mark, encoding = unit["mark"], unit["encoding"]
        strength = "opacity"
        if mark["type"] == "line" and "point" not in mark:
            mark["point"] = "transparent"  # a tip tells of a point; of a line it would tell its first
            strength = "strokeOpacity"  # or those points would be seen
        channels &= {name for name in channels if encoding.get(name, {}).get("type") == "quantitative"}
        field = encoding.get("color", {}).get("field")
        if isinstance(field, str) and strength not in encoding:
            fields.append(field)
            held = {"param": "legend", "value": mark.get("opacity", 1)}
            encoding[strength] = {"condition": held, "value": 0.08}
    if not views:
        return spec
    spec["params"] = []
    if channels:
        zoom = {"type": "interval", "zoom": ZOOM, "encodings": sorted(channels)}
        spec["params"].append({"name": "zoom", "select": zoom, "bind": "scales", "views": views})
    if fields:
        toggle = {"type": "point", "fields": list(dict.fromkeys(fields))}
        spec["params"].append({"name": "legend", "select": toggle, "bind": "legend", "views": views})
    return spec


def _units(spec: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Give every marked unit, and whether it leads its view: of layers the last, which is on top."""
    if not isinstance(spec, dict):
        return
    layers = spec.get("layer")
    if isinstance(layers, list):
        for place, layer in enumerate(layers):
            for unit, leads in _units(layer):
                yield unit, leads and place == len(layers) - 1
    elif isinstance(spec.get("mark"), str | dict) and isinstance(spec.get("encoding"), dict):
        spec["mark"] = {"type": spec["mark"]} if isinstance(spec["mark"], str) else spec["mark"]
        yield spec, True
    for key in ("spec", "concat", "hconcat", "vconcat"):
        inside = spec.get(key, [])
        for each in inside if isinstance(inside, list) else [inside]:
            yield from _units(each)


def _recoloured(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: each if key in ("datasets", "data") else _recoloured(each) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_recoloured(each) for each in value]
    return _COLOURS.get(value, value) if isinstance(value, str) else value


def _words(spec: dict[str, Any], name: str) -> str:
    title = spec.get("title")
    text = title.get("text") if isinstance(title, dict) else title
    return text if isinstance(text, str) else name


def _picture(path: Path) -> Drawing:
    content = path.read_bytes()
    if content[:8] != _PNG or len(content) < 24:
        raise DataError(f"{path} is no PNG picture. Run the study again, or remove it.")
    width = struct.unpack(">I", content[16:20])[0]
    encoded = binascii.b2a_base64(content, newline=False).decode()
    return Drawing(path.stem, picture=f"data:image/png;base64,{encoded}", width=width // 2)


def _read_csv(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path.read_bytes(), infer_schema_length=None)
    except (OSError, pl.exceptions.PolarsError) as error:
        told = str(error).splitlines()[0]
        raise DataError(
            f"{path} cannot be read as CSV: {told}. Run the study again, or remove it."
        ) from error
