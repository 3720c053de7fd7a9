"""Learning curves of the main table: loss and NDCG@10 against batches, examples and seconds."""

import altair as alt
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLUE, GREEN, GREY, ORANGE, PINK
from budgetrec.study.engine.encodings import coloured, dashed
from budgetrec.study.table.comparisons import SHARINGS

_AXES = {"step": "batches", "examples": "examples", "seconds": "training seconds"}
_MEASURES = {"val_loss": "validation loss", "ndcg": "validation NDCG@10"}


def draw_curves(curves: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw one row per measure and one column per axis; colour is (n, k), dashes one set per sequence."""
    frame = curves.rename({"ndcg@10": "ndcg"}).with_columns(
        allocation=pl.format("({}, {})", "batch_size", "num_negatives"),
        negatives=pl.col("sharing").replace(SHARINGS),
    )
    names = frame["allocation"].unique(maintain_order=True).to_list()
    colours = dict(zip(names, [ORANGE, GREEN, BLUE, GREY, PINK], strict=False))
    colour = coloured("allocation", colours, title="(n, k)", in_order=True)
    dash = dashed("negatives", *SHARINGS.values())
    panels = [
        alt.Chart(frame)
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                f"{axis}:Q",
                title=title,
                axis=alt.Axis(tickCount=5, format="~g" if axis == "seconds" else "~s"),
            ),
            y=alt.Y(f"{measure}:Q", title=words, scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=dash,
        )
        .properties(width=220, height=160)
        for measure, words in _MEASURES.items()
        for axis, title in _AXES.items()
    ]
    return arranged(alt.concat(*panels, columns=len(_AXES)))
