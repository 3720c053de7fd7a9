r"""Sums of lognormal variables: moments, two approximations, and their distance to samples.

The exponentials $h_i = e^{l_i}$ of normal logits $l_i \sim N(0, \sigma^2)$ are lognormal, and the sampled
softmax divides by $S = h_1 + \dots + h_k$. Distributions are scipy's frozen ones: `.pdf`, `.cdf`, `.ppf`,
`.mean()`, `.var()`.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from budgetrec.options import check_not_negative, check_positive

Floats = NDArray[np.float64]


class Distribution(Protocol):
    """The methods of an approximation, on numbers or arrays."""

    def pdf(self, x: Any, /) -> Any:
        """Return the density at x."""

    def cdf(self, x: Any, /) -> Any:
        """Return the probability of at most x."""

    def ppf(self, q: Any, /) -> Any:
        """Return the quantile of the probability q."""


def _check(sigma: float, num_terms: int) -> None:
    check_not_negative(sigma=sigma)
    check_positive(num_terms=num_terms)


def lognormal_moment(*, sigma: float, order: float) -> float:
    r"""Return $E h^m = e^{m^2 \sigma^2 / 2}$ for $h = e^l$, $l \sim N(0, \sigma^2)$, $m$ = `order` (T1).

    With sigma^2 = 2 log 2 the mean is 2 and the second moment 16:

    >>> sigma = (2 * np.log(2)) ** 0.5
    >>> round(lognormal_moment(sigma=sigma, order=1), 12), round(lognormal_moment(sigma=sigma, order=2), 12)
    (2.0, 16.0)
    """
    check_not_negative(sigma=sigma)
    return float(np.exp(order**2 * sigma**2 / 2))


def sum_mean(*, sigma: float, num_terms: int) -> float:
    r"""Return $E S = k e^{\sigma^2/2}$ for a sum of $k$ = `num_terms` (T1).

    >>> round(sum_mean(sigma=(2 * np.log(2)) ** 0.5, num_terms=3), 12)
    6.0
    """
    _check(sigma, num_terms)
    return num_terms * lognormal_moment(sigma=sigma, order=1)


def sum_variance(*, sigma: float, num_terms: int) -> float:
    r"""Return $D S = k e^{\sigma^2} (e^{\sigma^2} - 1)$ (T1).

    With e^{sigma^2} = 4 and three terms it is 3 * 4 * 3:

    >>> round(sum_variance(sigma=(2 * np.log(2)) ** 0.5, num_terms=3), 12)
    36.0
    """
    _check(sigma, num_terms)
    return float(num_terms * np.exp(sigma**2) * np.expm1(sigma**2))


def fenton_wilkinson(*, sigma: float, num_terms: int) -> Distribution:
    r"""Approximate $S$ by a lognormal with the same mean and variance (T2).

    $S \approx \mathrm{Lognormal}(m, v)$ with $v = \ln(1 + \frac{e^{\sigma^2} - 1}{k})$ and
    $m = \ln k + \frac{\sigma^2}{2} - \frac{v}{2}$. It is exact for one term, and its median is $e^m$:

    >>> float(fenton_wilkinson(sigma=0.7, num_terms=1).ppf(0.5))
    1.0
    """
    _check(sigma, num_terms)
    m, v = fenton_wilkinson_parameters(sigma=sigma, num_terms=num_terms)
    return stats.lognorm(s=max(v, np.finfo(np.float64).tiny) ** 0.5, scale=np.exp(m))


def fenton_wilkinson_parameters(*, sigma: float, num_terms: int) -> tuple[float, float]:
    r"""Return Fenton-Wilkinson's log-mean $m$ and log-variance $v$ (T2).

    With e^{sigma^2} = 4 and k = 3, v = log 2 and m = log 3 + log 2 - log(2)/2:

    >>> m, v = fenton_wilkinson_parameters(sigma=(2 * np.log(2)) ** 0.5, num_terms=3)
    >>> round(float(np.exp(v)), 12), round(float(np.exp(2 * m)), 12)
    (2.0, 18.0)
    """
    _check(sigma, num_terms)
    v = float(np.log1p(np.expm1(sigma**2) / num_terms))
    return float(np.log(num_terms) + sigma**2 / 2 - v / 2), v


def central_limit(*, sigma: float, num_terms: int) -> Distribution:
    r"""Approximate $S$ by a normal with the same mean and variance (T3).

    >>> float(central_limit(sigma=0.0, num_terms=4).ppf(0.5))
    4.0
    """
    _check(sigma, num_terms)
    spread = sum_variance(sigma=sigma, num_terms=num_terms) ** 0.5
    return stats.norm(
        loc=sum_mean(sigma=sigma, num_terms=num_terms), scale=max(spread, np.finfo(np.float64).tiny)
    )


def inverse_sum_mean(*, sigma: float, num_terms: int) -> float:
    r"""Return $E[1/S] = \frac{k + e^{\sigma^2} - 1}{k^2} e^{-\sigma^2/2}$ by Fenton-Wilkinson (T4).

    With e^{sigma^2} = 4 and k = 3 it is (6/9)(1/2):

    >>> round(inverse_sum_mean(sigma=(2 * np.log(2)) ** 0.5, num_terms=3), 12)
    0.333333333333
    """
    _check(sigma, num_terms)
    k = num_terms
    return float((k + np.expm1(sigma**2)) / k**2 * np.exp(-(sigma**2) / 2))


def inverse_sum_variance(*, sigma: float, num_terms: int) -> float:
    r"""Return $D[1/S] = \frac{(k + e^{\sigma^2} - 1)^2}{k^5} (1 - e^{-\sigma^2})$ by Fenton-Wilkinson (T4).

    With e^{sigma^2} = 4 and k = 3 it is (36/243)(3/4) = 1/9:

    >>> round(inverse_sum_variance(sigma=(2 * np.log(2)) ** 0.5, num_terms=3), 12)
    0.111111111111
    """
    _check(sigma, num_terms)
    k = num_terms
    return float((k + np.expm1(sigma**2)) ** 2 / k**5 * -np.expm1(-(sigma**2)))


def sample_sums(*, sigma: float, num_terms: int, num_samples: int, generator: np.random.Generator) -> Floats:
    """Draw `num_samples` sums of lognormals, sorted, in blocks of bounded memory."""
    _check(sigma, num_terms)
    rows = max(1, (1 << 22) // num_terms)
    sums = [
        np.exp(sigma * generator.standard_normal((min(rows, num_samples - start), num_terms))).sum(1)
        for start in range(0, num_samples, rows)
    ]
    drawn: Floats = np.sort(np.concatenate(sums))
    return drawn


def ks_distance(sample: ArrayLike, distribution: Distribution) -> float:
    """Return the largest gap between a sample's distribution function and another (Kolmogorov-Smirnov).

    One point at the median has half of the mass on either side:

    >>> ks_distance([0.0], stats.norm())
    0.5
    """
    drawn = np.asarray(sample, dtype=np.float64)
    return float(stats.ks_1samp(drawn, distribution.cdf, method="asymp").statistic)


def wasserstein_distance(sample: ArrayLike, distribution: Distribution) -> float:
    """Return the mean distance between a sample and a distribution under optimal transport (Wasserstein-1).

    A sample that is 2 to the right of all of the distribution's mass:

    >>> wasserstein_distance([3.0, 3.0], stats.norm(loc=1.0, scale=1e-12))
    2.0
    """
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    middles = (np.arange(len(ordered)) + 0.5) / len(ordered)
    return float(np.round(np.mean(np.abs(ordered - distribution.ppf(middles))), 9))
