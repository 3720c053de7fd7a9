"""Ranges of what every optimiser is given, refused before the first step rather than after a lost run."""

import math

from budgetrec.errors import ArgumentError


def check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known."""
    if word not in known:
        raise ArgumentError(f"unknown {name} {word!r}. Known are {', '.join(known)}.")


def check_learning_rate(learning_rate: float) -> None:
    """Refuse steps uphill and steps without end; zero is where schedules end."""
    if not 0 <= learning_rate < math.inf:
        raise ArgumentError(f"learning_rate is {learning_rate}; pass a finite number, 0 or more.")


def check_momentum(momentum: float) -> None:
    """Refuse velocities that grow by themselves."""
    if not 0 <= momentum < 1:
        raise ArgumentError(f"momentum is {momentum}; pass a number from 0 to below 1, such as 0.9.")


def check_betas(betas: tuple[float, float]) -> None:
    """Refuse averages that never move."""
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError(f"betas are {betas}; pass two numbers from 0 to below 1, such as (0.9, 0.98).")


def check_epsilon(epsilon: float) -> None:
    """Refuse to divide by zero."""
    if not 0 < epsilon < math.inf:
        raise ArgumentError(f"epsilon is {epsilon}; it keeps divisors from zero, so pass a positive number.")


def check_weight_decay(weight_decay: float) -> None:
    """Refuse weights that grow by themselves."""
    if not 0 <= weight_decay < math.inf:
        raise ArgumentError(f"weight_decay is {weight_decay}; pass a finite number, 0 or more.")
