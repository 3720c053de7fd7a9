import numpy as np
import pytest

from budgetrec.errors import ArgumentError
from budgetrec.theory.paper import assumptions


def _normal(scale, shape=(20, 2000)):
    return scale * np.random.default_rng(0).standard_normal(shape)


def test_normal_logits_pass_a1_whatever_their_mean():
    """A1 holds for normal rows of different means, and its quantiles lie on the diagonal within 0.05."""
    check = assumptions.check_normality(_normal(0.8) + np.arange(20)[:, None])
    assert check.holds
    assert check.statistic < 0.01
    inner = slice(5, -5)
    np.testing.assert_allclose(check.logit_quantiles[inner], check.normal_quantiles[inner], atol=0.05)


def test_skewed_logits_fail_a1_with_their_skewness():
    """Exponential logits fail: the distance is 0.16 and the skewness 2, within 10%."""
    check = assumptions.check_normality(np.random.default_rng(0).exponential(1.0, (20, 2000)))
    assert not check.holds
    assert check.statistic == pytest.approx(0.159, rel=0.1)
    assert check.skewness == pytest.approx(2.0, rel=0.1)
    assert "not normal" in check.verdict


@pytest.mark.parametrize(("variance", "holds"), [(1.1, True), (1.3, False)])
def test_a2_is_held_to_its_limit(variance, holds):
    """A2 turns at a variance of 1.2 and states what it saw."""
    check = assumptions.check_variance(_normal(np.sqrt(variance)))
    assert check.holds is holds
    assert check.statistic == pytest.approx(variance, rel=0.02)
    assert f"{check.statistic:.2f}" in check.verdict


def test_a3_fails_once_the_positive_holds_a_tenth_of_the_catalogue():
    """A3: weight 1 among 100 equal items holds, weight 20 does not."""
    logits = np.zeros((3, 100))
    assert assumptions.check_positive_share(logits, [0, 1, 2]).holds
    logits[:, 0] = np.log(20.0)
    check = assumptions.check_positive_share(logits, [0, 0, 0])
    assert not check.holds
    assert check.statistic == pytest.approx(0.2)


def test_logits_that_are_none_are_refused():
    """Wrong shapes, NaN, flat logits and missing targets are one sentence each."""
    with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
        assumptions.check_variance(np.zeros(3))
    with pytest.raises(ArgumentError, match="NaN or infinity"):
        assumptions.check_variance(np.full((2, 3), np.nan))
    with pytest.raises(ArgumentError, match="are equal"):
        assumptions.check_normality(np.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="2 rows of logits"):
        assumptions.check_positive_share(np.zeros((2, 3)), [0])
