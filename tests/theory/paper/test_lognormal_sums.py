import numpy as np
import pytest
from scipy import stats

from budgetrec.errors import ArgumentError
from budgetrec.theory.paper import lognormal_sums

SIGMA, TERMS = 0.6, 8


@pytest.fixture(scope="module")
def sums():
    """200,000 sums of eight lognormals."""
    generator = np.random.default_rng(0)
    return lognormal_sums.sample_sums(sigma=SIGMA, num_terms=TERMS, num_samples=200_000, generator=generator)


def test_moments_of_a_lognormal_and_of_a_sum_match_a_sample(sums):
    """T1: mean within 0.5%, variance within 2% of 200,000 sums."""
    draws = np.exp(SIGMA * np.random.default_rng(1).standard_normal(400_000))
    assert np.mean(draws**2) == pytest.approx(lognormal_sums.lognormal_moment(sigma=SIGMA, order=2), rel=0.02)
    assert sums.mean() == pytest.approx(lognormal_sums.sum_mean(sigma=SIGMA, num_terms=TERMS), rel=0.005)
    assert sums.var() == pytest.approx(lognormal_sums.sum_variance(sigma=SIGMA, num_terms=TERMS), rel=0.02)


def test_both_approximations_have_the_moments_of_the_sum():
    """T2, T3: Fenton-Wilkinson and the normal match mean and variance to rounding."""
    for approximate in (lognormal_sums.fenton_wilkinson, lognormal_sums.central_limit):
        distribution = approximate(sigma=SIGMA, num_terms=TERMS)
        assert distribution.mean() == pytest.approx(lognormal_sums.sum_mean(sigma=SIGMA, num_terms=TERMS))
        assert distribution.var() == pytest.approx(lognormal_sums.sum_variance(sigma=SIGMA, num_terms=TERMS))
        assert distribution.cdf(distribution.ppf(0.3)) == pytest.approx(0.3)


def test_fenton_wilkinson_is_five_times_closer_than_the_central_limit(sums):
    """T2: at sigma 0.6 and k = 8 its KS distance is below 0.01 and the normal's above 0.045."""
    near = lognormal_sums.ks_distance(sums, lognormal_sums.fenton_wilkinson(sigma=SIGMA, num_terms=TERMS))
    far = lognormal_sums.ks_distance(sums, lognormal_sums.central_limit(sigma=SIGMA, num_terms=TERMS))
    assert near < 0.01
    assert far > 0.045


def test_distances_agree_with_scipy(sums):
    """KS is scipy's exactly, Wasserstein within 2% of scipy's between two samples."""
    distribution = lognormal_sums.central_limit(sigma=SIGMA, num_terms=TERMS)
    few = sums[::100]
    assert lognormal_sums.ks_distance(few, distribution) == pytest.approx(
        stats.kstest(few, distribution.cdf).statistic
    )
    other = distribution.ppf((np.arange(50_000) + 0.5) / 50_000)
    assert lognormal_sums.wasserstein_distance(few, distribution) == pytest.approx(
        stats.wasserstein_distance(few, other), rel=0.02
    )


def test_moments_of_the_inverse_match_a_sample(sums):
    """T4: E[1/S] within 1%, D[1/S] within 10% (the form is itself approximate) at sigma 0.6, k = 8."""
    assert np.mean(1 / sums) == pytest.approx(
        lognormal_sums.inverse_sum_mean(sigma=SIGMA, num_terms=TERMS), rel=0.01
    )
    assert np.var(1 / sums) == pytest.approx(
        lognormal_sums.inverse_sum_variance(sigma=SIGMA, num_terms=TERMS), rel=0.1
    )


def test_invalid_arguments_are_one_sentence():
    """A negative sigma and an empty sum are refused with what was seen and what to do."""
    with pytest.raises(ArgumentError, match=r"sigma is -1; pass 0 or more\.$"):
        lognormal_sums.sum_mean(sigma=-1, num_terms=3)
    with pytest.raises(ArgumentError, match="num_terms is 0; pass a number above 0"):
        lognormal_sums.fenton_wilkinson(sigma=1.0, num_terms=0)
