r"""The area under the validation loss curve (AUL), as the paper has it and over horizons that runs share.

The loss is measured at some steps $t_0 = 0 < t_1 < \dots < t_m = T$ and taken to be linear between them. The
paper's $\mathrm{AUL} = \sum_t L(t) \Delta t$ over all steps is then the trapezoid
$\sum_i (t_{i+1} - t_i)(L_i + L_{i+1}) / 2$, in which the first and the last step count half (a plain sum over
$t = 1..T$ is less by $(L_0 - L_m)/2$). It grows with the number of steps, so that of two runs of equal
quality the one with larger batches, and so fewer steps, looks better. The mean loss over a horizon $H$ that
all runs reach, $\frac{1}{H} \int_0^H L$, does not; it is given over steps, examples and training seconds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError, DataError

Floats = NDArray[np.float64]

# What a horizon is measured in, and the column of `metrics.parquet` that holds it.
AXES = {"steps": "step", "examples": "examples", "seconds": "seconds"}


def area(places: Floats, losses: Floats) -> float:
    """Return the area under a loss that is linear between the places where it was measured.

    >>> area(np.array([0.0, 2.0, 6.0]), np.array([8.0, 4.0, 3.0]))  # 2 * 6 + 4 * 3.5
    26.0
    """
    return float(np.trapezoid(losses, places))


def mean_loss(places: Floats, losses: Floats, horizon: float | None = None) -> float:
    """Average the loss from the first place to `horizon`, or to the last place.

    A curve of one place has the loss that was measured there.

    >>> mean_loss(np.array([0.0, 2.0, 6.0]), np.array([8.0, 4.0, 3.0]), horizon=4.0)  # (12 + 2 * 3.75) / 4
    4.875
    """
    begin, end = float(places[0]), float(places[-1])
    horizon = end if horizon is None else horizon
    if not begin <= horizon <= end:
        raise ArgumentError(
            f"the horizon {horizon:g} lies outside a curve from {begin:g} to {end:g}. "
            "Pass one that every run reaches."
        )
    if horizon == begin:
        return float(losses[0])
    inside = places < horizon
    cut_places = np.append(places[inside], horizon)
    cut_losses = np.append(losses[inside], np.interp(horizon, places, losses))
    return area(cut_places, cut_losses) / (horizon - begin)


def common_horizons(runs: Sequence[pl.DataFrame]) -> dict[str, float]:
    """Return for each axis how far the shortest of the runs goes."""
    return {axis: min(float(_curve(run, axis)[0][-1]) for run in runs) for axis in AXES}


def summarise_curve(metrics: pl.DataFrame, horizons: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return `aul_steps`, and `mean_loss_over_steps`, `..._examples`, `..._seconds` up to horizons.

    `aul_steps` is over the run's own steps; the means too, if no horizons are given.
    """
    summary = {"aul_steps": area(*_curve(metrics, "steps"))}
    for axis in AXES:
        horizon = None if horizons is None else horizons[axis]
        summary[f"mean_loss_over_{axis}"] = mean_loss(*_curve(metrics, axis), horizon)
    return summary


def _curve(metrics: pl.DataFrame, axis: str) -> tuple[Floats, Floats]:
    missing = [name for name in (AXES[axis], "val_loss") if name not in metrics.columns]
    if missing:
        raise DataError(
            f"the run's metrics have no column {missing[0]!r} (found: {', '.join(metrics.columns)}). "
            "Train the run again."
        )
    places, losses = (
        metrics[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in (AXES[axis], "val_loss")
    )
    if len(places) == 0:
        raise DataError("the run has no evaluation yet, so it has no curve. Train it for at least one.")
    if not (np.isfinite(places).all() and np.isfinite(losses).all()):
        raise DataError(
            f"the run's metrics hold {AXES[axis]} or val_loss that are not numbers. Train the run again."
        )
    if (np.diff(places) < 0).any():
        raise DataError(f"the run's {AXES[axis]} go backwards. Train the run again into a new folder.")
    return places, losses
