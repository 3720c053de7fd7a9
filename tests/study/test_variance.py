import numpy as np
import pytest

from budgetrec.study.variance.study import Grid, Setting, study_setting

GRID = Grid(
    num_items=5000,
    dim=32,
    batch_sizes=(16,),
    num_negatives=(8, 16, 32),
    num_repeats=250,
    num_probe_targets=1200,
    num_curve_pairs=64,
)


@pytest.mark.parametrize("mean_norm", [0.0, 4.0])
def test_the_law_is_right_to_five_percent_at_five_thousand_items(mean_norm):
    """Width 32, logits of deviation 1: within 5% of 250 steps from k = 8 on, also where A2 fails."""
    setting = Setting(name="", mean_norm=mean_norm)
    rows = list(study_setting(setting, GRID, np.random.default_rng(0)))
    assert len(rows) == 9
    assert all(row["a2_holds"] == (mean_norm == 0) for row in rows)
    assert max(abs(row["law_error"]) for row in rows) < 0.05


def test_the_law_is_right_to_a_tenth_for_a_concentrated_softmax():
    """Logits of deviation 2.5, rho near 100: within 10% of 250 steps at k = 32; 1/(k + rho) is 30% off."""
    rows = study_setting(Setting(name="", logit_scale=2.5), GRID, np.random.default_rng(0))
    rows = [row for row in rows if row["num_negatives"] == 32]
    assert max(abs(row["law_error"]) for row in rows) < 0.1
    assert min(row["saturating_error"] for row in rows) > 0.3
