"""Figures of the noise study: measured against predicted, and how far each form of the law is off."""

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLUE, GREEN, ORANGE
from budgetrec.study.engine.encodings import coloured

_SHARINGS = {"shared": ORANGE, "grouped": BLUE, "per target": GREEN}
_FORMS = {
    "leading_error": "leading order, 1/k",
    "saturating_error": "1/(k + rho)",
    "law_error": "exact curves",
}
_FORM_COLOURS = dict(zip(_FORMS.values(), [ORANGE, GREEN, BLUE], strict=True))


def draw_noise(frame: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw measured points on the law's lines: a column for each kind of features, a row for each n."""
    colour = coloured("sharing", _SHARINGS, title="negatives")
    ladder = frame["num_negatives"].unique().sort().to_list()
    x = alt.X(
        "num_negatives:Q",
        title="negatives k",
        scale=alt.Scale(type="log", base=2, domain=[ladder[0] / 1.2, ladder[-1] * 1.2], nice=False),
        axis=alt.Axis(values=ladder),
    )
    line = (
        alt.Chart()
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y(
                "law:Q",
                title="noise of a step",
                scale=alt.Scale(type="log", nice=False, padding=10),
                axis=alt.Axis(tickCount=4),
            ),
            color=colour,
        )
    )
    point = (
        alt.Chart()
        .mark_point(filled=True, size=45)
        .encode(
            x=x,
            y=alt.Y("measured:Q"),
            color=colour,
            shape=alt.Shape("sharing:N", scale=alt.Scale(domain=list(_SHARINGS)), title="negatives"),
        )
    )
    chart = (
        alt.layer(line, point, data=frame)
        .properties(width=170, height=130)
        .facet(
            column=_by_features(frame),
            row=alt.Row("batch_size:O", title="sequences n"),
        )
        .resolve_scale(y="independent")
        .properties(title="Gradient noise of a step: simulated (points) and the law (lines)")
    )
    return arranged(chart, title_size=14, label_size=12)


def draw_errors(frame: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw the relative error of the leading order, of 1/(k + rho) and of the exact law for each cell."""
    long = (
        frame.select("features", "num_negatives", *_FORMS)
        .unpivot(index=["features", "num_negatives"], variable_name="form", value_name="error")
        .with_columns(pl.col("form").replace_strict(_FORMS), pl.col("error") * 100)
    )
    chart = (
        alt.Chart(long)
        .mark_point(filled=True, size=40, opacity=0.7)
        .encode(
            x=alt.X("num_negatives:O", title="negatives k", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("form:N", sort=list(_FORM_COLOURS)),
            y=alt.Y(
                "error:Q",
                title="prediction over measured - 1, %",
                scale=alt.Scale(type="symlog", constant=5, nice=False, padding=10),
                axis=alt.Axis(values=[-20, -10, -5, 0, 5, 10, 20, 50, 100, 200, 500, 1000]),
            ),
            color=coloured("form", _FORM_COLOURS, in_order=True),
        )
        .properties(width=210, height=200)
        .facet(column=_by_features(frame))
        .properties(title="How far the predicted noise is off, every n and way of sharing")
    )
    return arranged(chart, title_size=14, label_size=12)


def _by_features(frame: pl.DataFrame) -> alt.Column:
    return alt.Column("features:N", title=None, sort=frame["features"].unique(maintain_order=True).to_list())
