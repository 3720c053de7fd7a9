r"""The paper's variance of one class in the corrected gradient, as printed.

These are the formulas of the paper's appendix for one class and one target, with logits $l \sim N(0,
\sigma^2)$. They treat the draw of a class and the sampled denominator as independent and drop $h_{i_0}^2$
(docs/theory.md, "Where the paper slips"); the law that the planner uses is in noise.py.
"""

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError
from budgetrec.options import check_not_negative, check_positive


def _check(sigma: float, num_negatives: int, num_items: int) -> None:
    check_not_negative(sigma=sigma)
    check_positive(num_negatives=num_negatives)
    if num_negatives > num_items:
        raise ArgumentError(
            f"num_negatives is {num_negatives}, more than the {num_items} items; pass fewer negatives."
        )


def paper_class_variance(*, sigma: float, num_negatives: int, num_items: int) -> float:
    r"""Return the paper's $D[XY]$, before any expansion (T5).

    $$D[XY] = \frac{e^{-\sigma^2}}{K} \frac{(k + e^{\sigma^2} - 1)^2}{k^3}
      \Big( \frac{e^{\sigma^2} - 1}{k} + 1 - \frac kK \Big)$$

    with $k$ = `num_negatives` and $K$ = `num_items`. It is the variance of a class's weight $X Y$, where
    $X \sim \mathrm{Be}(k/K)$ and $Y = 1/S$ are independent and $S$ is a Fenton-Wilkinson lognormal.

    With sigma = 0, k = 2 and K = 4 it is (1/4)(4/8)(1/2) = 1/16:

    >>> paper_class_variance(sigma=0.0, num_negatives=2, num_items=4)
    0.0625
    """
    _check(sigma, num_negatives, num_items)
    k, spread = num_negatives, float(np.expm1(sigma**2))
    return float(
        np.exp(-(sigma**2)) / num_items * (k + spread) ** 2 / k**3 * (spread / k + 1 - k / num_items)
    )


def paper_class_variance_expanded(*, sigma: float, num_negatives: int, num_items: int) -> float:
    r"""Return the paper's expansion of $D[XY]$ for $K \gg k \gg 1$, including its first term (T6).

    $$\frac{1}{kK} \Big( e^{-\sigma^2} + \frac{C_p}{k} \Big), \qquad C_p = 3 (1 - e^{-\sigma^2})$$

    Divided by $n$, the first term is $e^{-\sigma^2} / (B K)$: constant at a fixed $B = nk$, and the larger of
    the two.

    With sigma^2 = log 2, C_p = 3/2; for k = 2 and K = 4 that gives (1/8)(1/2 + 3/4):

    >>> round(paper_class_variance_expanded(sigma=np.log(2) ** 0.5, num_negatives=2, num_items=4), 12)
    0.15625
    """
    _check(sigma, num_negatives, num_items)
    k = num_negatives
    return (float(np.exp(-(sigma**2))) + paper_class_constant(sigma=sigma) / k) / (k * num_items)


def paper_class_constant(*, sigma: float) -> float:
    r"""Return the paper's $C_p = 3 (1 - e^{-\sigma^2})$ (T6).

    >>> round(paper_class_constant(sigma=np.log(2) ** 0.5), 12)
    1.5
    """
    check_not_negative(sigma=sigma)
    return float(-3 * np.expm1(-(sigma**2)))


def paper_example_constant(features: NDArray[np.float64]) -> float:
    r"""Return the paper's $C_y = E x_r^2$, averaged over coordinates (T7); `features` is (N, d).

    >>> paper_example_constant(np.array([[1.0, 3.0], [1.0, 1.0]]))  # (1 + 9 + 1 + 1) / 4
    3.0
    """
    if features.ndim != 2 or features.size == 0:
        raise ArgumentError(f"features have shape {features.shape}; pass (targets, dim).")
    return float(np.mean(np.square(features)))
