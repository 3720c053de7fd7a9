r"""From noise to steps: bounds for SGD and momentum as functions of the noise $M$, and their inverses.

$F$ is $c$-strongly convex and $L$-smooth, $R_t = F(w_t) - F^*$, and $M$ bounds the variance of the gradient
estimate, which noise.py predicts. Sources: Bottou, Curtis and Nocedal (2018), theorems 4.6 and 4.7; Yan et
al. (2018).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.errors import ArgumentError
from budgetrec.options import check_positive

Floats = NDArray[np.float64]

_MOST_BIASED = 0.95


@dataclass(frozen=True, kw_only=True)
class Descent:
    """SGD on F: the curvatures c and L, the initial regret R_1 and the noise M of the gradient."""

    strong_convexity: float
    smoothness: float
    initial_regret: float
    noise: float

    def __post_init__(self) -> None:
        check_positive(strong_convexity=self.strong_convexity, smoothness=self.smoothness)
        check_positive(initial_regret=self.initial_regret)
        if self.strong_convexity > self.smoothness:
            raise ArgumentError(
                f"strong_convexity {self.strong_convexity} exceeds smoothness {self.smoothness}, which no "
                "function allows; pass a smaller strong_convexity."
            )

    def constant_step_floor(self, step_size: float) -> float:
        r"""Return $\frac{\alpha L M}{2c}$, the floor of the bound for a constant step $\alpha$ (T19).

        >>> descent = Descent(noise=8.0, strong_convexity=1.0, smoothness=2.0, initial_regret=16.0)
        >>> descent.constant_step_floor(0.25)
        2.0
        """
        check_positive(step_size=step_size)
        if step_size > 1 / self.smoothness:
            raise ArgumentError(
                f"step_size {step_size} exceeds 1 / smoothness = {1 / self.smoothness:g}; "
                "pass a smaller step."
            )
        return step_size * self.smoothness * self.noise / (2 * self.strong_convexity)

    def constant_step_bound(self, num_steps: int, step_size: float) -> float:
        r"""Bound $E R_t$ by $(1 - \alpha c)^{t-1} R_1 + \frac{\alpha L M}{2c}$, $t$ = `num_steps` (T19).

        With alpha = 1/4, c = 1, L = 2, M = 8, R_1 = 16 and t = 3, it is (3/4)^2 16 + 2:

        >>> descent = Descent(noise=8.0, strong_convexity=1.0, smoothness=2.0, initial_regret=16.0)
        >>> descent.constant_step_bound(3, step_size=0.25)
        11.0
        """
        check_positive(num_steps=num_steps)
        floor = self.constant_step_floor(step_size)
        return (1 - step_size * self.strong_convexity) ** (num_steps - 1) * self.initial_regret + floor

    def constant_step_count(self, target_regret: float, step_size: float | None = None) -> int:
        r"""Count the steps until the constant-step bound is at most `target_regret` (T19).

        The default step leaves half of the target to the floor, $\alpha = \min(\frac1L, \frac{c\, \epsilon}{L
        M})$; the number of steps then grows as $M / \epsilon$.

        With alpha = 1/2, c = 1, L = 1, no noise and R_1 = 16, a regret of 1 takes four halvings after the
        first step:

        >>> descent = Descent(noise=0.0, strong_convexity=1.0, smoothness=1.0, initial_regret=16.0)
        >>> descent.constant_step_count(1.0, step_size=0.5)
        5
        """
        check_positive(target_regret=target_regret)
        step = step_size
        if step is None:
            step = 1 / self.smoothness
            if self.noise > 0:
                step = min(step, self.strong_convexity * target_regret / (self.smoothness * self.noise))
        floor = self.constant_step_floor(step)
        left = target_regret - floor
        if left <= 0:
            raise ArgumentError(
                f"target_regret {target_regret} is below the floor {floor:g} of step_size {step}; "
                "pass a smaller step or less noise."
            )
        contraction = 1 - step * self.strong_convexity
        if self.initial_regret <= left:
            return 1
        if contraction <= 0:
            return 2
        return 1 + math.ceil(math.log(left / self.initial_regret) / math.log(contraction) - 1e-12)

    def diminishing_step_bound(self, num_steps: int, *, beta: float, gamma: float) -> float:
        r"""Bound $E R_t \le \frac{\nu}{\gamma + t}$ for steps $\alpha_t = \frac{\beta}{\gamma + t}$ (T20).

        $\nu = \max\{ \frac{\beta^2 L M}{2(\beta c - 1)}, (\gamma + 1) R_1 \}$, $\beta > 1/c$, and the first
        step is at most $1/L$ (a condition the paper omits). With beta = 2, c = L = 1, gamma = 1, M = 8 and
        R_1 = 1, nu = 16 and the bound at t = 3 is 4:

        >>> descent = Descent(noise=8.0, strong_convexity=1.0, smoothness=1.0, initial_regret=1.0)
        >>> descent.diminishing_step_bound(3, beta=2.0, gamma=1.0)
        4.0
        """
        check_positive(num_steps=num_steps)
        return self._diminishing_scale(beta, gamma) / (gamma + num_steps)

    def diminishing_step_count(self, target_regret: float, *, beta: float, gamma: float) -> int:
        r"""Count the steps until the diminishing-step bound is at most `target_regret` (T20).

        It is $\lceil \nu/\epsilon - \gamma \rceil$. With nu = 16 and gamma = 1, a regret of 1/2 takes 31
        steps:

        >>> descent = Descent(noise=8.0, strong_convexity=1.0, smoothness=1.0, initial_regret=1.0)
        >>> descent.diminishing_step_count(0.5, beta=2.0, gamma=1.0)
        31
        """
        check_positive(target_regret=target_regret)
        return max(1, math.ceil(self._diminishing_scale(beta, gamma) / target_regret - gamma))

    def _diminishing_scale(self, beta: float, gamma: float) -> float:
        check_positive(beta=beta)
        if beta * self.strong_convexity <= 1:
            raise ArgumentError(
                f"beta {beta} is not above 1 / strong_convexity = {1 / self.strong_convexity:g}; "
                "pass a larger beta."
            )
        if beta / (gamma + 1) > 1 / self.smoothness:
            raise ArgumentError(
                f"the first step {beta / (gamma + 1):g} exceeds 1 / smoothness = {1 / self.smoothness:g}; "
                f"pass gamma >= {beta * self.smoothness - 1:g}."
            )
        variance = beta**2 * self.smoothness * self.noise / (2 * (beta * self.strong_convexity - 1))
        return max(variance, (gamma + 1) * self.initial_regret)


@dataclass(frozen=True, kw_only=True)
class MomentumDescent:
    r"""Momentum SGD on a smooth F: the least $E\|\nabla F(w_k)\|^2$ so far, up to a constant factor (T21).

    The order is $\frac{R_1/C + C (G^2 + M)}{\sqrt t}$, and the constant does not depend on $M$. $C$ = `scale`
    sets the step; by default it is the best, $C = \sqrt{R_1 / (G^2 + M)}$. With R_1 = 4, G = 0 and M = 1, C =
    2 and at t = 16 it is (2 + 2)/4:

    >>> descent = MomentumDescent(noise=1.0, gradient_bound=0.0, initial_regret=4.0)
    >>> descent.bound(16), descent.count(1.0)
    (1.0, 16)
    """

    noise: float
    gradient_bound: float
    initial_regret: float
    scale: float | None = None

    def __post_init__(self) -> None:
        check_positive(initial_regret=self.initial_regret, scale=self.scale)
        check_positive(noise_and_gradient=self.gradient_bound**2 + self.noise)

    def bound(self, num_steps: int) -> float:
        """Return the bound after `num_steps`."""
        check_positive(num_steps=num_steps)
        return self._numerator() / math.sqrt(num_steps)

    def count(self, target_norm: float) -> int:
        """Count the steps until the bound is at most `target_norm`."""
        check_positive(target_norm=target_norm)
        return math.ceil((self._numerator() / target_norm) ** 2)

    def _numerator(self) -> float:
        force = self.gradient_bound**2 + self.noise
        if self.scale is None:
            return 2 * math.sqrt(self.initial_regret * force)
        return self.initial_regret / self.scale + self.scale * force


def step_ratio(noise: float, other_noise: float) -> float:
    r"""Predict how many steps one allocation needs for each step of another, $M / M'$ (T22).

    It holds where noise limits both: for a small target, the number of steps is proportional to $M$ with
    diminishing steps and with the best constant step.

    >>> step_ratio(3.0, 1.5)
    2.0
    """
    check_positive(noise=noise, other_noise=other_noise)
    return noise / other_noise


def steps_to_gain(*, variance: ArrayLike, bias: ArrayLike, gradient: float) -> Floats:
    r"""Return $\|\nabla F\|^2 + V / (1 - \beta)^2$, proportional to the steps for a given gain (T23).

    A step follows $-g = -(\nabla F + b + \xi)$ with noise $\xi$ of `variance` $V$, a `bias` of $\|b\|^2$ that
    points against the gradient, and `gradient` $\|\nabla F\|^2$; $\beta = \|b\| / \|\nabla F\|$. $\beta$ is
    capped at 0.95, because what is left of the gradient beyond that is too small to measure.

    >>> float(steps_to_gain(variance=2.0, bias=0.25, gradient=1.0))  # beta = 1/2
    9.0
    """
    squared = np.asarray(bias, dtype=np.float64)
    beta = np.sqrt(squared / gradient) if gradient > 0 else np.where(squared > 0, np.inf, 0.0)
    left = (1 - np.minimum(beta, _MOST_BIASED)) ** 2
    steps: Floats = max(gradient, 0.0) + np.asarray(variance, dtype=np.float64) / left
    return steps
