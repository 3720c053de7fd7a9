"""Splits into training rows and prediction targets.

A split assigns one part to every row. In each sequence the training rows come first, then rows that are only
history, then at most one validation target and at most one test target, so every target comes after
everything trained on. The history of a target is everything before it.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from enum import IntEnum
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError, DataError
from budgetrec.options import check_not_negative

Parts = NDArray[np.int8]


class Part(IntEnum):
    """What a row is used for."""

    DROPPED = 0
    TRAIN = 1
    HISTORY = 2
    VALIDATION_TARGET = 3
    TEST_TARGET = 4


@dataclass(frozen=True)
class Rows:
    """All rows in sequence order: sequence `u` is `offsets[u]` to `offsets[u + 1]`."""

    offsets: NDArray[np.int64]
    items: NDArray[np.int32]
    times: NDArray[np.int64] | None
    num_items: int

    def users(self) -> NDArray[np.int64]:
        """Return the sequence of each row."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class Split(ABC):
    """A way to split."""

    name: ClassVar[str]

    @abstractmethod
    def parts(self, rows: Rows) -> Parts:
        """Return the part of each row."""

    def describe(self) -> dict[str, object]:
        """Return the split's name and settings, for dataset.json."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class LeaveOneOut(Split):
    """The last item of a sequence is the test target, the one before it the validation target.

    Sequences of fewer than 3 items are only trained on.
    """

    name = "leave-one-out"

    def parts(self, rows: Rows) -> Parts:
        """Return the part of each row."""
        parts = np.full(len(rows.items), Part.TRAIN, np.int8)
        ends = rows.offsets[1:][np.diff(rows.offsets) >= 3]
        parts[ends - 2] = Part.VALIDATION_TARGET
        parts[ends - 1] = Part.TEST_TARGET
        return parts


@dataclass(frozen=True, kw_only=True)
class Temporal(Split):
    """The last `test_share` of all interactions is the test period; some users are kept for validation.

    `validation_share` of the users of the training period, drawn with `seed`, are held out entirely: the
    target is their last item in it. All others are trained on up to its end; those active in the test period
    are tested on their very last item, with everything before as history. Items without training rows are
    dropped.
    """

    name = "temporal"
    test_share: float = 0.1
    validation_share: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check_share("test_share", self.test_share)
        _check_share("validation_share", self.validation_share)
        check_not_negative(seed=self.seed)

    def parts(self, rows: Rows) -> Parts:
        """Return the part of each row."""
        late = _test_period(rows, self.test_share)
        users = rows.users()
        num_users = len(rows.offsets) - 1
        early_users = np.unique(users[~late])
        held_out = np.zeros(num_users, bool)
        count = round(len(early_users) * self.validation_share)
        held_out[np.random.default_rng(self.seed).choice(early_users, count, replace=False)] = True

        parts = np.where(late, Part.HISTORY, Part.TRAIN).astype(np.int8)
        parts[held_out[users]] = Part.HISTORY
        parts[held_out[users] & late] = Part.DROPPED
        _drop_untrained_items(rows, parts)
        trains = np.zeros(num_users, bool)
        trains[users[parts == Part.TRAIN]] = True
        parts[~trains[users] & ~held_out[users]] = Part.DROPPED
        _mark_last(rows, parts, held_out, Part.VALIDATION_TARGET)
        _mark_last(rows, parts, trains, Part.TEST_TARGET)
        return parts


@dataclass(frozen=True, kw_only=True)
class TemporalUsers(Split):
    """Users active in the last `test_share` of all interactions are held out; the others are trained on.

    Only that period counts for held-out users: their last item is the test target, the one before it the
    validation target. Items without training rows are dropped.
    """

    name = "temporal-users"
    test_share: float = 0.05

    def __post_init__(self) -> None:
        _check_share("test_share", self.test_share)

    def parts(self, rows: Rows) -> Parts:
        """Return the part of each row."""
        late = _test_period(rows, self.test_share)
        users = rows.users()
        held_out = np.zeros(len(rows.offsets) - 1, bool)
        held_out[users[late]] = True
        parts = np.where(late, Part.HISTORY, Part.TRAIN).astype(np.int8)
        parts[held_out[users] & ~late] = Part.DROPPED
        _drop_untrained_items(rows, parts)
        _mark_last(rows, parts, held_out, Part.TEST_TARGET)
        _mark_last(rows, parts, held_out, Part.VALIDATION_TARGET)
        return parts


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise ArgumentError(f"{name} is {share}. Pass a share between 0 and 1, such as 0.1.")


def _test_period(rows: Rows, share: float) -> NDArray[np.bool_]:
    if rows.times is None:
        raise DataError("a split by time needs times, but there are none. Pass --split leave-one-out.")
    # Exact for the share as written: 10 rows and 0.9 leave one row, which floats would lose.
    place = min(int(len(rows.times) * (1 - Fraction(str(share)))), len(rows.times) - 1)
    late: NDArray[np.bool_] = rows.times >= np.partition(rows.times, place)[place]
    if late.all():
        raise DataError(
            f"the last {share:.0%} of the rows start at the earliest time, so nothing is left to train on. "
            "Pass --split leave-one-out, or a smaller --test-share."
        )
    return late


def _drop_untrained_items(rows: Rows, parts: Parts) -> None:
    trained = np.zeros(rows.num_items, bool)
    trained[rows.items[parts == Part.TRAIN]] = True
    parts[~trained[rows.items]] = Part.DROPPED


def _mark_last(rows: Rows, parts: Parts, wanted: NDArray[np.bool_], target: Part) -> None:
    """Make the last history row of each wanted sequence a target, if there is a row before it.

    A training row never becomes a target.
    """
    usable = np.flatnonzero((parts == Part.TRAIN) | (parts == Part.HISTORY))
    if len(usable) == 0:
        return
    users = np.searchsorted(rows.offsets, usable, side="right") - 1
    last_of_user = np.append(users[1:] != users[:-1], True)
    not_first = np.insert(users[1:] == users[:-1], 0, False)
    chosen = usable[last_of_user & not_first & wanted[users]]
    parts[chosen[parts[chosen] == Part.HISTORY]] = target
