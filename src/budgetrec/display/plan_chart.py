"""A plan as a picture: the noise over (n, k), the budget's edge, the paper's point and ours."""

import dataclasses

import altair as alt
import numpy as np
import polars as pl

from budgetrec.allocation import Allocation
from budgetrec.display.colours import BLUE, ORANGE
from budgetrec.planner.plan import Plan
from budgetrec.planner.search import Search
from budgetrec.units import format_bytes

_STEPS = 48
_OVERLAP, _ROOM = 1.02, 1.15
_OURS, _PAPERS = "this plan", "the paper's n = k"


def draw_plan(plan: Plan, search: Search) -> alt.TopLevelMixin:
    """Draw the law's noise for the way of sharing that was chosen, over all batch sizes and negatives."""
    chosen = plan.allocation
    way = _drawn(plan)
    n_edges = _edges(search.max_batch_size)
    k_edges = _edges(max(search.num_items - 1, 2))
    x = alt.X("n:Q", title="sequences per step n", scale=_scale(n_edges))
    y = alt.Y("k:Q", title="negatives k", scale=_scale(k_edges))
    surface = (
        alt.Chart(_surface(search, way, n_edges, k_edges))
        .mark_rect()
        .encode(
            x=x,
            x2="n2:Q",
            y=y,
            y2="k2:Q",
            color=alt.Color("noise:Q", scale=alt.Scale(type="log", scheme="greys"), title="noise of a step"),
        )
    )
    layers: list[alt.Chart] = [surface]
    edge = _edge(search, way, n_edges) if way.family in search.bytes else pl.DataFrame()
    if len(edge):
        layers.append(alt.Chart(edge).mark_line(color=ORANGE, strokeWidth=2).encode(x=x, y=y))
    points = [{"n": chosen.batch_size, "k": min(chosen.num_negatives, search.num_items - 1), "what": _OURS}]
    points += [
        {"n": each.batch_size, "k": each.num_negatives, "what": each.name}
        for each in plan.candidates
        if each.name == _PAPERS
    ]
    colours = alt.Color("what:N", scale=alt.Scale(domain=[_OURS, _PAPERS], range=[BLUE, ORANGE]), title="")
    marked = alt.Chart(pl.DataFrame(points)).mark_point(filled=True, size=110, opacity=1)
    layers.append(marked.encode(x=x, y=y, color=colours))
    budget = format_bytes(plan.budget_bytes)
    fits = f"the line is where {budget} end" if len(edge) else f"all of it fits {budget}"
    title = f"Noise of a step, {way.describe()}; {fits}"
    if not chosen.draws:
        title = f"Noise of a step with drawn negatives; at the top all {search.num_items:,} items are scored"
    chart: alt.TopLevelMixin = (
        alt.layer(*layers).resolve_scale(color="independent").properties(width=420, height=320, title=title)
    )
    return chart


def _drawn(plan: Plan) -> Allocation:
    """Return the allocation whose noise is drawn: the plan's, or the same with drawn negatives."""
    if plan.allocation.draws:
        return plan.allocation
    return dataclasses.replace(plan.allocation, objective=Allocation.objective)


def _edges(most: int) -> np.ndarray:
    return np.geomspace(1, max(most, 2), _STEPS + 1)


def _scale(edges: np.ndarray) -> alt.Scale:
    ends = [float(edges[0]) / _ROOM, float(edges[-1]) * _ROOM]
    return alt.Scale(type="log", base=2, domain=ends, nice=False)


def _surface(search: Search, way: Allocation, n_edges: np.ndarray, k_edges: np.ndarray) -> pl.DataFrame:
    n, k = np.meshgrid(n_edges[:-1], k_edges[:-1], indexing="ij")
    n2, k2 = np.meshgrid(n_edges[1:], k_edges[1:], indexing="ij")
    noise = search.noise(way, np.sqrt(n * n2), np.sqrt(k * k2)).total
    # Cells overlap a little, or thin lines would show between them.
    columns = {"n": n, "n2": n2 * _OVERLAP, "k": k, "k2": k2 * _OVERLAP, "noise": noise}
    return pl.DataFrame({name: values.ravel() for name, values in columns.items()})


def _edge(search: Search, way: Allocation, n_edges: np.ndarray) -> pl.DataFrame:
    """Return the most negatives that fit for each batch size, where that is not all items."""
    counts = search.negatives(way)
    points = []
    for n in np.unique(n_edges.round().astype(np.int64)):
        fitting = counts[search.total_bytes(way, n, counts) <= search.limit]
        if 0 < len(fitting) < len(counts):
            points.append({"n": float(n), "k": float(fitting[-1])})
    return pl.DataFrame(points)
