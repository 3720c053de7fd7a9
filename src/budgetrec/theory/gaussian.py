"""The constants of the noise law in closed form, for Gaussian features and weights."""

import numpy as np

from budgetrec.errors import ArgumentError
from budgetrec.options import check_not_negative, check_positive
from budgetrec.theory.noise import NoiseConstants, Saturating


def gaussian_constants(*, dim: int, mean_norm: float, logit_scale: float) -> NoiseConstants:
    r"""Return the constants for Gaussian features and weights, uniform $q$ and many items (T13).

    With $x \sim N(\mu, I_d)$, $\|\mu\|$ = `mean_norm`, rows of $W$ from $N(0, \frac{s^2}{d} I)$, $s$ =
    `logit_scale`, and $\tau = s^2/d < 1/2$:

    $$C_y = d + \|\mu\|^2, \quad
      C_p = M(\tau) \Big( \frac{d\tau}{1 - \tau^2} + \frac{\|\mu\|^2}{(1-\tau)^2} \Big), \quad
      C_x = N(\tau) \Big( \frac{d}{1 - 2\tau} + \frac{\|\mu\|^2}{(1 - 2\tau)^2} \Big), \quad \rho = N(\tau),$$

    $M(\tau) = (1 - \tau^2)^{-d/2} e^{\|\mu\|^2 \tau / (1 - \tau)}$ and
    $N(\tau) = (1 - 2\tau)^{-d/2} e^{\|\mu\|^2 \tau / (1 - 2\tau)}$. They describe a layer before training.

    For d = 2, mean 0 and s = 1/sqrt(2), tau = 1/4: M = 16/15, C_p = 16/15 * 8/15, N = 2, C_x = 2 * 4:

    >>> constants = gaussian_constants(dim=2, mean_norm=0.0, logit_scale=0.5**0.5)
    >>> round(float(constants.shared_class(2)) * (2 + 2), 9)  # C_p, as rho = 2
    0.568888889
    >>> constants.example, round(float(constants.target_class(2)), 9)  # C_y, and C_x / (2 + rho)
    (2.0, 2.0)
    """
    check_positive(dim=dim)
    check_not_negative(mean_norm=mean_norm, logit_scale=logit_scale)
    tau, square = logit_scale**2 / dim, mean_norm**2
    if tau >= 0.5:
        raise ArgumentError(
            f"logit_scale {logit_scale} with dim {dim} makes the constants infinite "
            f"(scale^2 / dim = {tau:g}); keep the ratio below 1/2."
        )
    pair = (1 - tau**2) ** (-dim / 2) * np.exp(square * tau / (1 - tau))
    alone = (1 - 2 * tau) ** (-dim / 2) * np.exp(square * tau / (1 - 2 * tau))
    target_class = float(alone * (dim / (1 - 2 * tau) + square / (1 - 2 * tau) ** 2))
    shared_class = float(pair * (dim * tau / (1 - tau**2) + square / (1 - tau) ** 2))
    return NoiseConstants(
        example=dim + square,
        target_class=Saturating(coefficient=target_class, rho=float(alone)),
        shared_class=Saturating(coefficient=shared_class, rho=float(alone)),
    )
