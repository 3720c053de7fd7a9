r"""The search: for every family of steps the best (n, k) that fits, and the best of those.

The score of a candidate is the law's noise (`goal="noise"`), or the time to a given gain in loss
(`goal="time"`): seconds per step times the steps that a gain needs, $\|\nabla F\|^2 + V / (1 - \beta)^2$
(docs/theory.md, T23). Where noise is all there is, that is the law times seconds; where a step is nearly
exact, removing more noise gains nothing; and the bias of sampling, which no number of steps averages out,
must stay below the gradient.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.allocation import Allocation
from budgetrec.errors import ArgumentError
from budgetrec.planner.seconds import StepSeconds
from budgetrec.theory.convergence import steps_to_gain
from budgetrec.theory.noise import NeverRising, Noise, NoiseConstants, predict_noise
from budgetrec.theory.optimum import allocate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = Callable[[ArrayLike, ArrayLike, int | None], Floats]

_STEPS_AN_OCTAVE = 8
_MICRO_BATCHES = (4, 16, 64, 256)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A candidate with everything that is predicted of it."""

    allocation: Allocation
    bytes: float
    seconds: float
    noise: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is predicted of every candidate: noise, seconds and bytes.

    `bytes` and `seconds` are by family; `gradient` is the squared norm of the true gradient.
    """

    families: tuple[Allocation, ...]
    left_out: tuple[Allocation, ...] = ()  # of which nothing fits
    constants: NoiseConstants
    gradient: float
    mean_targets: float
    bytes: Mapping[Allocation, Bytes]
    seconds: Mapping[Allocation, StepSeconds]
    num_items: int
    max_batch_size: int
    goal: str
    limit: float  # bytes
    fixed: Mapping[str, int]  # batch_size and num_negatives that a person wants
    share_from_batch: float = 0.0  # of the negatives

    @cached_property
    def curves(self) -> NoiseConstants:
        """The constants with curves that fall with k, as every one must."""
        measured = self.constants
        return dataclasses.replace(
            measured,
            target_class=NeverRising(curve=measured.target_class),
            shared_class=NeverRising(curve=measured.shared_class),
            sequence_class=NeverRising(curve=measured.sequence_class),
            bias=NeverRising(curve=measured.bias),
        )

    def noise(self, way: Allocation, batch_size: ArrayLike, num_negatives: ArrayLike) -> Noise:
        """Evaluate the law."""
        n, k = np.broadcast_arrays(np.asarray(batch_size, np.float64), np.asarray(num_negatives, np.float64))
        if not way.draws:
            nothing = np.zeros_like(n)
            return Noise(
                example=self.constants.example / n,
                shared_class=nothing,
                target_class=nothing,
                bias=nothing,
            )
        return predict_noise(
            self.curves,
            batch_size=n,
            num_negatives=self._drawn(n, k),
            num_groups=count_groups(way.sharing, n, self.mean_targets),
            num_targets=n * self.mean_targets,
        )

    def _drawn(self, n: Floats, k: Floats) -> Floats:
        """Return how many negatives a target meets: those from the batch are no more than its targets."""
        own = self.share_from_batch * k
        met: Floats = np.maximum(k - own + np.minimum(own, n * self.mean_targets), 1.0)
        return met

    def step_seconds(self, way: Allocation, n: ArrayLike, k: ArrayLike) -> Floats:
        """Predict the seconds of a step, cut into parts if `way` says so."""
        extra = max(0, (way.micro_batches or 1) - 1)
        return self.seconds[way.family](n, k, np.minimum(extra, np.asarray(n) - 1))

    def score(self, way: Allocation, n: ArrayLike, k: ArrayLike) -> Floats:
        """Score candidates; less is better."""
        noise = self.noise(way, n, k).total
        if self.goal == "noise":
            return noise
        bias = self._bias(way, self._drawn(np.asarray(n, np.float64), np.asarray(k, np.float64)))
        variance = np.maximum(noise - bias, 0.0)
        return self.step_seconds(way, n, k) * steps_to_gain(
            variance=variance, bias=bias, gradient=self.gradient
        )

    def _bias(self, way: Allocation, k: ArrayLike) -> Floats:
        """Return the bias; the law counts it where negatives are independent, and shared ones have it too."""
        return np.zeros(()) if not way.draws else self.curves.bias(k)

    def slowed_by_bias(self, choice: Choice) -> float:
        """Say how many times as many steps a choice takes as it would without the bias of sampling."""
        n, k = (float(each) for each in (choice.allocation.batch_size, choice.allocation.num_negatives))
        bias = self._bias(choice.allocation, self._drawn(np.array(n), np.array(k)))
        variance = max(choice.noise - float(bias), 0.0)
        with_bias, without = (
            steps_to_gain(variance=variance, bias=each, gradient=self.gradient) for each in (bias, 0.0)
        )
        return float(with_bias / without) if without > 0 else 1.0

    def total_bytes(self, way: Allocation, n: ArrayLike, k: ArrayLike) -> Floats:
        """Predict the bytes of candidates."""
        return self.bytes[way.family](n, k, way.micro_batches)

    def choice(self, way: Allocation, n: int, k: int) -> Choice:
        """Predict everything of one candidate."""
        return Choice(
            allocation=way.at(n, k),
            bytes=float(self.total_bytes(way, n, k)),
            seconds=float(self.step_seconds(way, n, k)),
            noise=float(self.noise(way, n, k).total),
            score=float(self.score(way, n, k)),
        )

    def best(self, way: Allocation, *, limit: float | None = None) -> Choice | None:
        """Return the best (n, k) of a family that fits, or None."""
        limit = self.limit if limit is None else limit
        batch_sizes, negatives = self.batch_sizes(), self.negatives(way)
        try:
            found = allocate(
                objective=lambda i, j, g: self.score(way, batch_sizes[i - 1], negatives[j - 1]),
                cost=lambda i, j, g: self.total_bytes(way, batch_sizes[i - 1], negatives[j - 1]),
                budget=limit,
                max_batch_size=len(batch_sizes),
                max_num_negatives=len(negatives),
                sharings={way.sharing: lambda i: i},
                falls_with_negatives=self.goal == "noise",
            )
        except ArgumentError:
            return None
        return self.choice(
            way, int(batch_sizes[found.batch_size - 1]), int(negatives[found.num_negatives - 1])
        )

    def best_of_all(self) -> list[Choice]:
        """Return the best of every family that fits, the best first; where memory binds, cut steps too."""
        found = []
        for way in self.families:
            whole = self.best(way)
            if whole is not None:
                found.append(whole)
            free = self.best(way, limit=np.inf)
            if way.micro_batches is None and (
                whole is None or (free is not None and free.score < whole.score * (1 - 1e-9))
            ):
                cuts = (dataclasses.replace(way, micro_batches=parts) for parts in _MICRO_BATCHES)
                found += [choice for cut in cuts if (choice := self.best(cut)) is not None]
        return sorted(found, key=lambda choice: (choice.score, choice.bytes))

    def batch_sizes(self) -> Ints:
        """Return the n that are looked at."""
        if "batch_size" in self.fixed:
            return np.array([self.fixed["batch_size"]])
        return ladder(self.max_batch_size)

    def negatives(self, way: Allocation) -> Ints:
        """Return the k that are looked at."""
        if not way.draws:
            return np.array([self.num_items])
        if "num_negatives" in self.fixed:
            return np.array([self.fixed["num_negatives"]])
        return ladder(max(self.num_items - 1, 1))


def count_groups(sharing: str, batch_size: Floats, mean_targets: float) -> Floats:
    """Count the independent sets of negatives of steps with `batch_size` sequences.

    >>> [float(count_groups(sharing, np.array(8.0), 5.5)) for sharing in ("batch", "sequence", "target")]
    [1.0, 8.0, 44.0]
    """
    groups = {"batch": np.ones_like(batch_size), "sequence": batch_size, "target": batch_size * mean_targets}
    return groups[sharing]


def ladder(most: int) -> Ints:
    """Return numbers from 1 to `most` that are easy to read, eight per octave: scores hardly change between.

    >>> ladder(40).tolist()
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    """
    octaves = 2.0 ** np.arange(0, max(1, int(np.log2(most)) + 1))
    rungs = np.unique(np.floor(np.outer(octaves, 1 + np.arange(_STEPS_AN_OCTAVE) / _STEPS_AN_OCTAVE)))
    inside = rungs[rungs < most].astype(np.int64)
    return np.append(inside, most)
