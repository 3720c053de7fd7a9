"""What the studies' figures share: colours and dashes by name, and panels in rows."""

from collections.abc import Iterable, Mapping

import altair as alt

Panel = alt.Chart | alt.LayerChart | alt.FacetChart
SOLID, DASHED = [1, 0], [4, 3]


def coloured(
    field: str, colours: Mapping[str, str], *, title: str | None = None, in_order: bool = False
) -> alt.Color:
    """Colour by name; `in_order` lists the names, and places their marks, as they are given."""
    return alt.Color(
        f"{field}:N",
        sort=list(colours) if in_order else alt.Undefined,
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        title=title,
    )


def dashed(field: str, solid: str, dashes: str) -> alt.StrokeDash:
    """Draw lines of one name solid and those of another dashed, as a legend of the field's name says."""
    return alt.StrokeDash(
        f"{field}:N",
        scale=alt.Scale(domain=[solid, dashes], range=[SOLID, DASHED]),
        title=field,
        legend=alt.Legend(symbolType="stroke"),
    )


def in_rows(rows: Iterable[Iterable[Panel]]) -> alt.VConcatChart:
    """Put panels beside each other, and rows of them below each other."""
    return alt.vconcat(*(alt.hconcat(*row) for row in rows))
