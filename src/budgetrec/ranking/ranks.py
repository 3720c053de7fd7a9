r"""The rank of each held-out item among the whole catalogue, and its exact softmax loss.

Scores of a block of users are computed against a tile of items at a time, so users x items never stands in
memory. The rank of target $p$ is 1 + the number of other items $j$ with $s_j \ge s_p$: **ties are counted
pessimistically**, so a model that scores everything alike gets the last place and not the first. The loss
$\log \sum_j e^{s_j} - s_p$ runs over all items, those that the user had included.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from budgetrec.data.batches import history_batches
from budgetrec.data.store import Dataset, Targets
from budgetrec.errors import ArgumentError, DataError
from budgetrec.ranking.scorer import BLOCK_BYTES, BLOCK_USERS, Scorer, SeenPairs

# Histories encoded at once. Measured on one CPU thread with SASRec, d = 64, 200 positions, seconds for 6,040
# users: 1.5 by 32, 1.4 by 64, 1.9 by 128, 2.5 by 256.
ENCODED_AT_ONCE = {"cpu": 64}


class NextItemModel(Protocol):
    """What an evaluation needs of a model: any `nn.Module` with the two methods and `max_length`."""

    @property
    def max_length(self) -> int:
        """How many items of a history it looks at."""

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict what follows histories (n, width), padded on the right."""

    def item_table(self) -> Tensor:
        """Return the output vectors of all items (K, d)."""

    def modules(self) -> Iterator[nn.Module]:
        """Return the model and all its parts."""


@dataclass(frozen=True)
class Ranking:
    """What a model makes of each target: rank 1 is the best, K the worst (ties count against the target).

    `lists`, if they were asked for, hold the best items of each user (-1 where nothing is left to list);
    among equal scores their order means nothing.
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
) -> Ranking:
    """Rank every target among the catalogue without the items of its history, or with them (`keep_seen`).

    All of the history counts as seen, also what lies before the last `max_length` items. The target itself is
    never removed, even if the user had it before. `batch_size` histories are encoded at once (what is fast,
    if not given); scores and their scratch space together take at most `block_bytes`.
    """
    _check(targets, list_length=list_length)
    with evaluating(model):
        table = _item_table(model, dataset)
        scorer = Scorer(table, list_length=min(list_length, dataset.num_items), block_bytes=block_bytes)
        ranks = np.empty(len(targets), np.int64)
        losses = np.empty(len(targets), np.float64)
        lists = np.empty((len(targets), scorer.list_length), np.int32)
        batches = _encode(model, dataset, targets, table.device, batch_size)
        for block in _in_blocks(batches, scorer.block_users):
            seen = SeenPairs.none() if keep_seen else SeenPairs.seen(dataset, targets, block.rows)
            result = scorer.rank(block.states.to(table.dtype), block.targets, seen)
            ranks[block.rows], losses[block.rows] = result.ranks.cpu().numpy(), result.losses.cpu().numpy()
            lists[block.rows] = result.lists.cpu().numpy()
    return Ranking(
        users=np.asarray(targets.users, np.int64),
        targets=dataset.items[targets.places].astype(np.int64),
        ranks=ranks,
        losses=losses,
        num_items=dataset.num_items,
        lists=lists if list_length else None,
    )


@contextmanager
def evaluating(model: NextItemModel) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and each of its parts back as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class _Encoded:
    """States (n, d) of histories, the items (n,) that follow them, and which targets those are."""

    states: Tensor
    targets: Tensor
    rows: NDArray[np.int64]


def _encode(
    model: NextItemModel, dataset: Dataset, targets: Targets, device: torch.device, batch_size: int | None
) -> Iterator[_Encoded]:
    if batch_size is None:
        batch_size = ENCODED_AT_ONCE.get(device.type, BLOCK_USERS)
    for batch in history_batches(dataset, targets, batch_size=batch_size, max_length=model.max_length):
        states = model.predict(batch.ids.to(device), batch.mask.to(device))
        yield _Encoded(states, batch.targets.to(device), batch.rows.numpy())


def _in_blocks(batches: Iterator[_Encoded], size: int) -> Iterator[_Encoded]:
    """Put batches together, or cut them, so that each block has `size` histories, and the last what is left.

    Encoders are fastest in small batches and products with the table in large ones.
    """
    waiting: list[_Encoded] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(each.rows) for each in waiting) >= size:
            whole = _joined(waiting)
            full = len(whole.rows) - len(whole.rows) % size
            for start in range(0, full, size):
                yield _part(whole, slice(start, start + size))
            waiting = [_part(whole, slice(full, None))] if full < len(whole.rows) else []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[_Encoded]) -> _Encoded:
    return _Encoded(
        torch.cat([each.states for each in parts]),
        torch.cat([each.targets for each in parts]),
        np.concatenate([each.rows for each in parts]),
    )


def _part(whole: _Encoded, rows: slice) -> _Encoded:
    return _Encoded(whole.states[rows], whole.targets[rows], whole.rows[rows])


def _item_table(model: NextItemModel, dataset: Dataset) -> Tensor:
    table = model.item_table()
    if table.ndim != 2 or table.shape[0] != dataset.num_items:
        raise ArgumentError(
            f"the model's item table has shape {tuple(table.shape)}, and the dataset "
            f"{dataset.num_items:,} items. Evaluate a model on the dataset it was made for."
        )
    return table if table.dtype == torch.float64 else table.float()


def _check(targets: Targets, *, list_length: int) -> None:
    if len(targets) == 0:
        raise DataError("there is no target to rank. Prepare the dataset with a split that holds items out.")
    if (targets.places <= targets.begins).any():
        raise DataError(
            "a target has no history before it, so nothing can predict it. Leave such targets out."
        )
    if list_length < 0:
        raise ArgumentError(f"list_length is {list_length}. Pass 0 for no lists, or more.")
