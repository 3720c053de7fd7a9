"""Areas and means under a loss curve, checked by hand."""

import numpy as np
import polars as pl
import pytest

from budgetrec.errors import ArgumentError, DataError
from budgetrec.evaluation.curves import area, common_horizons, mean_loss, summarise_curve


def _metrics(steps, losses, *, batch_size=10, step_seconds=0.5):
    steps = np.array(steps)
    return pl.DataFrame(
        {
            "step": steps,
            "examples": steps * batch_size,
            "seconds": steps * step_seconds,
            "val_loss": np.array(losses, float),
        }
    )


def test_one_run_over_its_own_horizon():
    """Losses 8, 4, 3 at steps 0, 2, 6: area 2 * 6 + 4 * 3.5 = 26, mean 26 / 6 on every axis."""
    summary = summarise_curve(_metrics([0, 2, 6], [8, 4, 3]))
    assert summary["aul_steps"] == 26
    for axis in ("steps", "examples", "seconds"):
        assert summary[f"mean_loss_over_{axis}"] == pytest.approx(26 / 6)


def test_the_area_is_the_sum_over_steps_up_to_half_of_the_ends():
    """Summing the interpolated loss of every step 1..T differs by (L_0 - L_T) / 2, as the module says."""
    random = np.random.default_rng(0)
    steps = np.array([0, 3, 10, 17, 40])
    losses = random.random(5)
    every = np.interp(np.arange(1, 41), steps, losses).sum()
    assert area(steps, losses) == pytest.approx(every + (losses[0] - losses[-1]) / 2)


def test_runs_are_compared_up_to_where_the_shortest_ends():
    """Four times the batch: a quarter of the steps, the same examples; each axis has its own horizon."""
    small = _metrics([0, 40], [8, 4], batch_size=1, step_seconds=1.0)
    large = _metrics([0, 10], [8, 4], batch_size=4, step_seconds=2.0)
    horizons = common_horizons([small, large])
    assert horizons == {"steps": 10, "examples": 40, "seconds": 20}
    first, second = summarise_curve(small, horizons), summarise_curve(large, horizons)
    assert first["aul_steps"] == 240
    assert second["aul_steps"] == 60  # four times less for the same quality: why the means are there
    assert first["mean_loss_over_steps"] == 7.5  # from 8 to 7 in 10 steps
    assert second["mean_loss_over_steps"] == 6
    assert first["mean_loss_over_examples"] == second["mean_loss_over_examples"] == 6
    assert first["mean_loss_over_seconds"] == 7
    assert second["mean_loss_over_seconds"] == 6


def test_a_horizon_on_a_measured_place_needs_no_interpolation():
    """Up to step 2 of 8, 4, 3: mean 6."""
    assert mean_loss(np.array([0.0, 2, 6]), np.array([8.0, 4, 3]), 2) == 6


def test_a_run_that_was_only_evaluated_has_the_loss_it_began_with():
    """One row: no area, and the mean is the loss."""
    summary = summarise_curve(_metrics([0], [7]))
    assert summary["aul_steps"] == 0
    assert summary["mean_loss_over_seconds"] == 7


def test_a_horizon_beyond_a_run_is_refused():
    """The sentence says how far the run goes."""
    with pytest.raises(ArgumentError, match="horizon 7 lies outside a curve from 0 to 6"):
        mean_loss(np.array([0.0, 6]), np.array([8.0, 4]), 7)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (_metrics([], []), "no evaluation yet"),
        (_metrics([0, 1], [3, np.nan]), "not numbers"),
        (_metrics([0, 5, 2], [3, 2, 1]), "go backwards"),
        (_metrics([0, 1], [3, 2]).drop("val_loss"), "no column 'val_loss'"),
    ],
)
def test_metrics_that_give_no_curve_are_refused(metrics, sentence):
    """Empty, not a number, out of order or without the column: told in a sentence."""
    with pytest.raises(DataError, match=sentence):
        summarise_curve(metrics)
