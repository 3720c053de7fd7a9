"""The paper's figure: a sum of lognormals, Fenton-Wilkinson and the central limit against Monte Carlo."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from budgetrec.display.charts import arranged
from budgetrec.display.colours import BLUE, GREY, ORANGE
from budgetrec.errors import DataError
from budgetrec.study.engine.encodings import Panel, coloured, in_rows
from budgetrec.study.engine.frame import Findings, Request, Study
from budgetrec.study.engine.grid import Cell, Outcome, Stage, Stages
from budgetrec.study.engine.scale import Scale
from budgetrec.study.engine.tabulating import tabulate
from budgetrec.theory.paper.lognormal_sums import (
    central_limit,
    fenton_wilkinson,
    ks_distance,
    sample_sums,
    sum_mean,
    sum_variance,
    wasserstein_distance,
)

_SAMPLES = {Scale.SMOKE: 4_000, Scale.SMALL: 200_000, Scale.PAPER: 1_000_000}
_NUM_TERMS = {Scale.SMOKE: (4, 32), Scale.SMALL: (4, 16, 64, 256), Scale.PAPER: (4, 16, 64, 256, 1024)}
_SIGMAS = {Scale.SMOKE: (0.5, 1.0), Scale.SMALL: (0.5, 1.0, 1.5), Scale.PAPER: (0.5, 1.0, 1.5, 2.0)}
_METHODS = {"Fenton-Wilkinson": fenton_wilkinson, "central limit": central_limit}
_SAMPLE = "Monte Carlo"
_COLUMNS = {
    "sigma": "{sigma:g}",
    "k": "{num_terms}",
    "approximation": "{approximation}",
    "KS distance": "{ks_distance:.4f}",
    "Wasserstein / mean": "{wasserstein_over_mean:.4f}",
}


@dataclass(frozen=True, kw_only=True)
class LognormalStudy:
    """`distances` has a row for each (sigma, k, approximation); `densities` the curves of the figure."""

    distances: pl.DataFrame
    densities: pl.DataFrame


def measure_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Make the whole study, which takes seconds."""
    study = study_lognormal(scale=Scale(settings["scale"]), seed=settings["seed"])
    columns = {"distances": study.distances, "densities": study.densities}
    return Outcome(values={name: frame.to_dict(as_series=False) for name, frame in columns.items()})


def stages(request: Request, folder: Path) -> Stages[Findings]:
    """Run the study's one cell."""
    cell = Cell(
        study="lognormal",
        version=1,
        function=f"{__name__}:measure_cell",
        settings={"scale": request.scale.value, "seed": request.seed},
    )
    (outcome,) = yield Stage([cell])
    if outcome is None:
        raise DataError("the study's only cell failed. Look into cells/*.failed.json.")
    distances, densities = (pl.DataFrame(outcome.values[name]) for name in ("distances", "densities"))
    return Findings(
        title="Sums of lognormals: two approximations against Monte Carlo",
        text=[
            f"{_SAMPLES[request.scale]:,} sums for each sigma and k, which are ours: the paper gives none."
        ],
        tables={"distances": ("Distances from the sample", tabulate(distances, _COLUMNS, num_words=3))},
        frames={"densities": densities},
        charts={"densities": ("Density of a sum of k lognormals over its mean.", draw_densities(densities))},
    )


STUDY = Study(name="lognormal", count=lambda request: 1, stages=stages)


def study_lognormal(*, scale: Scale, seed: int) -> LognormalStudy:
    """Compare both approximations with a sample for each (sigma, k) of the scale."""
    generator = np.random.default_rng(seed)
    distances, densities = [], []
    for sigma in _SIGMAS[scale]:
        for num_terms in _NUM_TERMS[scale]:
            sample = sample_sums(
                sigma=sigma, num_terms=num_terms, num_samples=_SAMPLES[scale], generator=generator
            )
            mean = sum_mean(sigma=sigma, num_terms=num_terms)
            spread = sum_variance(sigma=sigma, num_terms=num_terms) ** 0.5
            low, high = np.quantile(sample, [0.0005, 0.985])
            edges = np.linspace(min(low, mean - 2.5 * spread), high, 81)
            middles = (edges[1:] + edges[:-1]) / 2
            counts, _ = np.histogram(sample, bins=edges)
            curves = {_SAMPLE: counts / len(sample) / np.diff(edges)}
            for name, approximate in _METHODS.items():
                distribution = approximate(sigma=sigma, num_terms=num_terms)
                curves[name] = distribution.pdf(middles)
                distances.append(
                    {
                        "sigma": sigma,
                        "num_terms": num_terms,
                        "approximation": name,
                        "ks_distance": ks_distance(sample, distribution),
                        "wasserstein_over_mean": wasserstein_distance(sample, distribution) / mean,
                    }
                )
            for name, density in curves.items():
                densities.append(
                    pl.DataFrame(
                        {
                            "sigma": sigma,
                            "num_terms": num_terms,
                            "curve": name,
                            "sum_over_mean": middles / mean,
                            "density": density * mean,
                        }
                    )
                )
    return LognormalStudy(distances=pl.DataFrame(distances), densities=pl.concat(densities))


def draw_densities(densities: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw a panel for each sigma (rows) and k (columns): the sample an area, approximations lines."""
    x = alt.X("sum_over_mean:Q", title="S / E[S]")
    y = alt.Y("density:Q", title="density")
    colour = coloured("curve", dict(zip([_SAMPLE, *_METHODS], [GREY, BLUE, ORANGE], strict=True)))
    dash = alt.StrokeDash(
        "curve:N", scale=alt.Scale(domain=list(_METHODS), range=[[1, 0], [5, 3]]), legend=None
    )

    def panel(sigma: float, num_terms: int) -> Panel:
        here = densities.filter(sigma=sigma, num_terms=num_terms)
        sample, lines = here.filter(curve=_SAMPLE), here.filter(pl.col("curve") != _SAMPLE)
        area = alt.Chart(sample).mark_area(opacity=0.45).encode(x=x, y=y, color="curve:N")
        line = alt.Chart(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash)
        title = f"sigma = {sigma:g}, k = {num_terms}"
        return alt.layer(area, line).properties(title=title, width=170, height=120)

    sigmas, counts = (densities[name].unique().sort() for name in ("sigma", "num_terms"))
    chart = in_rows([panel(sigma, count) for count in counts] for sigma in sigmas)
    title = "Sum of k lognormals, divided by its mean: sample and approximations"
    return arranged(chart.properties(title=title), title_size=13, label_size=12)
