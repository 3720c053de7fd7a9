"""Intervals cover as often as they say, and tests agree with scipy."""

import numpy as np
import pytest
from scipy import stats

from budgetrec.errors import ArgumentError
from budgetrec.evaluation import intervals
from budgetrec.evaluation.intervals import (
    bootstrap_intervals,
    compare_seeds,
    compare_users,
    t_interval,
)


def test_the_bootstrap_has_the_width_of_the_normal_law():
    """For 4,000 users the interval is mean +- 1.96 standard errors, to a tenth of its width."""
    values = np.random.default_rng(0).exponential(size=4000)
    interval = bootstrap_intervals({"x": values}, seed=0, num_resamples=4000)["x"]
    half = 1.96 * values.std(ddof=1) / np.sqrt(4000)
    assert interval.mean == values.mean()
    assert interval.low == pytest.approx(values.mean() - half, abs=half / 10)
    assert interval.high == pytest.approx(values.mean() + half, abs=half / 10)


def test_intervals_cover_the_truth_19_times_of_20():
    """400 samples of 100 users, true mean 0.3: 95% +- 3.3% (three standard errors) hold it."""
    random = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        hits = (random.random(100) < 0.3).astype(float)
        interval = bootstrap_intervals({"hit": hits}, seed=trial, num_resamples=300)["hit"]
        covered += interval.low <= 0.3 <= interval.high
    assert 0.917 <= covered / 400 <= 0.983


def test_the_same_seed_gives_the_same_interval_and_blocks_do_not_matter(monkeypatch):
    """Seeds decide, not how many resamples are drawn at once."""
    values = {"a": np.arange(50.0), "b": np.arange(50.0) % 7}
    first = bootstrap_intervals(values, seed=3)
    assert first == bootstrap_intervals(values, seed=3)
    assert first != bootstrap_intervals(values, seed=4)
    monkeypatch.setattr(intervals, "_BLOCK_DRAWS", 170)
    assert first == bootstrap_intervals(values, seed=3)


def test_grouping_many_users_keeps_the_width(monkeypatch):
    """Resampling 500 random groups of 5,000 users gives the interval of resampling users, to a fifth."""
    values = {"x": np.random.default_rng(2).exponential(size=5003)}
    users = bootstrap_intervals(values, seed=0, num_resamples=2000)["x"]
    monkeypatch.setattr(intervals, "_MOST_UNITS", 500)
    groups = bootstrap_intervals(values, seed=0, num_resamples=2000)["x"]
    assert groups.mean == users.mean
    assert groups.high - groups.low == pytest.approx(users.high - users.low, rel=0.2)


def test_a_paired_comparison_agrees_with_scipy():
    """The p-value is that of scipy's paired t-test; the interval holds the mean difference."""
    random = np.random.default_rng(3)
    first = random.random(500)
    second = first + random.normal(0.01, 0.1, 500)
    difference = compare_users(first, second, seed=0)
    assert difference.p_value == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert difference.mean == pytest.approx((second - first).mean())
    assert difference.low < difference.mean < difference.high
    assert difference.count == 500


def test_a_run_does_not_differ_from_itself():
    """Difference 0, p-value 1, and no warning of a division by 0."""
    values = np.random.default_rng(4).random(20)
    difference = compare_users(values, values, seed=0)
    assert (difference.mean, difference.low, difference.high, difference.p_value) == (0, 0, 0, 1)


def test_seeds_are_paired_where_both_have_them():
    """Differences 0.1, 0.2, 0.3 of seeds 0, 1, 2: mean 0.2, half-width 4.3027 * 0.1 / sqrt 3."""
    first = {0: 1.0, 1: 2.0, 2: 3.0, 7: 9.0}
    second = {0: 1.1, 1: 2.2, 2: 3.3, 8: 0.0}
    difference = compare_seeds(first, second)
    assert difference.count == 3
    assert difference.mean == pytest.approx(0.2)
    assert difference.high - difference.mean == pytest.approx(4.302653 * 0.1 / np.sqrt(3))
    assert difference.p_value == pytest.approx(stats.ttest_rel([1.1, 2.2, 3.3], [1, 2, 3]).pvalue)
    assert compare_seeds({0: 1.0}, {0: 2.0}) is None


def test_what_cannot_be_averaged_is_refused():
    """Other users, no users, one seed, a seed below 0: each is told."""
    with pytest.raises(ArgumentError, match="seed is -1"):
        bootstrap_intervals({"x": np.ones(3)}, seed=-1)
    with pytest.raises(ArgumentError, match="3 users cannot be paired with 2"):
        compare_users(np.ones(3), np.ones(2), seed=0)
    with pytest.raises(ArgumentError, match="no users"):
        bootstrap_intervals({"x": np.empty(0)}, seed=0)
    with pytest.raises(ArgumentError, match="two or more"):
        t_interval(np.ones(1))
