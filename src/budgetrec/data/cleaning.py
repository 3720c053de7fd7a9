"""Filters on interactions. Each reports its rows in and rows out."""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.events import Events, count_codes
from budgetrec.errors import ArgumentError, DataError
from budgetrec.options import check_choice, check_positive


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which interactions to drop.

    `rating_above` keeps rows with a higher rating. `min_user` and `min_item` are the fewest interactions of a
    user and an item; they apply repeatedly until nothing changes or, with `one_pass`, once, to items first.
    `repeats` is "keep", or "first" to keep only the first interaction of a user with an item.
    """

    rating_above: float | None = None
    min_user: int = 1
    min_item: int = 1
    one_pass: bool = False
    repeats: str = "keep"

    def __post_init__(self) -> None:
        check_positive(min_user=self.min_user, min_item=self.min_item)
        if self.rating_above is not None and not math.isfinite(self.rating_above):
            raise ArgumentError(f"rating_above is {self.rating_above}. Pass a finite number.")
        check_choice("repeats", self.repeats, ("keep", "first"))


@dataclass(frozen=True)
class Step:
    """One step of the preparation: its name, and the rows before and after."""

    name: str
    rows_in: int
    rows_out: int


def filter_ratings(events: Events, above: float) -> Step:
    """Keep rows with a rating above `above`."""
    if events.ratings is None:
        raise DataError("there are no ratings to filter by. Omit --rating-above.")
    rows = len(events)
    events.keep(events.ratings > above)
    return _checked(Step(f"rating above {above:g}", rows, len(events)))


def filter_repeats(events: Events) -> Step:
    """Keep the first interaction of each user with each item; rows must be in sequence order."""
    rows = len(events)
    pairs = events.users.astype(np.int64) * len(events.item_labels) + events.items
    events.keep(pl.Series(pairs).is_first_distinct().to_numpy())
    return _checked(Step("first of repeated pairs", rows, len(events)))


def filter_rare(events: Events, *, min_user: int, min_item: int, one_pass: bool) -> list[Step]:
    """Keep users and items with enough interactions."""
    if min_user == 1 and min_item == 1:
        return []
    user_counts = count_codes(events.users, len(events.user_labels))
    item_counts = count_codes(events.items, len(events.item_labels))
    if one_pass:
        items = _drop(events, f"items with {min_item} or more", user_counts, item_counts, 1, min_item)
        users = _drop(events, f"users with {min_user} or more", user_counts, item_counts, min_user, 1)
        return [items, users]
    name = f"users with {min_user} and items with {min_item} or more"
    steps: list[Step] = []
    while not steps or steps[-1].rows_out < steps[-1].rows_in:
        steps.append(_drop(events, name, user_counts, item_counts, min_user, min_item))
    return [Step(f"{name} (round {len(steps)} found no more)", steps[0].rows_in, steps[-1].rows_out)]


def _drop(
    events: Events,
    name: str,
    user_counts: NDArray[np.int64],
    item_counts: NDArray[np.int64],
    min_user: int,
    min_item: int,
) -> Step:
    """Drop one round of rare users and items, and update the counts."""
    rows = len(events)
    rare_users = (user_counts < min_user) & (user_counts > 0)
    rare_items = (item_counts < min_item) & (item_counts > 0)
    if rare_users.any() or rare_items.any():
        dropped = rare_users[events.users] | rare_items[events.items]
        user_counts -= np.bincount(events.users[dropped], minlength=len(user_counts))
        item_counts -= np.bincount(events.items[dropped], minlength=len(item_counts))
        events.keep(~dropped)
    return _checked(Step(name, rows, len(events)))


def _checked(step: Step) -> Step:
    if step.rows_out == 0:
        raise DataError(
            f"nothing is left: the step '{step.name}' dropped the last {step.rows_in:,} rows. "
            "Use weaker filters."
        )
    return step
