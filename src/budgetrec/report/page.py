"""From what a page shows to its HTML: everything is escaped, everything is inside.

The chart library (Vega, Vega-Lite and Vega-Embed, from vl-convert) is put in once. The page forbids itself
the network by a content security policy, so nothing in it, a chart's specification included, can load
anything.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from budgetrec._version import __version__

# Tells a page of ours; it stands in the first lines of each.
SIGNATURE = '<meta name="generator" content="budgetrec report">'


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification, and what it shows in words.

    A chart as wide as its container is `fluid`; others keep the size of their specification and scroll.
    """

    spec: dict[str, Any]
    words: str
    fluid: bool = False


def render(template: str, *, charts: list[Chart], **content: Any) -> str:
    """Fill a template; `charts` are numbered as it places them."""
    return (
        _templates()
        .get_template(template)
        .render(
            **content,
            charts=charts,
            specs=script_json([{"spec": chart.spec, "fluid": chart.fluid} for chart in charts]),
            bundle=_bundle() if charts else "",
            version=__version__,
        )
    )


def script_json(value: Any) -> Markup:
    r"""Return JSON that can stand in a script element: no text of it ends the script or opens a comment.

    >>> print(script_json("</script><!--"))
    "\u003c/script\u003e\u003c!--"
    """
    text = json.dumps(value, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704


def marked(text: str) -> Markup:
    """Return a paragraph of a study: `**bold**` and `` `code` `` are marked up, all else is text.

    >>> print(marked("**Reduced**: `k <= n` & <b>"))
    <strong>Reduced</strong>: <code>k &lt;= n</code> &amp; &lt;b&gt;
    """
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", safe))  # noqa: S704


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("budgetrec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = marked
    environment.globals["signature"] = Markup(SIGNATURE)  # noqa: S704
    for name in ("style.css", "page.js"):
        text = (files(__package__) / "templates" / name).read_text("utf-8")
        environment.globals[name.replace(".", "_")] = Markup(text)  # noqa: S704
    return environment


@cache
def _bundle() -> Markup:
    """Return Vega, Vega-Lite and Vega-Embed as one script; it takes seconds to put together."""
    import vl_convert

    script = re.sub(
        "</(?=script)",
        r"<\\/",
        vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        flags=re.IGNORECASE,
    )
    return Markup(script.replace("<!--", r"<\!--"))  # noqa: S704
