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

BLOCK_BYTES = 64 * 2**20
_BLOCK_USERS = 256
_FEWEST_BYTES = 64  # two users, two items, two buffers, eight bytes a number
# Comparisons are summed as float32, which counts exactly up to here and is five times faster than booleans.
_WIDEST_TILE = 2**24


class NextItemModel(Protocol):
    """What an evaluation needs of a model: any `nn.Module` with the two methods and `max_length`."""

    @property
    def max_length(self) -> int:
        """How many items of a history it looks at."""

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Give the states (n, d) that predict what follows histories (n, width), padded on the right."""

    def item_table(self) -> Tensor:
        """Give the output vectors of all items (K, d)."""

    def modules(self) -> Iterator[nn.Module]:
        """Give the model and all its parts."""


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
    lists: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ranks)


def rank_targets(
    model: NextItemModel,
    dataset: Dataset,
    targets: Targets,
    *,
    batch_size: int = 256,
    keep_seen: bool = False,
    list_length: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Ranking:
    """Rank every target among the catalogue without the items of its history, or with them (`keep_seen`).

    All of the history counts as seen, also what lies before the last `max_length` items. The target itself is
    never removed, even if the user had it before. `batch_size` histories are encoded at once; scores and
    their scratch space together take at most `block_bytes`.
    """
    _check(dataset, targets, list_length=list_length, block_bytes=block_bytes)
    with evaluating(model):
        table = model.item_table()
        if table.ndim != 2 or table.shape[0] != dataset.num_items:
            raise ArgumentError(
                f"the model's item table has shape {tuple(table.shape)}, and the dataset "
                f"{dataset.num_items:,} items. Evaluate a model on the dataset it was made for."
            )
        table = table if table.dtype == torch.float64 else table.float()
        scorer = _Scorer(table, list_length=min(list_length, dataset.num_items), block_bytes=block_bytes)
        ranks = np.empty(len(targets), np.int64)
        losses = np.empty(len(targets), np.float64)
        lists = np.empty((len(targets), scorer.list_length), np.int64)
        for batch in history_batches(dataset, targets, batch_size=batch_size, max_length=model.max_length):
            ids, mask = batch.ids.to(table.device), batch.mask.to(table.device)
            states = model.predict(ids, mask).to(table.dtype)
            for start in range(0, len(states), scorer.block_users):
                block = slice(start, start + scorer.block_users)
                rows = batch.rows[block].numpy()
                seen = _Pairs.none() if keep_seen else _Pairs.seen(dataset, targets, rows)
                result = scorer.rank(states[block], batch.targets[block].to(table.device), seen)
                ranks[rows], losses[rows] = result.ranks.cpu().numpy(), result.losses.cpu().numpy()
                lists[rows] = result.lists.cpu().numpy()
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
class _Pairs:
    """Rows of a block and the items to be left out there, sorted by item."""

    rows: NDArray[np.int64]
    items: NDArray[np.int32]

    @classmethod
    def none(cls) -> "_Pairs":
        return cls(np.empty(0, np.int64), np.empty(0, np.int32))

    @classmethod
    def seen(cls, dataset: Dataset, targets: Targets, rows: NDArray[np.int64]) -> "_Pairs":
        begins, places = targets.begins[rows], targets.places[rows]
        lengths = places - begins
        first = np.cumsum(lengths) - lengths
        within = np.arange(lengths.sum()) + np.repeat(begins - first, lengths)
        return cls(np.repeat(np.arange(len(rows)), lengths), np.asarray(dataset.items)[within])

    def sorted_by_item(self) -> "_Pairs":
        order = np.argsort(self.items, kind="stable")
        return _Pairs(self.rows[order], self.items[order])


@dataclass(frozen=True)
class _Block:
    ranks: Tensor
    losses: Tensor
    lists: Tensor


class _Scorer:
    """Scores states (n, d) against a table (K, d), a tile of items at a time, in two buffers used again.

    All tiles of a block are products of one shape, since only those round alike: an item that equals the
    target must tie with it wherever it stands. So the last tile overlaps the one before, the target's own
    score comes from a tile of the same shape, and a block of one user is doubled (its product would be
    one of a matrix with a vector, which rounds differently at its edges).
    """

    def __init__(self, table: Tensor, *, list_length: int, block_bytes: int) -> None:
        num_items = table.shape[0]
        pair_bytes = 2 * table.element_size()  # the scores, and as much again to work in
        self.block_users = max(2, min(_BLOCK_USERS, block_bytes // (pair_bytes * min(num_items, 1024))))
        self.width = min(num_items, _WIDEST_TILE, block_bytes // (pair_bytes * self.block_users))
        self.list_length = list_length
        self._table = table
        self._whole = self.width == num_items
        size = self.block_users * self.width
        self._scores, self._scratch = (table.new_empty(size) for _ in range(2))

    def rank(self, states: Tensor, targets: Tensor, seen: _Pairs) -> _Block:
        """Rank the targets (n,) of at most `block_users` states."""
        if len(states) == 1:
            twice = self.rank(states.expand(2, -1), targets.expand(2), seen)
            return _Block(twice.ranks[:1], twice.losses[:1], twice.lists[:1])
        count = len(states)
        shape = (count, self.width)
        scores = self._scores[: count * self.width].view(shape)
        scratch = self._scratch[: count * self.width].view(shape)
        own = self._own_scores(states, targets, scores)
        if not self._whole:
            seen = seen.sorted_by_item()
        ranks = torch.zeros(count, dtype=torch.int64, device=states.device)
        log_total = torch.full((count,), -torch.inf, dtype=torch.float64, device=states.device)
        best = _BestItems(self.list_length, count, states)
        for start, skip in self._tiles():
            if not self._whole:
                torch.mm(states, self._table[start : start + self.width].T, out=scores)
            tile, work = scores[:, skip:], scratch[:, skip:]
            log_total = torch.logaddexp(log_total, _log_sum_exp(tile, work))
            self._leave_out(scores, seen, start)
            here = torch.nonzero((targets >= start) & (targets < start + self.width))[:, 0]
            scores[here, targets[here] - start] = own[here, 0]
            ranks += torch.ge(tile, own, out=work).sum(1).to(torch.int64)
            best.add(tile, start + skip)
        losses = log_total - own[:, 0].double()
        if not torch.isfinite(losses).all():
            raise DataError(
                "the model gives scores that are NaN or infinite, so nothing can be ranked. "
                "Train with a smaller learning rate or evaluate an earlier checkpoint."
            )
        return _Block(ranks, losses, best.items)

    def _tiles(self) -> Iterator[tuple[int, int]]:
        """Give where each tile begins, and how many of its items the tile before had already."""
        num_items = len(self._table)
        for begin in range(0, num_items, self.width):
            start = min(begin, num_items - self.width)
            yield start, begin - start

    def _own_scores(self, states: Tensor, targets: Tensor, scores: Tensor) -> Tensor:
        """Give the targets' scores (n, 1); where one tile holds all items, leave theirs in `scores`."""
        if self._whole:
            return torch.mm(states, self._table.T, out=scores).gather(1, targets[:, None])
        gathered = self._table.new_zeros(self.width, self._table.shape[1])
        gathered[: len(targets)] = self._table[targets]
        return torch.mm(states, gathered.T, out=scores).diagonal().clone()[:, None]

    def _leave_out(self, scores: Tensor, seen: _Pairs, start: int) -> None:
        rows, items = seen.rows, seen.items
        if not self._whole:
            begin, end = np.searchsorted(items, [start, start + self.width])
            rows, items = rows[begin:end], items[begin:end]
        if len(rows):
            flat = torch.from_numpy(rows * self.width + (items - start))
            scores.view(-1).index_fill_(0, flat.to(scores.device), -torch.inf)


class _BestItems:
    """The best items of each row over the tiles seen so far."""

    def __init__(self, length: int, count: int, like: Tensor) -> None:
        self._length = length
        self._scores = like.new_full((count, length), -torch.inf)
        self.items = torch.full((count, length), -1, device=like.device)

    def add(self, tile: Tensor, start: int) -> None:
        """Take in scores (n, w) of the items from `start` on."""
        if self._length == 0:
            return
        scores, places = tile.topk(min(self._length, tile.shape[1]), dim=1)
        items = (places + start).masked_fill_(scores == -torch.inf, -1)
        self._scores, chosen = torch.cat([self._scores, scores], 1).topk(self._length, dim=1)
        self.items = torch.cat([self.items, items], 1).gather(1, chosen)


def _log_sum_exp(scores: Tensor, scratch: Tensor) -> Tensor:
    highest = scores.amax(1, keepdim=True)
    # Where all of a tile is minus infinity, minus itself would be NaN.
    highest = highest.masked_fill_(highest == -torch.inf, 0.0)
    total = torch.sub(scores, highest, out=scratch).exp_().sum(1)
    return total.double().log() + highest[:, 0].double()


def _check(dataset: Dataset, targets: Targets, *, list_length: int, block_bytes: int) -> None:
    if len(targets) == 0:
        raise DataError("there is no target to rank. Prepare the dataset with a split that holds items out.")
    if (targets.places <= targets.begins).any():
        raise DataError(
            "a target has no history before it, so nothing can predict it. Leave such targets out."
        )
    if list_length < 0:
        raise ArgumentError(f"list_length is {list_length}. Pass 0 for no lists, or more.")
    if block_bytes < _FEWEST_BYTES:
        raise ArgumentError(f"block_bytes is {block_bytes}. Pass at least {_FEWEST_BYTES}.")
