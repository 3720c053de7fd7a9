"""The paper's figure: a sum of lognormals, Fenton-Wilkinson and the central limit against Monte Carlo."""

from dataclasses import dataclass

import altair as alt
import numpy as np
import polars as pl

from budgetrec.study.outputs import BLUE, GREY, ORANGE, Progress
from budgetrec.study.scale import Scale
from budgetrec.theory.lognormal import (
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


@dataclass(frozen=True, kw_only=True)
class LognormalStudy:
    """`distances` has a row for each (sigma, k, approximation); `densities` the curves of the figure."""

    distances: pl.DataFrame
    densities: pl.DataFrame


def count_cells(scale: Scale) -> int:
    """Count the (sigma, k) of the study."""
    return len(_NUM_TERMS[scale]) * len(_SIGMAS[scale])


def study_lognormal(*, scale: Scale, seed: int, progress: Progress) -> LognormalStudy:
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
            curves = {"Monte Carlo": counts / len(sample) / np.diff(edges)}
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
            progress(1)
    return LognormalStudy(distances=pl.DataFrame(distances), densities=pl.concat(densities))


def draw_densities(densities: pl.DataFrame) -> alt.TopLevelMixin:
    """Draw a panel for each sigma (rows) and k (columns): the sample an area, approximations lines."""
    sample = densities.filter(pl.col("curve") == "Monte Carlo")
    lines = densities.filter(pl.col("curve") != "Monte Carlo")
    x = alt.X("sum_over_mean:Q", title="S / E[S]")
    y = alt.Y("density:Q", title="density")
    colours = alt.Scale(domain=["Monte Carlo", *_METHODS], range=[GREY, BLUE, ORANGE])
    size = {"width": 170, "height": 120}
    rows = []
    for sigma in sample["sigma"].unique().sort():
        panels = []
        for num_terms in sample["num_terms"].unique().sort():
            here = (pl.col("sigma") == sigma) & (pl.col("num_terms") == num_terms)
            area = alt.Chart(sample.filter(here)).mark_area(opacity=0.45).encode(x=x, y=y, color="curve:N")
            line = (
                alt.Chart(lines.filter(here))
                .mark_line(strokeWidth=2)
                .encode(
                    x=x,
                    y=y,
                    color=alt.Color("curve:N", scale=colours, title=None),
                    strokeDash=alt.StrokeDash(
                        "curve:N",
                        scale=alt.Scale(domain=list(_METHODS), range=[[1, 0], [5, 3]]),
                        legend=None,
                    ),
                )
            )
            panels.append(
                alt.layer(area, line).properties(title=f"sigma = {sigma:g}, k = {num_terms}", **size)
            )
        rows.append(alt.hconcat(*panels))
    chart: alt.TopLevelMixin = (
        alt.vconcat(*rows)
        .properties(title="Sum of k lognormals, divided by its mean: sample and approximations")
        .configure_legend(orient="bottom", labelFontSize=12)
        .configure_title(fontSize=13, anchor="start")
    )
    return chart
