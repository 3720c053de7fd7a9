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
from budgetrec.report.charts import TARGET_SIZE, ZOOM
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
    """Give a specification with tips, that zooms, whose legend switches curves, in the page's colours.

    One that has parameters of its own is left as it is but for its colours.
    """
    spec = _recoloured(spec)
    if "params" in spec:
        return spec
    spec = _with_tips(spec)
    zoomed: list[str] = []
    switched: list[str] = []
    fields: list[str] = []
    channels = {"x", "y"}  # that can be zoomed: of numbers in every view
    for place, units in enumerate(_views(spec)):
        units[-1]["name"] = f"top_{place}"
        zoomed.append(f"top_{place}")
        for unit in units:
            encoding = unit["encoding"]
            channels &= {name for name in channels if encoding.get(name, {}).get("type") == "quantitative"}
        coloured = [unit for unit in units if isinstance(unit["encoding"].get("color", {}).get("field"), str)]
        for unit in coloured:
            held = {"param": "legend", "value": unit["mark"].get("opacity", 1)}
            unit["encoding"].setdefault("opacity", {"condition": held, "value": 0.08})
        if coloured:
            fields.append(coloured[0]["encoding"]["color"]["field"])
            switched.append(coloured[0].setdefault("name", f"curves_{place}"))
    params: list[dict[str, Any]] = []
    if zoomed and channels:
        zoom = {"type": "interval", "zoom": ZOOM, "encodings": sorted(channels)}
        params.append({"name": "zoom", "select": zoom, "bind": "scales", "views": zoomed})
    if switched:
        toggle = {"type": "point", "fields": list(dict.fromkeys(fields))}
        params.append({"name": "legend", "select": toggle, "bind": "legend", "views": switched})
    return {**spec, "params": params} if params else spec


def _with_tips(spec: Any) -> Any:
    """Give each mark a tip with its values.

    Of a line a tip would always tell the first point, so unseen points are laid over it.
    """
    if not isinstance(spec, dict):
        return spec
    spec = dict(spec)
    for key in ("layer", "concat", "hconcat", "vconcat"):
        if isinstance(spec.get(key), list):
            spec[key] = [_with_tips(each) for each in spec[key]]
    if "spec" in spec:
        spec["spec"] = _with_tips(spec["spec"])
    if not (isinstance(spec.get("mark"), str | dict) and isinstance(spec.get("encoding"), dict)):
        return spec
    mark = spec["mark"] = {"type": spec["mark"]} if isinstance(spec["mark"], str) else spec["mark"]
    encoding = spec["encoding"] = dict(spec["encoding"])
    tip = [
        {key: held[key] for key in ("field", "type", "title") if isinstance(held.get(key), str)}
        for held in encoding.values()
        if isinstance(held, dict) and isinstance(held.get("field"), str)
    ]
    if mark.get("type") != "line":
        encoding.setdefault("tooltip", list({each["field"]: each for each in tip}.values()))
        return spec
    places = {name: encoding[name] for name in ("x", "y") if name in encoding}
    line = {"mark": spec.pop("mark"), "encoding": spec.pop("encoding")}
    points = {"mark": {"type": "point", "filled": True, "opacity": 0, "size": TARGET_SIZE}}
    return {**spec, "layer": [line, {**points, "encoding": {**places, "tooltip": tip}}]}


def _views(spec: Any) -> Iterator[list[dict[str, Any]]]:
    """Give the marked units of each view, from the lowest layer to the one on top."""
    if not isinstance(spec, dict):
        return
    if units := _units(spec):
        yield units
    for key in ("spec", "concat", "hconcat", "vconcat"):
        inside = spec.get(key, [])
        for each in inside if isinstance(inside, list) else [inside]:
            yield from _views(each)


def _units(spec: Any) -> list[dict[str, Any]]:
    if not isinstance(spec, dict):
        return []
    if isinstance(spec.get("layer"), list):
        return [unit for layer in spec["layer"] for unit in _units(layer)]
    return [spec] if isinstance(spec.get("mark"), dict) and isinstance(spec.get("encoding"), dict) else []


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
