r"""Seconds per step as a function of (n, k), from a few short timed steps or from a machine's rates.

A step costs a fixed time, a time for each sequence (the encoder), for each pair of a sequence and a negative
(logits and gathered rows), for each negative of a set that the whole batch shares, for each row of the table
that a row-sparse update touches, and for each part that it is cut into. All of these are times, so none is
negative.

All families are fitted together: they share the encoder and the update of the table, so what one family's
points cannot tell apart another's can. Operation counts at the machine's own rate stand in weakly for what no
point shows; so no cost is lost to another that happens to rise with it.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from budgetrec.allocation import Allocation

Floats = NDArray[np.float64]

# How much a cost's operation count weighs against one timed step: timings are about 10% uncertain, counts by
# a factor of two or so. A family's own share of the encoder's cost is expected to be near 0.
_PRIOR_WEIGHT, _OWN_WEIGHT = 0.1, 0.2


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Seconds of a step of one way.

    >>> seconds = StepSeconds(fixed=1.0, sequence=0.5, pair=0.25)
    >>> float(seconds(4, 8))  # 1 + 4 / 2 + 4 * 8 / 4
    11.0
    """

    fixed: float
    sequence: float
    pair: float
    negative: float = 0.0
    touched: float = 0.0
    part: float = 0.0
    rows_a_sequence: float = 0.0  # rows of the table that a sequence gathers besides negatives
    num_items: int = 1
    sharing: str = "sequence"

    def __call__(
        self, batch_size: ArrayLike, num_negatives: ArrayLike, extra_parts: ArrayLike = 0.0
    ) -> Floats:
        """Predict for one or many (n, k); `extra_parts` are cut beyond what training does by itself."""
        n, k = np.asarray(batch_size, np.float64), np.asarray(num_negatives, np.float64)
        terms = _features(n, k, self.rows_a_sequence, self.num_items, self.sharing)
        costs = (self.fixed, self.sequence, self.pair, self.negative, self.touched)
        total: Floats = sum(
            (cost * term for cost, term in zip(costs, terms, strict=True)), np.zeros(())
        ) + self.part * np.asarray(extra_parts, np.float64)
        return total


def _features(
    n: Floats, k: Floats, rows_a_sequence: float, num_items: int, sharing: str
) -> tuple[Floats, ...]:
    one = np.ones(np.broadcast_shapes(n.shape, k.shape))
    drawn = {"batch": k * one, "sequence": n * k, "target": n * k * rows_a_sequence / 2}[sharing]
    gathered = n * rows_a_sequence + drawn
    touched = num_items * -np.expm1(-gathered / num_items)  # distinct ones among the draws
    return one, n * one, n * k, k * one if sharing == "batch" else 0 * one, touched


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One allocation that was timed: its sequences, counted as ones of average length, and its seconds.

    `weight` says how many steps it counts for.
    """

    family: Allocation
    batch_size: float
    num_negatives: int
    seconds: float
    weight: float = 1.0


def fit_seconds(
    timed: Sequence[TimedStep], counted: Mapping[Allocation, StepSeconds]
) -> dict[Allocation, StepSeconds]:
    """Fit the costs of every family in `counted` to timed steps, relative errors weighed alike.

    `counted` holds the costs of each family by operation counts, on any machine; costs that they say to be 0
    stay 0.
    """
    pace = _pace(timed, counted)
    columns: dict[tuple[Any, ...], float] = {}  # a cost and who has it in common -> what is expected of it
    for family, costs in counted.items():
        for key, expected in _expected(family, costs).items():
            if expected > 0:
                columns.setdefault(key, pace * expected)
    places = {key: place for place, key in enumerate(columns)}
    expected_costs = np.array([*columns.values()])
    rows, wanted = [], []
    for step in timed:
        row = np.zeros(len(places))
        costs = counted[step.family]
        terms = _features(
            np.array(step.batch_size), np.array(float(step.num_negatives)),
            costs.rows_a_sequence, costs.num_items, costs.sharing,
        )  # fmt: skip
        for key in _expected(step.family, costs):
            if key in places:
                row[places[key]] = float(terms[_TERMS[key[0]]])
        rows.append(row * expected_costs / step.seconds * step.weight)
        wanted.append(step.weight)
    # Unknowns are multiples of the expected costs: 1 by the counts, 0 for what a family has of its own.
    trust = np.array([_OWN_WEIGHT if key[0] == "own" else _PRIOR_WEIGHT for key in places])
    believed = np.array([0.0 if key[0] == "own" else 1.0 for key in places])
    multiples, _ = nnls(np.vstack([*rows, np.diag(trust)]), np.concatenate([wanted, trust * believed]))
    found = dict(zip(places, multiples * expected_costs, strict=True))

    def of(family: Allocation, costs: StepSeconds) -> StepSeconds:
        cost = {key[0]: float(found.get(key, 0.0)) for key in _expected(family, costs)}
        return dataclasses.replace(
            costs,
            fixed=cost["fixed"],
            sequence=cost["sequence"] + cost["own"],
            pair=cost["pair"],
            negative=cost["negative"],
            touched=cost["touched"],
            part=0.0,
        )

    return {family: of(family, costs) for family, costs in counted.items()}


_TERMS = {"fixed": 0, "sequence": 1, "own": 1, "pair": 2, "negative": 3, "touched": 4}


def _expected(family: Allocation, costs: StepSeconds) -> dict[tuple[Any, ...], float]:
    """Return the costs of a family by name and by who shares them, as they were counted."""
    return {
        ("fixed", family.table_updates): costs.fixed,
        ("sequence", family.draws): costs.sequence,
        ("own", family): costs.sequence,
        ("pair", family): costs.pair,
        ("negative", family): costs.negative,
        ("touched",): costs.touched,
    }


def _pace(timed: Iterable[TimedStep], counted: Mapping[Allocation, StepSeconds]) -> float:
    """Return how many times the counted seconds this machine takes: the median over timed steps."""
    return float(
        np.median(
            [
                step.seconds / float(counted[step.family](step.batch_size, step.num_negatives))
                for step in timed
            ]
        )
    )


_OF_FAMILY = ("objective", "sharing", "lean", "table_updates")


def seconds_row(family: Allocation, seconds: StepSeconds) -> dict[str, float | int | str | bool]:
    """Return a family and its costs as one flat record, for a file."""
    return {name: getattr(family, name) for name in _OF_FAMILY} | dataclasses.asdict(seconds)


def seconds_of(row: Mapping[str, Any]) -> tuple[Allocation, StepSeconds]:
    """Take apart a record that `seconds_row` returned."""
    costs = {item.name for item in dataclasses.fields(StepSeconds)} & row.keys()
    family = Allocation(batch_size=1, num_negatives=1, **{name: row[name] for name in _OF_FAMILY})
    return family, StepSeconds(**{name: row[name] for name in costs})
