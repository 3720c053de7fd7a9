r"""How noise becomes steps: bounds for SGD and momentum as functions of the noise $M$, and their inverses.

$F$ is $c$-strongly convex and $L$-smooth, $R_t = F(w_t) - F^*$, and $M$ bounds the variance of the gradient
estimate: what noise.py predicts. Sources: Bottou, Curtis and Nocedal (2018), theorems 4.6 and 4.7; Yan et al.
(2018).
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.errors import ArgumentError

Floats = NDArray[np.float64]

_MOST_BIASED = 0.95


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ArgumentError(f"{name} is {value}; pass a positive number.")


def _check_constant_step(step_size: float, strong_convexity: float, smoothness: float) -> None:
    _check(step_size=step_size, strong_convexity=strong_convexity, smoothness=smoothness)
    if strong_convexity > smoothness:
        raise ArgumentError(
            f"strong_convexity {strong_convexity} exceeds smoothness {smoothness}; no function is like that."
        )
    if step_size > 1 / smoothness:
        raise ArgumentError(
            f"step_size {step_size} exceeds 1 / smoothness = {1 / smoothness:g}; pass a smaller step."
        )


def constant_step_floor(
    *, noise: float, step_size: float, strong_convexity: float, smoothness: float
) -> float:
    r"""Return the regret $\frac{\alpha L M}{2c}$ that a constant step $\alpha$ may not get below (T19).

    >>> constant_step_floor(noise=8.0, step_size=0.25, strong_convexity=1.0, smoothness=2.0)
    2.0
    """
    _check_constant_step(step_size, strong_convexity, smoothness)
    return step_size * smoothness * noise / (2 * strong_convexity)


def constant_step_bound(
    *,
    num_steps: int,
    noise: float,
    step_size: float,
    strong_convexity: float,
    smoothness: float,
    initial_regret: float,
) -> float:
    r"""Bound $E R_t$ by $(1 - \alpha c)^{t-1} R_1 + \frac{\alpha L M}{2c}$, $t$ = `num_steps` (T19).

    With alpha = 1/4, c = 1, L = 2, M = 8, R_1 = 16 and t = 3: (3/4)^2 16 + 2:

    >>> constant_step_bound(
    ...     num_steps=3, noise=8.0, step_size=0.25, strong_convexity=1.0, smoothness=2.0, initial_regret=16.0)
    11.0
    """
    _check(num_steps=num_steps, initial_regret=initial_regret)
    floor = constant_step_floor(
        noise=noise, step_size=step_size, strong_convexity=strong_convexity, smoothness=smoothness
    )
    return (1 - step_size * strong_convexity) ** (num_steps - 1) * initial_regret + floor


def constant_step_count(
    *,
    target_regret: float,
    noise: float,
    strong_convexity: float,
    smoothness: float,
    initial_regret: float,
    step_size: float | None = None,
) -> int:
    r"""Count the steps until the constant-step bound is at most `target_regret` (T19).

    Without a `step_size` the step is the one that leaves half of the target to the floor,
    $\alpha = \min(\frac1L, \frac{c\, \epsilon}{L M})$: steps then grow as $M / \epsilon$.

    With alpha = 1/2, c = 1, L = 1, no noise and R_1 = 16, the regret 1 takes four halvings after the first
    step:

    >>> constant_step_count(
    ...     target_regret=1.0, noise=0.0, step_size=0.5, strong_convexity=1.0, smoothness=1.0,
    ...     initial_regret=16.0)
    5
    """
    _check(target_regret=target_regret, initial_regret=initial_regret)
    step = step_size
    if step is None:
        _check(strong_convexity=strong_convexity, smoothness=smoothness)
        step = 1 / smoothness
        if noise > 0:
            step = min(step, strong_convexity * target_regret / (smoothness * noise))
    floor = constant_step_floor(
        noise=noise, step_size=step, strong_convexity=strong_convexity, smoothness=smoothness
    )
    left = target_regret - floor
    if left <= 0:
        raise ArgumentError(
            f"target_regret {target_regret} lies below the floor {floor:g} of step_size {step}; "
            "pass a smaller step or less noise."
        )
    contraction = 1 - step * strong_convexity
    if initial_regret <= left:
        return 1
    if contraction <= 0:
        return 2
    return 1 + math.ceil(math.log(left / initial_regret) / math.log(contraction) - 1e-12)


def _diminishing_scale(
    noise: float,
    beta: float,
    gamma: float,
    strong_convexity: float,
    smoothness: float,
    initial_regret: float,
) -> float:
    _check(beta=beta, strong_convexity=strong_convexity, smoothness=smoothness, initial_regret=initial_regret)
    if beta * strong_convexity <= 1:
        raise ArgumentError(
            f"beta {beta} is not above 1 / strong_convexity = {1 / strong_convexity:g}; pass a larger beta."
        )
    if beta / (gamma + 1) > 1 / smoothness:
        raise ArgumentError(
            f"the first step {beta / (gamma + 1):g} exceeds 1 / smoothness = {1 / smoothness:g}; "
            f"pass gamma >= {beta * smoothness - 1:g}."
        )
    variance = beta**2 * smoothness * noise / (2 * (beta * strong_convexity - 1))
    return max(variance, (gamma + 1) * initial_regret)


def diminishing_step_bound(
    *,
    num_steps: int,
    noise: float,
    beta: float,
    gamma: float,
    strong_convexity: float,
    smoothness: float,
    initial_regret: float,
) -> float:
    r"""Bound $E R_t \le \frac{\nu}{\gamma + t}$ for steps $\alpha_t = \frac{\beta}{\gamma + t}$ (T20).

    $\nu = \max\{ \frac{\beta^2 L M}{2(\beta c - 1)}, (\gamma + 1) R_1 \}$, $\beta > 1/c$, and the first step
    at most $1/L$ (which the paper leaves out). With beta = 2, c = L = 1, gamma = 1, M = 8, R_1 = 1: nu = 16,
    at t = 3 it is 4:

    >>> diminishing_step_bound(
    ...     num_steps=3, noise=8.0, beta=2.0, gamma=1.0, strong_convexity=1.0, smoothness=1.0,
    ...     initial_regret=1.0)
    4.0
    """
    _check(num_steps=num_steps)
    scale = _diminishing_scale(noise, beta, gamma, strong_convexity, smoothness, initial_regret)
    return scale / (gamma + num_steps)


def diminishing_step_count(
    *,
    target_regret: float,
    noise: float,
    beta: float,
    gamma: float,
    strong_convexity: float,
    smoothness: float,
    initial_regret: float,
) -> int:
    r"""Count the steps until the diminishing-step bound is at most `target_regret` (T20).

    It is $\lceil \nu/\epsilon - \gamma \rceil$. With nu = 16 and gamma = 1, the regret 1/2 takes 31 steps:

    >>> diminishing_step_count(
    ...     target_regret=0.5, noise=8.0, beta=2.0, gamma=1.0, strong_convexity=1.0, smoothness=1.0,
    ...     initial_regret=1.0)
    31
    """
    _check(target_regret=target_regret)
    scale = _diminishing_scale(noise, beta, gamma, strong_convexity, smoothness, initial_regret)
    return max(1, math.ceil(scale / target_regret - gamma))


def momentum_bound(
    *, num_steps: int, noise: float, gradient_bound: float, initial_regret: float, scale: float | None = None
) -> float:
    r"""Return the order of $\min_k E\|\nabla F(w_k)\|^2$ for momentum (T21).

    It is $\frac{R_1/C + C (G^2 + M)}{\sqrt t}$.

    The source states it up to a constant that does not depend on $M$. $C$ = `scale` is the step's own; left
    out, the best, $C = \sqrt{R_1 / (G^2 + M)}$. With R_1 = 4, G = 0 and M = 1, C = 2 and at t = 16 it is (2 +
    2)/4:

    >>> momentum_bound(num_steps=16, noise=1.0, gradient_bound=0.0, initial_regret=4.0)
    1.0
    """
    _check(num_steps=num_steps, initial_regret=initial_regret)
    return _momentum_scale(noise, gradient_bound, initial_regret, scale) / math.sqrt(num_steps)


def momentum_count(
    *,
    target_norm: float,
    noise: float,
    gradient_bound: float,
    initial_regret: float,
    scale: float | None = None,
) -> int:
    r"""Count the steps until the momentum bound is at most `target_norm` (T21).

    >>> momentum_count(target_norm=1.0, noise=1.0, gradient_bound=0.0, initial_regret=4.0)
    16
    """
    _check(target_norm=target_norm, initial_regret=initial_regret)
    return math.ceil((_momentum_scale(noise, gradient_bound, initial_regret, scale) / target_norm) ** 2)


def _momentum_scale(noise: float, gradient_bound: float, initial_regret: float, scale: float | None) -> float:
    force = gradient_bound**2 + noise
    _check(noise_and_gradient=force)
    if scale is None:
        return 2 * math.sqrt(initial_regret * force)
    _check(scale=scale)
    return initial_regret / scale + scale * force


def step_ratio(noise: float, other_noise: float) -> float:
    r"""Predict how many steps an allocation needs for each step of another, $M / M'$ (T22).

    Where noise limits both: the diminishing step and the best constant step both take steps in proportion to
    $M$ for a small target.

    >>> step_ratio(3.0, 1.5)
    2.0
    """
    _check(noise=noise, other_noise=other_noise)
    return noise / other_noise


def steps_to_gain(*, variance: ArrayLike, bias: ArrayLike, gradient: float) -> Floats:
    r"""Return $\|\nabla F\|^2 + V / (1 - \beta)^2$, in proportion to the steps to a given gain (T23).

    A step goes against $g = \nabla F + b + \xi$: noise $\xi$ of `variance` $V$, a `bias` of $\|b\|^2$ that
    points against the gradient, and `gradient` $\|\nabla F\|^2$; $\beta = \|b\| / \|\nabla F\|$. From 0.95 on
    $\beta$ stays, for what is left there is below what can be measured.

    >>> float(steps_to_gain(variance=2.0, bias=0.25, gradient=1.0))  # beta = 1/2
    9.0
    """
    squared = np.asarray(bias, dtype=np.float64)
    beta = np.sqrt(squared / gradient) if gradient > 0 else np.where(squared > 0, np.inf, 0.0)
    left = (1 - np.minimum(beta, _MOST_BIASED)) ** 2
    steps: Floats = max(gradient, 0.0) + np.asarray(variance, dtype=np.float64) / left
    return steps
