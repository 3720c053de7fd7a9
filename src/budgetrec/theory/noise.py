r"""The noise law: the expected squared error of one step's gradient for any (n, k, G).

The gradient of the output layer is $g = \frac1T \sum_t (p''_t - y_t) x_t^\top$. Its squared error splits by
how pairs of targets are related (docs/theory.md, T8):

$$E\|g - \nabla F\|^2 = \frac{C_y}{n} + \frac{V_x(k) + 2 V_d(k)}{T} + w_s V_s(k) + w_p V_p(k) + w_b V_b(k)$$

$w_s$ is the share of pairs in the same sequence and group, $w_p$ that of pairs in the same group only, and
$w_b$ the rest. To leading order $V_x = C_x/k$, $V_p = C_p/k$ and the others vanish. constants.py measures the
curves; the law then evaluates whole arrays of candidates at once. Where sequences differ in length, the parts
are multiplied by the factors of raggedness.py (T25).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import PchipInterpolator

from budgetrec.errors import ArgumentError
from budgetrec.theory.raggedness import EVEN, Raggedness

Floats = NDArray[np.float64]
Curve = Callable[[ArrayLike], Floats]


@dataclass(frozen=True, kw_only=True)
class Saturating:
    r"""The curve $C / (k + \rho)$: exact for large $k$ and at $k = 0$, an approximation in between (T9).

    >>> float(Saturating(coefficient=6.0, rho=2.0)(4))
    1.0
    """

    coefficient: float
    rho: float = 0.0

    def __call__(self, num_negatives: ArrayLike) -> Floats:
        """Evaluate the curve at one or many k."""
        value: Floats = self.coefficient / (np.asarray(num_negatives, dtype=np.float64) + self.rho)
        return value


@dataclass(frozen=True, kw_only=True)
class Tabulated:
    r"""A curve known at a ladder of $k$ and in the limit $k V(k) \to C$.

    $k V(k)$ is interpolated over $\log k$ by monotone cubics. Beyond the ladder it approaches `coefficient`
    as $1/k$; below the ladder it keeps its first value.

    >>> curve = Tabulated(coefficient=8.0, num_negatives=(2, 4), values=(2.0, 1.5))  # k V = 4 and 6
    >>> [float(curve(k)) for k in (2, 4, 8)]  # beyond: k V = 8 - (8 - 6) 4 / 8 = 7
    [2.0, 1.5, 0.875]
    """

    coefficient: float
    num_negatives: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        ladder = self.num_negatives
        if len(ladder) != len(self.values) or len(ladder) < 2 or list(ladder) != sorted(set(ladder)):
            raise ArgumentError(
                f"a curve has {len(self.values)} values for k = {ladder}; "
                "pass one value for each of two or more ascending k."
            )

    @cached_property
    def _interpolate(self) -> Any:
        ladder = np.asarray(self.num_negatives, dtype=np.float64)
        return PchipInterpolator(np.log(ladder), ladder * np.asarray(self.values))

    def __call__(self, num_negatives: ArrayLike) -> Floats:
        """Evaluate the curve at one or many k."""
        k = np.asarray(num_negatives, dtype=np.float64)
        first, last = self.num_negatives[0], self.num_negatives[-1]
        inside = self._interpolate(np.log(np.clip(k, first, last)))
        beyond = np.maximum(k / last, 1.0)
        value: Floats = (self.coefficient - (self.coefficient - inside) / beyond) / k
        return value


@dataclass(frozen=True, kw_only=True)
class NeverRising:
    r"""A curve raised to be non-negative and non-increasing in $k$.

    Curves measured on a sample can come out too low at small $k$, even negative.

    >>> curve = Tabulated(coefficient=4.0, num_negatives=(1, 2), values=(-1.0, 2.0))
    >>> [float(NeverRising(curve=curve)(k)) for k in (1, 2, 4)]
    [2.0, 2.0, 1.0]
    """

    curve: Curve

    @cached_property
    def _rungs(self) -> Floats:
        return np.unique(np.floor(2.0 ** np.arange(0, 24, 0.125)))

    @cached_property
    def _least(self) -> Floats:
        values = np.maximum(self.curve(self._rungs), 0.0)
        least: Floats = np.maximum.accumulate(values[::-1])[::-1]
        return least

    def __call__(self, num_negatives: ArrayLike) -> Floats:
        """Evaluate the curve at one or many k."""
        k = np.asarray(num_negatives, dtype=np.float64)
        above = np.minimum(np.searchsorted(self._rungs, k), len(self._rungs) - 1)
        value: Floats = np.maximum(self.curve(k), self._least[above])
        return value


NOTHING = Saturating(coefficient=0.0)


@dataclass(frozen=True, kw_only=True)
class NoiseConstants:
    """The law's constants of a model and its data, measured once and used for every (n, k, G).

    `example` is C_y for one sequence (the unit of a batch). The curves are functions of k: `target_class` V_x
    and `example_drift` V_d belong to one target, `sequence_class` V_s to two targets of one sequence that
    share negatives, `shared_class` V_p to two targets of different sequences that share negatives, and `bias`
    V_b to two targets with independent negatives. `raggedness` is what lengths that differ add.
    """

    example: float
    target_class: Curve
    shared_class: Curve
    sequence_class: Curve = NOTHING
    example_drift: Curve = NOTHING
    bias: Curve = NOTHING
    raggedness: Raggedness = EVEN

    @classmethod
    def saturating(
        cls,
        *,
        example: float,
        target_class: float,
        shared_class: float,
        sequence_class: float | None = None,
        rho: float = 0.0,
    ) -> "NoiseConstants":
        """Build from C_y, C_x, C_p (and C_p within a sequence), with curves C / (k + rho)."""
        within = shared_class if sequence_class is None else sequence_class
        return cls(
            example=example,
            target_class=Saturating(coefficient=target_class, rho=rho),
            shared_class=Saturating(coefficient=shared_class, rho=rho),
            sequence_class=Saturating(coefficient=within, rho=rho),
        )


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The squared error of one step's gradient by source, as numbers or arrays of candidates."""

    example: Floats
    shared_class: Floats
    target_class: Floats
    bias: Floats

    @property
    def total(self) -> Floats:
        """The sum of all parts."""
        return self.example + self.shared_class + self.target_class + self.bias


def predict_noise(
    constants: NoiseConstants,
    *,
    batch_size: ArrayLike,
    num_negatives: ArrayLike,
    num_groups: ArrayLike,
    num_targets: ArrayLike | None = None,
    num_workers: int = 1,
) -> Noise:
    r"""Evaluate the noise law (T8) for one or many (n, k, G).

    `batch_size` is $n$, the sequences per worker; `num_targets` is $T$, their valid targets (default $n$);
    `num_negatives` is $k$; `num_groups` is $G$, the independent sets: 1 shared, $n$ per sequence, $T$ per
    target. With $R$ = `num_workers`, which average gradients, noise is divided by $R$. Arrays broadcast.

    With C_y = 8, C_p = 4, C_x = 6, n = 4 and k = 2, shared, it is 8/4 + (1 - 1/4) 4/2 + 6/(4 * 2):

    >>> constants = NoiseConstants.saturating(example=8.0, shared_class=4.0, target_class=6.0)
    >>> noise = predict_noise(constants, batch_size=4, num_negatives=2, num_groups=1)
    >>> float(noise.example), float(noise.shared_class), float(noise.target_class), float(noise.total)
    (2.0, 1.5, 0.75, 4.25)
    """
    n = np.asarray(batch_size, dtype=np.float64)
    targets = n if num_targets is None else np.asarray(num_targets, dtype=np.float64)
    k = np.asarray(num_negatives, dtype=np.float64)
    groups = np.asarray(num_groups, dtype=np.float64)
    _check_law(n, targets, k, groups, num_workers)
    ragged = constants.raggedness
    of_target = ragged.at("target", n) / targets
    in_sequence = ragged.at("sequence", n) * np.maximum(1 / np.maximum(groups, n) - 1 / targets, 0.0)
    # Of the pairs of two sequences, the share whose sequences are in one group.
    together = np.maximum(n / groups - 1, 0.0) / np.maximum(n - 1, 1.0)
    in_group = (1 - ragged.at("pairs", n) / n) * together
    example = ragged.at("example", n) * constants.example / n + 2 * constants.example_drift(k) * of_target
    shared = in_sequence * constants.sequence_class(k) + in_group * constants.shared_class(k)
    # Workers have their own targets and negatives, and their steps are averaged.
    apart = np.maximum(1 - (1 / targets + in_sequence + in_group) / num_workers, 0.0)
    return Noise(
        example=example / num_workers,
        shared_class=shared / num_workers,
        target_class=constants.target_class(k) * of_target / num_workers,
        bias=apart * constants.bias(k),
    )


def _check_law(n: Floats, targets: Floats, k: Floats, groups: Floats, num_workers: int) -> None:
    least = {"batch_size": n.min(), "num_negatives": k.min(), "num_workers": num_workers}
    for name, value in least.items():
        if value < 1:
            raise ArgumentError(f"{name} is {value:g}; pass at least 1.")
    if np.any(targets < n):
        raise ArgumentError(
            f"num_targets is {targets.min():g} for {n.max():g} sequences; pass at least 1 per sequence."
        )
    if np.any(groups < 1) or np.any(groups > targets):
        raise ArgumentError(
            f"num_groups ranges from {groups.min():g} to {groups.max():g}; pass 1 (shared) to "
            f"{targets.min():g} (one set per target)."
        )
