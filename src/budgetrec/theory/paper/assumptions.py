"""The paper's assumptions A1 to A3, checked on a sample of a trained model's logits.

Each check returns a statistic, its limit and a one-sentence verdict. None is a p-value: with a million logits
every test rejects, and what matters is how far the logits are from the assumption.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from budgetrec.errors import ArgumentError
from budgetrec.theory.paper.lognormal_sums import ks_distance

Floats = NDArray[np.float64]

VARIANCE_LIMIT = 1.2  # the paper's C
NORMALITY_LIMIT = 0.05  # the largest gap between distribution functions
POSITIVE_LIMIT = 0.1  # "much less than" 1


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of checking one assumption on a sample."""

    name: str
    holds: bool
    statistic: float
    limit: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Normality(Check):
    """The result for A1, with the shape of the distribution and the points of a quantile-quantile plot."""

    skewness: float
    excess_kurtosis: float
    normal_quantiles: Floats
    logit_quantiles: Floats


def _logits(logits: ArrayLike) -> Floats:
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2:
        raise ArgumentError(f"logits have shape {values.shape}; pass (targets, items) with 2 items or more.")
    if not np.all(np.isfinite(values)):
        raise ArgumentError("logits contain NaN or infinity; pass finite numbers.")
    return values


def check_normality(logits: ArrayLike, *, num_quantiles: int = 99) -> Normality:
    """Check A1: the logits of a target are normal around their own mean.

    `logits` is (targets, items). Each row is centred, since its mean does not affect the softmax, and all
    rows share one scale. The statistic is the Kolmogorov-Smirnov distance to the normal of that scale.

    >>> rows = np.tile(stats.norm.ppf((np.arange(999) + 0.5) / 999), (2, 1))
    >>> check = check_normality(rows)
    >>> check.holds, round(check.statistic, 3), abs(round(check.skewness, 3))
    (True, 0.001, 0.0)
    """
    values = _logits(logits)
    centred = (values - values.mean(1, keepdims=True)).ravel()
    spread = float(centred.std())
    if spread == 0:
        raise ArgumentError("all logits of each target are equal; pass a model that distinguishes items.")
    shares = (np.arange(num_quantiles) + 0.5) / num_quantiles
    distance = ks_distance(centred, stats.norm(scale=spread))
    skewness, kurtosis = float(stats.skew(centred)), float(stats.kurtosis(centred))
    holds = distance <= NORMALITY_LIMIT
    return Normality(
        name="A1",
        holds=holds,
        statistic=distance,
        limit=NORMALITY_LIMIT,
        verdict=f"The logits are {'close to' if holds else 'not'} normal: their cumulative is "
        f"within {distance:.3f} of a normal one (limit {NORMALITY_LIMIT}), "
        f"skewness {skewness:.2f}, excess kurtosis {kurtosis:.2f}.",
        skewness=skewness,
        excess_kurtosis=kurtosis,
        normal_quantiles=stats.norm.ppf(shares),
        logit_quantiles=np.quantile(centred, shares) / spread,
    )


def check_variance(logits: ArrayLike) -> Check:
    """Check A2: the variance of a target's logits, averaged over targets, is below 1.2.

    `logits` is (targets, items).

    >>> check_variance([[1.0, -1.0], [2.0, 0.0]]).verdict
    'The logits of a target have variance 1.00, below 1.2: the expansions in 1/k hold.'
    """
    variance = float(_logits(logits).var(axis=1).mean())
    holds = variance < VARIANCE_LIMIT
    return Check(
        name="A2",
        holds=holds,
        statistic=variance,
        limit=VARIANCE_LIMIT,
        verdict=f"The logits of a target have variance {variance:.2f}, "
        + ("below 1.2: the expansions in 1/k hold." if holds else "not below 1.2: use the exact curves."),
    )


def check_positive_share(logits: ArrayLike, targets: ArrayLike) -> Check:
    r"""Check A3: $h_{pos} / K \ll h_{neg}$, by the mean of $h_{pos} / (K h_{neg})$ over targets.

    Weights (2; 2, 2, 2), the first being the positive, give (2/4)/2:

    >>> check_positive_share(np.log([[2.0, 2.0, 2.0, 2.0]]), [0]).statistic
    0.25
    """
    values = _logits(logits)
    positives = np.asarray(targets, dtype=np.int64)
    if positives.shape != values.shape[:1]:
        raise ArgumentError(
            f"{len(values)} rows of logits came with targets {positives.shape}; pass one target per row."
        )
    weights = np.exp(values - values.max(1, keepdims=True))
    own = weights[np.arange(len(values)), positives]
    others = (weights.sum(1) - own) / (values.shape[1] - 1)
    share = float(np.mean(own / (values.shape[1] * others)))
    holds = share < POSITIVE_LIMIT
    return Check(
        name="A3",
        holds=holds,
        statistic=share,
        limit=POSITIVE_LIMIT,
        verdict=f"The positive weighs {share:.3f} of the catalogue, "
        + ("little enough to neglect." if holds else f"not below {POSITIVE_LIMIT}: it cannot be neglected."),
    )
