r"""Closed-form allocations of a budget counted in logits: the paper's rules and the law's optimum.

Each returns $(n, k)$ or $(T, k)$ with $T k = B$; optimum.py solves the problem for any other cost.
"""

import math

from budgetrec.errors import ArgumentError
from budgetrec.options import check_not_negative, check_positive


def _check_logits(num_logits: float) -> None:
    if num_logits < 1:
        raise ArgumentError(
            f"num_logits is {num_logits}, below one example with one negative; pass at least 1."
        )


def paper_free_rule(num_logits: int) -> tuple[int, int]:
    r"""Return the paper's $(n, k) = (B, 1)$, which minimises its variance without constraints (T16).

    >>> paper_free_rule(64)
    (64, 1)
    """
    _check_logits(num_logits)
    return num_logits, 1


def paper_square_rule(num_logits: int) -> tuple[int, int]:
    r"""Return the paper's $n = k = \sqrt B$ under $k \ge n$, rounded down (T16).

    >>> paper_square_rule(64)
    (8, 8)
    """
    _check_logits(num_logits)
    side = math.isqrt(num_logits)
    return side, side


def paper_optimum(
    num_logits: float, *, example_constant: float, class_constant: float
) -> tuple[float, float]:
    r"""Return the paper's $n^* = \sqrt{C_y / C_p}\, B$ and $k^* = \sqrt{C_p / C_y}$, as real numbers (T16).

    >>> paper_optimum(64, example_constant=1.0, class_constant=4.0)
    (32.0, 2.0)
    """
    _check_logits(num_logits)
    check_positive(example_constant=example_constant, class_constant=class_constant)
    ratio = (example_constant / class_constant) ** 0.5
    return ratio * num_logits, 1 / ratio


def shared_optimum(
    num_logits: float, *, example: float, shared_class: float, rho: float = 0.0, num_groups: int = 1
) -> tuple[float, float]:
    r"""Return the best $(T, k)$ with $T k = B$ for $G$ shared sets, as real numbers (T17).

    At $T k = B$ the law is $\frac{C_y}{T} + \frac{C_p}{G (k + \rho)}$ plus terms that hardly change, so

    $$k = \sqrt{\frac{B C_p}{G C_y}} - \rho, \qquad T = B / k,$$

    with $k$ clipped to between 1 and $B$: saturation removes exactly $\rho$ negatives. With B = 64, C_y = 1
    and C_p = 4, k = 16, and 4 groups with a set each need half of that:

    >>> shared_optimum(64, example=1.0, shared_class=4.0)
    (4.0, 16.0)
    >>> shared_optimum(64, example=1.0, shared_class=4.0, num_groups=4)
    (8.0, 8.0)
    """
    _check_logits(num_logits)
    check_positive(example=example, shared_class=shared_class, num_groups=num_groups)
    check_not_negative(rho=rho)
    k = min(max((num_logits * shared_class / (num_groups * example)) ** 0.5 - rho, 1.0), float(num_logits))
    return num_logits / k, k


def per_target_optimum(num_logits: float) -> tuple[float, float]:
    r"""Return the best $(T, k)$ with $T k = B$ when each target draws its own negatives: $(B, 1)$ (T17).

    At fixed $B$, class noise $C_x / (T k + T \rho)$ never grows with $T$, and example noise falls.

    >>> per_target_optimum(64.0)
    (64.0, 1.0)
    """
    _check_logits(num_logits)
    return float(num_logits), 1.0
