"""Who is trained on, and whose next item is predicted.

A split gives every row one part. In each sequence the training rows come first, then rows that are only
history, then at most one validation target and at most one test target, so that whatever is predicted
comes after whatever was trained on. The history of a target is everything before it.
"""

from dataclasses import asdict, dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError, DataError

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
    """All rows in the order of sequences: sequence `u` is `offsets[u]` to `offsets[u + 1]`."""

    offsets: NDArray[np.int64]
    items: NDArray[np.int32]
    times: NDArray[np.int64] | None
    num_items: int

    def users(self) -> NDArray[np.int64]:
        """Return the sequence that each row belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Split(Protocol):
    """A way to split; `describe` goes into dataset.json."""

    def parts(self, rows: Rows) -> Parts:
        """Return each row its part."""

    def describe(self) -> dict[str, Any]:
        """Tell the split's name and settings."""


@dataclass(frozen=True)
class LeaveOneOut:
    """The last item of a sequence is the test target, the one before it the validation target.

    Sequences of fewer than 3 items are only trained on.
    """

    def parts(self, rows: Rows) -> Parts:
        """Return each row its part."""
        parts = np.full(len(rows.items), Part.TRAIN, np.int8)
        ends = rows.offsets[1:][np.diff(rows.offsets) >= 3]
        parts[ends - 2] = Part.VALIDATION_TARGET
        parts[ends - 1] = Part.TEST_TARGET
        return parts

    def describe(self) -> dict[str, Any]:
        """Tell the split's name."""
        return {"name": "leave-one-out"}


@dataclass(frozen=True, kw_only=True)
class Temporal:
    """The last `test_share` of all interactions is the test period; some users are kept for validation.

    `validation_share` of the users of the training period, drawn with `seed`, are held out whole: the last
    item they have in it is their target. Everyone else trains on the training period; who goes on in the
    test period is tested on the last item of all, with everything before as history. Items that nobody
    trains on are dropped.
    """

    test_share: float = 0.1
    validation_share: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check_share("test_share", self.test_share)
        _check_share("validation_share", self.validation_share)
        if self.seed < 0:
            raise ArgumentError(f"seed is {self.seed}. Pass 0 or more.")

    def parts(self, rows: Rows) -> Parts:
        """Return each row its part."""
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

    def describe(self) -> dict[str, Any]:
        """Tell the split's name and settings."""
        return {"name": "temporal", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class TemporalUsers:
    """Users active in the last `test_share` of all interactions are held out; the others are trained on.

    Held-out users are known by what they do in that period alone: the last item is their test target, the
    one before it their validation target. Items that nobody trains on are dropped.
    """

    test_share: float = 0.05

    def __post_init__(self) -> None:
        _check_share("test_share", self.test_share)

    def parts(self, rows: Rows) -> Parts:
        """Return each row its part."""
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

    def describe(self) -> dict[str, Any]:
        """Tell the split's name and settings."""
        return {"name": "temporal-users", **asdict(self)}


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise ArgumentError(f"{name} is {share}. Pass a share between 0 and 1, such as 0.1.")


def _test_period(rows: Rows, share: float) -> NDArray[np.bool_]:
    if rows.times is None:
        raise DataError("a split by time needs times, and there are none. Pass --split leave-one-out.")
    # Exact in the share as it is written: 10 rows and 0.9 leave one row, which floats would lose.
    place = min(int(len(rows.times) * (1 - Fraction(str(share)))), len(rows.times) - 1)
    late: NDArray[np.bool_] = rows.times >= np.partition(rows.times, place)[place]
    if late.all():
        raise DataError(
            f"the last {share:.0%} of the rows begin at the very first time, so nothing is left to train on. "
            "Pass --split leave-one-out, or a smaller --test-share."
        )
    return late


def _drop_untrained_items(rows: Rows, parts: Parts) -> None:
    trained = np.zeros(rows.num_items, bool)
    trained[rows.items[parts == Part.TRAIN]] = True
    parts[~trained[rows.items]] = Part.DROPPED


def _mark_last(rows: Rows, parts: Parts, wanted: NDArray[np.bool_], target: Part) -> None:
    """Make the last history row of each wanted sequence a target, if anything stands before it.

    A row that is trained on is never made a target.
    """
    usable = np.flatnonzero((parts == Part.TRAIN) | (parts == Part.HISTORY))
    if len(usable) == 0:
        return
    users = np.searchsorted(rows.offsets, usable, side="right") - 1
    last_of_user = np.append(users[1:] != users[:-1], True)
    not_first = np.insert(users[1:] == users[:-1], 0, False)
    chosen = usable[last_of_user & not_first & wanted[users]]
    parts[chosen[parts[chosen] == Part.HISTORY]] = target
