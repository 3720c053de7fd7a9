"""Targets that are items of the user's own history: how many there are, and what follows for rankings.

Where people come back to what they know, as to a place or to a page of a shop, items of the history belong
among the candidates; where nobody ever does, as with ratings, they only take up room in the lists.
"""

import numpy as np
from numpy.typing import NDArray

from budgetrec.data.ragged import lay_out_in_blocks
from budgetrec.data.store import Dataset, Repeats, Targets

# From this share of the validation targets on, rankings keep what the user has had. Measured, keeping it pays
# from 5% to 8% on: docs/decisions/0053-what-is-scored-is-what-is-recommended.md.
KEPT_FROM = 0.05


def repeated_targets(dataset: Dataset, targets: Targets) -> NDArray[np.bool_]:
    """Say of each target whether the user has had the item before."""
    items, found = np.asarray(dataset.items), np.zeros(len(targets), bool)
    for block, rows, places in lay_out_in_blocks(targets.begins, targets.places - targets.begins):
        same = items[places] == items[targets.places[block]][rows]
        found[block.start + rows[same]] = True
    return found


def count_repeats(dataset: Dataset) -> dict[str, Repeats]:
    """Count the targets of both parts that are in their own history."""
    parts = {"validation": dataset.validation(), "test": dataset.test()}
    return {
        part: {"targets": len(targets), "repeated": int(repeated_targets(dataset, targets).sum())}
        for part, targets in parts.items()
    }


def should_keep_seen(dataset: Dataset) -> bool:
    """Say whether rankings keep what a user has had: where 5% of the validation targets are such items."""
    targets = dataset.validation()
    return bool(repeated_targets(dataset, targets).sum() >= KEPT_FROM * max(len(targets), 1))
