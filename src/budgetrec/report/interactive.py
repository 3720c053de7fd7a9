"""Make the charts of studies interactive: tips, zoom, a legend that switches curves, the page's colours."""

from collections.abc import Iterator
from typing import Any

from budgetrec.display.colours import BLACK, BLUE, GREEN, GREY, ORANGE, PINK
from budgetrec.report.run_charts import TARGET_SIZE, ZOOM

# The colours of the studies, as the page has them for light and dark.
_COLOURS = {
    BLUE: "var(--curve-1)",
    ORANGE: "var(--curve-2)",
    GREEN: "var(--curve-3)",
    PINK: "var(--curve-4)",
    GREY: "var(--curve-7)",
    BLACK: "var(--ink)",
}


def interactive(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification with tips, that zooms, whose legend switches curves, in the page's colours.

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
    """Return each mark a tip with its values.

    The tip of a line would always tell its first point, so unseen points are laid over it.
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
    """Return the marked units of each view, from the lowest layer to the one on top."""
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
