"""Where to spend a budget: a solver for any cost and any objective over whole n and k.

The cost grows with n and k, in bytes or anything else. The objective is the noise, or the noise times the
seconds of a step. rules.py has the closed forms for a budget counted in logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Surface = Callable[[Ints, Ints, Ints], Floats]
GroupRule = Callable[[Ints], Ints]

_TIE = 1e-12  # objectives this close, relatively, are equal
_EXACT_PAIRS = 1 << 21  # up to this many (n, k) every pair is tried
_EXACT_ROWS = 1 << 15  # up to this many n every n is tried
_GRID = 256  # candidates along n (and along k) in one round of the search
_KEPT = 6  # candidates whose neighbourhoods the next round looks into


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """What the solver chose, and what else was as good.

    `ties` lists other (batch_size, num_negatives, num_groups) with the same objective among those it looked
    at, at most 16 of `num_ties`; `exhaustive` says whether every candidate was looked at (or ruled out by
    monotonicity).
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

    Both functions take integer arrays that broadcast and must not depend on their shape; the cost never falls
    as n or k grows. `sharings` names each way of sharing and gives G from n: shared is ``lambda n: n * 0 +
    1``, one set a sequence ``lambda n: n``. With `falls_with_negatives` the objective never rises with k (the
    law): then only the largest k that fits each n can be best. Without it (noise times seconds) every k that
    fits is a candidate.

    Ranges of up to two million pairs (or 32,768 n, when it falls) are searched exactly. Beyond, candidates
    spaced evenly in log n and log k are refined around the best few until neighbours are integers apart. Ties
    go to the first sharing, then the smallest n, then the largest k.

    The largest n k with n + k <= 5 is 2 * 3:

    >>> found = allocate(
    ...     objective=lambda n, k, g: 1 / (n * k), cost=lambda n, k, g: n + k + 0.0, budget=5,
    ...     max_batch_size=9, max_num_negatives=9, sharings={"shared": lambda n: n * 0 + 1})
    >>> found.batch_size, found.num_negatives, found.ties
    (2, 3, ((3, 2, 1),))
    """
    if max_batch_size < 1 or max_num_negatives < 1:
        raise ArgumentError(
            f"max_batch_size is {max_batch_size} and max_num_negatives {max_num_negatives}; "
            "pass at least 1 of each."
        )
    if not sharings:
        raise ArgumentError("sharings is empty; name at least one way of sharing negatives.")
    found = [
        candidates
        for order, rule in enumerate(sharings.values())
        if (
            candidates := _Problem(
                objective, cost, budget, max_batch_size, max_num_negatives, rule, falls_with_negatives
            ).solve(order)
        )
        is not None
    ]
    if not found:
        one = np.ones(1, dtype=np.int64)
        least = min(float(cost(one, one, rule(one))[0]) for rule in sharings.values())
        raise ArgumentError(
            f"the budget of {budget:g} is below the cost {least:g} of one example with one negative; "
            "raise the budget."
        )
    return _choose(found, list(sharings), cost)


@dataclass(frozen=True)
class _Candidates:
    """Feasible points of one way of sharing that were evaluated."""

    order: int
    n: Ints
    k: Ints
    groups: Ints
    values: Floats
    exhaustive: bool


def _choose(found: list[_Candidates], names: list[str], cost: Surface) -> Optimum:
    order = np.concatenate([np.full(len(part.n), part.order) for part in found])
    n, k = np.concatenate([part.n for part in found]), np.concatenate([part.k for part in found])
    groups = np.concatenate([part.groups for part in found])
    values = np.concatenate([part.values for part in found])
    least = values.min()
    equal = np.flatnonzero(values <= least + abs(least) * _TIE)
    equal = equal[np.lexsort((-k[equal], n[equal], order[equal]))]
    _, first = np.unique(np.stack([n, k, groups])[:, equal], axis=1, return_index=True)
    equal = equal[np.sort(first)]
    best, others = equal[0], equal[1:]
    spent = cost(n[best : best + 1], k[best : best + 1], groups[best : best + 1])
    return Optimum(
        batch_size=int(n[best]),
        num_negatives=int(k[best]),
        num_groups=int(groups[best]),
        sharing=names[int(order[best])],
        objective=float(values[best]),
        cost=float(spent[0]),
        num_ties=len(others),
        ties=tuple((int(n[i]), int(k[i]), int(groups[i])) for i in others[:16]),
        exhaustive=all(part.exhaustive for part in found),
    )


@dataclass(frozen=True)
class _Problem:
    """One way of sharing: a surface to search over (n, k)."""

    objective: Surface
    cost: Surface
    budget: float
    max_batch_size: int
    max_num_negatives: int
    rule: GroupRule
    falls: bool

    def solve(self, order: int) -> _Candidates | None:
        """Evaluate candidates, or None when nothing fits."""
        one = np.ones(1, dtype=np.int64)
        widest = int(self.largest_negatives(one)[0])
        if widest < 1:
            return None
        tallest = int(self.largest_batch(one)[0])
        if self.falls and tallest <= _EXACT_ROWS:
            n = np.arange(1, tallest + 1)
            return self._evaluate(order, n, self.largest_negatives(n), exhaustive=True)
        if not self.falls and tallest * widest <= _EXACT_PAIRS:
            n, k = (part.ravel() for part in np.mgrid[1 : tallest + 1, 1 : widest + 1])
            return self._evaluate(order, n, k, exhaustive=True)
        return self._search(order, _spaced(1, tallest), _spaced(1, widest))

    def largest_negatives(self, n: Ints) -> Ints:
        """Bisect, for all n at once, the largest k that fits; 0 where none does."""
        groups = self.rule(n)
        return self._largest(len(n), self.max_num_negatives, lambda k: self.cost(n, k, groups))

    def largest_batch(self, k: Ints) -> Ints:
        """Bisect, for all k at once, the largest n that fits; 0 where none does."""
        return self._largest(len(k), self.max_batch_size, lambda n: self.cost(n, k, self.rule(n)))

    def _largest(self, size: int, most: int, spent: Callable[[Ints], Floats]) -> Ints:
        low, high = np.zeros(size, dtype=np.int64), np.full(size, most, dtype=np.int64)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            fits = spent(middle) <= self.budget
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _evaluate(self, order: int, n: Ints, k: Ints, *, exhaustive: bool) -> _Candidates:
        positive = (n >= 1) & (k >= 1)
        n, k = n[positive], k[positive]
        groups = self.rule(n)
        fits = self.cost(n, k, groups) <= self.budget
        n, k, groups = n[fits], k[fits], groups[fits]
        return _Candidates(order, n, k, groups, self.objective(n, k, groups), exhaustive)

    def _points(self, order: int, n: Ints, k: Ints) -> _Candidates:
        """Evaluate the border of what fits, and the inside of the grid if that can be best."""
        rows, columns = [n, self.largest_batch(k)], [self.largest_negatives(n), k]
        if not self.falls:
            rows.append(np.repeat(n, len(k)))
            columns.append(np.tile(k, len(n)))
        return self._evaluate(order, np.concatenate(rows), np.concatenate(columns), exhaustive=False)

    def _search(self, order: int, n: Ints, k: Ints) -> _Candidates:
        """Refine a logarithmic grid around its best points until neighbours are integers apart."""
        found = self._points(order, n, k)
        parts = [found]
        for start in np.argsort(found.values, kind="stable")[:_KEPT]:
            rows, columns = _between(n, int(found.n[start])), _between(k, int(found.k[start]))
            while True:
                part = self._points(order, rows, columns)
                parts.append(part)
                if not len(part.n) or (np.all(np.diff(rows) == 1) and np.all(np.diff(columns) == 1)):
                    break
                best = int(part.values.argmin())
                rows, columns = _between(rows, int(part.n[best])), _between(columns, int(part.k[best]))
        return _Candidates(
            order,
            np.concatenate([part.n for part in parts]),
            np.concatenate([part.k for part in parts]),
            np.concatenate([part.groups for part in parts]),
            np.concatenate([part.values for part in parts]),
            False,
        )


def _spaced(low: int, high: int) -> Ints:
    """Integers from low to high, all of them or spaced evenly in their logarithm."""
    if high - low < _GRID:
        return np.arange(low, high + 1)
    return np.unique(np.geomspace(low, high, _GRID).round().astype(np.int64))


def _between(grid: Ints, centre: int) -> Ints:
    """Integers between the neighbours of `centre` in the grid."""
    place = int(np.searchsorted(grid, centre))
    low, high = int(grid[max(place - 1, 0)]), int(grid[min(place + 1, len(grid) - 1)])
    return _spaced(low, high)
