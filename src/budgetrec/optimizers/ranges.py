"""Ranges of optimiser settings, checked before the first step rather than after a wasted run."""

from budgetrec.errors import ArgumentError
from budgetrec.options import check_not_negative, check_positive


def check_settings(
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.0, 0.0),
    epsilon: float = 1.0,
) -> None:
    """Refuse settings that diverge, never move or divide by zero. A learning rate of 0 ends a schedule."""
    check_not_negative(learning_rate=learning_rate, weight_decay=weight_decay)
    check_positive(epsilon=epsilon)
    if not 0 <= momentum < 1:
        raise ArgumentError(f"momentum is {momentum}; pass a number from 0 to below 1, such as 0.9.")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError(f"betas are {betas}; pass two numbers from 0 to below 1, such as (0.9, 0.98).")
