"""Where to spend a budget: a solver for any cost and any objective over integers n and k.

The cost grows with n and k, in bytes or any other unit. The objective is the noise, or the noise times the
seconds per step. rules.py has the closed forms for a budget counted in logits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError
from budgetrec.options import check_positive

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Surface = Callable[[Ints, Ints, Ints], Floats]
GroupRule = Callable[[Ints], Ints]

_TIE = 1e-12  # objectives this close, relatively, are equal
_EXACT_PAIRS = 1 << 21  # up to this many (n, k), every pair is tried
_EXACT_ROWS = 1 << 15  # up to this many n, every n is tried
_GRID = 256  # candidates along n (and along k) in one round of the search
_KEPT = 6  # candidates whose neighbourhoods the next round searches


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The solver's choice, and the alternatives that are equally good.

    `ties` lists up to 16 of the `num_ties` other (batch_size, num_negatives, num_groups) that were evaluated
    and have the same objective. `exhaustive` is whether every candidate was evaluated, or ruled out by
    monotonicity.
    """

    batch_size: int
    num_negatives: int
    num_groups: int
    sharing: str
    objective: float
    cost: float
    num_ties: int
    ties: tuple[tuple[int, int, int], ...]
    exhaustive: bool


def allocate(
    *,
    objective: Surface,
    cost: Surface,
    budget: float,
    max_batch_size: int,
    max_num_negatives: int,
    sharings: Mapping[str, GroupRule],
    falls_with_negatives: bool = True,
) -> Optimum:
    """Minimise `objective(n, k, G)` over integers with `cost(n, k, G) <= budget` (T18).

    Both functions take integer arrays that broadcast, and treat each entry on its own. The cost must not fall
    as n or k grows. `sharings` maps the name of each way of sharing to a function from n to G: ``lambda n: n
    * 0 + 1`` for one shared set, ``lambda n: n`` for one set per sequence. If `falls_with_negatives`, the
    objective never rises with k (as in the law), so only the largest k that fits each n can be best.
    Otherwise (noise times seconds) every k that fits is a candidate.

    Up to two million pairs (or 32,768 n, if it falls) are searched exhaustively. Beyond that, candidates
    evenly spaced in log n and log k are refined around the best few until neighbours are consecutive
    integers. Ties go to the first sharing, then the smallest n, then the largest k.

    The largest n k with n + k <= 5 is 2 * 3:

    >>> found = allocate(
    ...     objective=lambda n, k, g: 1 / (n * k), cost=lambda n, k, g: n + k + 0.0, budget=5,
    ...     max_batch_size=9, max_num_negatives=9, sharings={"shared": lambda n: n * 0 + 1})
    >>> found.batch_size, found.num_negatives, found.ties
    (2, 3, ((3, 2, 1),))
    """
    check_positive(max_batch_size=max_batch_size, max_num_negatives=max_num_negatives)
    if not sharings:
        raise ArgumentError("sharings is empty; pass at least one way of sharing negatives.")
    found = {}
    for name, rule in sharings.items():
        limits = (max_batch_size, max_num_negatives)
        candidates = _Problem(objective, cost, budget, *limits, rule, falls_with_negatives).solve()
        if candidates is not None:
            found[name] = candidates
    if not found:
        one = np.ones(1, dtype=np.int64)
        least = min(float(cost(one, one, rule(one))[0]) for rule in sharings.values())
        raise ArgumentError(
            f"the budget of {budget:g} is below the cost {least:g} of one example with one negative; "
            "raise the budget."
        )
    return _choose(found, cost)


@dataclass(frozen=True)
class _Candidates:
    """Feasible points of one way of sharing, with their objectives."""

    points: Ints  # (3, m): n, k and G
    values: Floats
    exhaustive: bool


def _join(parts: Sequence[_Candidates]) -> _Candidates:
    return _Candidates(
        np.concatenate([part.points for part in parts], axis=1),
        np.concatenate([part.values for part in parts]),
        all(part.exhaustive for part in parts),
    )


def _choose(found: Mapping[str, _Candidates], cost: Surface) -> Optimum:
    names, parts = list(found), list(found.values())
    order = np.repeat(np.arange(len(parts)), [len(part.values) for part in parts])
    every = _join(parts)
    n, k, _ = every.points
    least = every.values.min()
    equal = np.flatnonzero(every.values <= least + abs(least) * _TIE)
    equal = equal[np.lexsort((-k[equal], n[equal], order[equal]))]
    _, first = np.unique(every.points[:, equal], axis=1, return_index=True)
    best, *others = equal[np.sort(first)].tolist()
    batch_size, num_negatives, num_groups = every.points[:, best].tolist()
    return Optimum(
        batch_size=batch_size,
        num_negatives=num_negatives,
        num_groups=num_groups,
        sharing=names[order[best]],
        objective=float(every.values[best]),
        cost=float(cost(*every.points[:, best : best + 1])[0]),
        num_ties=len(others),
        ties=tuple((a, b, c) for a, b, c in every.points[:, others[:16]].T.tolist()),
        exhaustive=every.exhaustive,
    )


@dataclass(frozen=True)
class _Problem:
    """The search over (n, k) for one way of sharing."""

    objective: Surface
    cost: Surface
    budget: float
    max_batch_size: int
    max_num_negatives: int
    rule: GroupRule
    falls: bool

    def solve(self) -> _Candidates | None:
        """Return the evaluated candidates, or None if nothing fits."""
        one = np.ones(1, dtype=np.int64)
        widest = int(self.largest_negatives(one)[0])
        if widest < 1:
            return None
        tallest = int(self.largest_batch(one)[0])
        if self.falls and tallest <= _EXACT_ROWS:
            n = np.arange(1, tallest + 1)
            return self._evaluate(n, self.largest_negatives(n), exhaustive=True)
        if not self.falls and tallest * widest <= _EXACT_PAIRS:
            n, k = (part.ravel() for part in np.mgrid[1 : tallest + 1, 1 : widest + 1])
            return self._evaluate(n, k, exhaustive=True)
        return self._search(_spaced(1, tallest), _spaced(1, widest))

    def largest_negatives(self, n: Ints) -> Ints:
        """Find by bisection, for all n at once, the largest k that fits; 0 where none does."""
        groups = self.rule(n)
        return self._largest(len(n), self.max_num_negatives, lambda k: self.cost(n, k, groups))

    def largest_batch(self, k: Ints) -> Ints:
        """Find by bisection, for all k at once, the largest n that fits; 0 where none does."""
        return self._largest(len(k), self.max_batch_size, lambda n: self.cost(n, k, self.rule(n)))

    def _largest(self, size: int, most: int, spent: Callable[[Ints], Floats]) -> Ints:
        low, high = np.zeros(size, dtype=np.int64), np.full(size, most, dtype=np.int64)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            fits = spent(middle) <= self.budget
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _evaluate(self, n: Ints, k: Ints, *, exhaustive: bool) -> _Candidates:
        positive = (n >= 1) & (k >= 1)
        points = np.stack([n[positive], k[positive], self.rule(n[positive])])
        points = points[:, self.cost(*points) <= self.budget]
        return _Candidates(points, self.objective(*points), exhaustive)

    def _points(self, n: Ints, k: Ints) -> _Candidates:
        """Evaluate the border of the feasible region, and the inside of the grid if that can be best."""
        rows, columns = [n, self.largest_batch(k)], [self.largest_negatives(n), k]
        if not self.falls:
            rows.append(np.repeat(n, len(k)))
            columns.append(np.tile(k, len(n)))
        return self._evaluate(np.concatenate(rows), np.concatenate(columns), exhaustive=False)

    def _search(self, n: Ints, k: Ints) -> _Candidates:
        """Refine a logarithmic grid around its best points until neighbours are consecutive integers."""
        found = self._points(n, k)
        parts = [found]
        for start in np.argsort(found.values, kind="stable")[:_KEPT]:
            part, best, rows, columns = found, start, n, k
            while True:
                rows = _between(rows, int(part.points[0, best]))
                columns = _between(columns, int(part.points[1, best]))
                part = self._points(rows, columns)
                parts.append(part)
                if not len(part.values) or (np.all(np.diff(rows) == 1) and np.all(np.diff(columns) == 1)):
                    break
                best = part.values.argmin()
        return _join(parts)


def _spaced(low: int, high: int) -> Ints:
    """Return the integers from low to high, all of them or evenly spaced in their logarithm."""
    if high - low < _GRID:
        return np.arange(low, high + 1)
    return np.unique(np.geomspace(low, high, _GRID).round().astype(np.int64))


def _between(grid: Ints, centre: int) -> Ints:
    """Return integers between the neighbours of `centre` in the grid."""
    place = int(np.searchsorted(grid, centre))
    low, high = int(grid[max(place - 1, 0)]), int(grid[min(place + 1, len(grid) - 1)])
    return _spaced(low, high)
