"""The best next items of histories, in scores of a bounded size however large the catalogue is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError
from budgetrec.ranking.histories import Histories, NextItemModel, encode, evaluating, item_table
from budgetrec.ranking.scorer import BLOCK_BYTES, Scorer, SeenPairs


@dataclass(frozen=True)
class TopItems:
    """The best items (n, top) of each history with their scores, best first.

    Places are -1 where nothing is left to list. The order among equal scores is arbitrary.
    """

    items: NDArray[np.int64]
    scores: NDArray[np.float32]

    def to_frame(self, name: str, owners: pl.Series, labels: pl.Series) -> pl.DataFrame:
        """Return a row for each listed item: whose history it is under `name`, `rank`, `item` and `score`."""
        which, place = np.nonzero(self.items >= 0)
        return pl.DataFrame(
            {
                name: owners.gather(which),
                "rank": place + 1,
                "item": labels.gather(self.items[which, place]),
                "score": self.scores[which, place],
            }
        )


def top_items(
    model: NextItemModel,
    histories: Histories,
    *,
    num_items: int,
    top: int,
    keep_seen: bool = False,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TopItems:
    """Return the `top` items that a model scores highest, without those of the history unless `keep_seen`.

    Lists are as long as the catalogue at most. Scores that are NaN or infinite are refused. `progress` hears
    how many of the histories are done.
    """
    if top < 1:
        raise ArgumentError(f"top is {top}. Pass at least 1.")
    with evaluating(model):
        table = item_table(model, num_items)
        scorer = Scorer(table, list_length=min(top, num_items), block_bytes=block_bytes)
        items = np.empty((len(histories), scorer.list_length), np.int64)
        scores = np.empty(items.shape, np.float32)
        done = 0
        for states, rows in encode(model, histories, table.device, block_users=scorer.block_users):
            seen = SeenPairs.none() if keep_seen else histories.seen(rows)
            best = scorer.top(states.to(table.dtype), seen)
            items[rows], scores[rows] = best.items.cpu().numpy(), best.scores.cpu().numpy()
            done += len(rows)
            progress(done, len(histories))
    return TopItems(items, scores)
