r"""The rank of each held-out item among the whole catalogue, and its exact softmax loss.

Scores of a block of users are computed against a tile of items at a time, so users x items never stands in
memory. The rank of target $p$ is 1 + the number of other items $j$ with $s_j \ge s_p$: **ties are counted
pessimistically**, so a model that scores everything alike gets the last place and not the first. The loss
$\log \sum_j e^{s_j} - s_p$ runs over all items, those that the user had included.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from budgetrec.data.store import Dataset, Targets
from budgetrec.errors import ArgumentError, DataError
from budgetrec.ranking.histories import Histories, NextItemModel, encode, evaluating, item_table
from budgetrec.ranking.scorer import BLOCK_BYTES, Scorer, SeenPairs


@dataclass(frozen=True)
class Ranking:
    """What a model makes of each target: rank 1 is the best, K the worst (ties count against the target).

    `lists`, if they were asked for, hold the best items of each user (-1 where nothing is left to list);
    the order among equal scores is arbitrary.
    """

    users: NDArray[np.int64]
    targets: NDArray[np.int64]
    ranks: NDArray[np.int64]
    losses: NDArray[np.float64]
    num_items: int
    lists: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.ranks)


def rank_targets(
    model: NextItemModel,
    dataset: Dataset,
    targets: Targets,
    *,
    batch_size: int | None = None,
    keep_seen: bool = False,
    list_length: int = 0,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ranking:
    """Rank every target among the catalogue without the items of its history, or with them (`keep_seen`).

    All of the history counts as seen, also what lies before the last `max_length` items. A target that the
    user had before is left out like any other, so it is in no list and has the last rank, K. `batch_size`
    histories are encoded at once (what is fast, if not given); scores and their scratch space together take
    at most `block_bytes`. `progress` hears how many of the targets are done.
    """
    _check(targets, list_length=list_length)
    histories = Histories(dataset.items, targets.begins, targets.places)
    wanted = dataset.items[targets.places].astype(np.int64)
    with evaluating(model):
        table = item_table(model, dataset.num_items)
        scorer = Scorer(table, list_length=min(list_length, dataset.num_items), block_bytes=block_bytes)
        ranks = np.empty(len(targets), np.int64)
        losses = np.empty(len(targets), np.float64)
        lists = np.empty((len(targets), scorer.list_length), np.int32)
        done = 0
        for states, rows in encode(
            model, histories, table.device, block_users=scorer.block_users, batch_size=batch_size
        ):
            seen = SeenPairs.none() if keep_seen else histories.seen(rows)
            own = torch.from_numpy(wanted[rows]).to(table.device)
            result = scorer.rank(states.to(table.dtype), own, seen)
            ranks[rows], losses[rows] = result.ranks.cpu().numpy(), result.losses.cpu().numpy()
            lists[rows] = result.lists.cpu().numpy()
            done += len(rows)
            progress(done, len(targets))
    return Ranking(
        users=np.asarray(targets.users, np.int64),
        targets=wanted,
        ranks=ranks,
        losses=losses,
        num_items=dataset.num_items,
        lists=lists if list_length else None,
    )


def _check(targets: Targets, *, list_length: int) -> None:
    if len(targets) == 0:
        raise DataError("there is no target to rank. Prepare the dataset with a split that holds items out.")
    if (targets.places <= targets.begins).any():
        raise DataError(
            "a target has no history before it, so nothing can predict it. Leave such targets out."
        )
    if list_length < 0:
        raise ArgumentError(f"list_length is {list_length}. Pass 0 for no lists, or more.")
