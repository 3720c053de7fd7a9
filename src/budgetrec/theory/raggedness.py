r"""What unequal lengths do to the noise of a step.

A step of $n$ sequences divides by its number of targets, $T = \sum_s \ell_s$, which varies from step to step.
A sum over sequences of a quantity $f_s$ therefore contributes $E \sum_s f_s / T^2$ and not $n\, E f / (n
\bar\ell)^2$. Sequences are independent, and $1/T^2 = \int_0^\infty u e^{-uT} du$ makes the expectation of a
sum a product (docs/theory.md, T25):

$$E \sum_{s=1}^n \frac{f_s}{T^2} = n \int_0^\infty u\, E\big[f e^{-u\ell}\big] M(u)^{n-1} du, \qquad
    M(u) = E\, e^{-u\ell}.$$

The factor between the two is 1 for equal lengths and tends to 1 as $n$ grows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_RATIO = np.sqrt(2.0)
_LADDER = tuple(sorted({1, 2, 3, 5, 7} | {2**power * odd // 2 for power in range(2, 13) for odd in (2, 3)}))


@dataclass(frozen=True, kw_only=True)
class Raggedness:
    r"""Factors on the parts of the noise law at each n of a ladder, which lengths that differ bring.

    `example`, `target` and `sequence` multiply the terms of one sequence, of one target, and of two targets
    of one sequence, and tend to 1. `pairs` is $n E \sum_s \ell_s^2 / T^2$, the share of pairs of targets that
    are of one sequence, times n; it tends to `pairs_limit`, $E \ell^2 / \bar\ell^2$. Between the rungs
    factors are interpolated over $1/n$.
    """

    batch_sizes: tuple[int, ...] = (1,)
    example: tuple[float, ...] = (1.0,)
    target: tuple[float, ...] = (1.0,)
    sequence: tuple[float, ...] = (1.0,)
    pairs: tuple[float, ...] = (1.0,)
    pairs_limit: float = 1.0

    def at(self, name: str, batch_size: ArrayLike) -> Floats:
        """Evaluate a factor at one or many n.

        >>> ragged = Raggedness(batch_sizes=(1, 2), target=(1.5, 1.2), example=(1, 1), sequence=(1, 1))
        >>> [float(ragged.at("target", n)) for n in (1, 2, 4)]
        [1.5, 1.2, 1.1]
        """
        values: tuple[float, ...] = getattr(self, name)
        limit = self.pairs_limit if name == "pairs" else 1.0
        places = [0.0, *(1 / n for n in reversed(self.batch_sizes))]
        found: Floats = np.interp(1 / np.asarray(batch_size, np.float64), places, [limit, *reversed(values)])
        return found


EVEN = Raggedness()


def measure_raggedness(
    lengths: ArrayLike, *, example: ArrayLike, target: ArrayLike, sequence: ArrayLike
) -> Raggedness:
    r"""Return the factors for a sample of sequences (S,).

    Of each sequence, `lengths` are its targets, `example` is $\|V_s - \ell_s \nabla F\|^2$, `target` the sum
    of the class noise of its targets and `sequence` that of its pairs of targets.

    One target each, or three: steps of one sequence divide by 1 or 3, so that E[f / T^2] is (1 + 27/9) / 2 =
    2 for f = 1 and 27, against 14 / 2^2 = 3.5:

    >>> ragged = measure_raggedness([1, 3], example=[1, 27], target=[1, 3], sequence=[0, 6])
    >>> round(ragged.example[0], 9), round(ragged.target[0], 9), round(ragged.pairs[0], 9)
    (0.571428571, 1.333333333, 1.0)
    """
    size = np.asarray(lengths, np.float64)
    if size.min() == size.max():
        return EVEN
    ladder = np.asarray(_LADDER, np.float64)
    lowest = 1e-5 / (ladder[-1] * size.max())
    count = int(np.ceil(np.log(60 / size.min() / lowest) / np.log(_RATIO)))
    u = lowest * _RATIO ** np.arange(count)
    damping = np.exp(-np.outer(u, size))  # (nodes, S)
    powers = np.exp(np.outer(np.log(damping.mean(1)), ladder - 1)) * (np.log(_RATIO) * u * u)[:, None]

    def factors(values: Floats) -> tuple[float, ...]:
        mean = float(values.mean())
        if mean <= 0:
            return (1.0,) * len(_LADDER)
        expected = (damping @ values / len(size)) @ powers  # E f / (l + T')^2, at each n
        found: list[float] = (expected * (ladder * size.mean()) ** 2 / mean).tolist()
        return tuple(found)

    squares = size * size
    limit = float(squares.mean() / size.mean() ** 2)
    return Raggedness(
        batch_sizes=_LADDER,
        example=factors(np.asarray(example, np.float64)),
        target=factors(np.asarray(target, np.float64)),
        sequence=factors(np.asarray(sequence, np.float64)),
        pairs=tuple(limit * each for each in factors(squares)),
        pairs_limit=limit,
    )
