"""Score a block of users against a tile of items at a time: the ranks of their targets, their best items.

Two buffers of a bounded size serve all blocks, so users x items never stands in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.errors import ArgumentError, NotFiniteError

BLOCK_BYTES = 64 * 2**20
BLOCK_USERS = 256
_FEWEST_BYTES = 64  # two users, two items, two buffers, eight bytes a number
# Comparisons are summed as float32, which counts exactly up to here and is five times faster than booleans.
_WIDEST_TILE = 2**24
# Kernels round the edges of a product differently from its middle, on some processors by several units in the
# last place of |x| |w|. Scores this near to the target's count as equal to it.
_TIE_ULPS = 4


@dataclass(frozen=True)
class SeenPairs:
    """Rows of a block, and the items to be left out there."""

    rows: NDArray[np.int64]
    items: NDArray[np.int32]

    @classmethod
    def none(cls) -> "SeenPairs":
        """Leave nothing out."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int32))

    def sorted_by_item(self) -> "SeenPairs":
        """Order pairs so that those of a tile follow each other."""
        order = np.argsort(self.items, kind="stable")
        return SeenPairs(self.rows[order], self.items[order])


@dataclass(frozen=True)
class RankedBlock:
    """Ranks and losses (n,) of a block of targets, and the best items (n, list_length) of their users.

    A target that is itself left out is in no list and has the last rank, K.
    """

    ranks: Tensor
    losses: Tensor
    lists: Tensor


def tile_shape(num_items: int, element_size: int, block_bytes: int) -> tuple[int, int]:
    """Return the users and the items of one tile of scores."""
    pair_bytes = 2 * element_size  # the scores, and as much again to work in
    users = max(2, min(BLOCK_USERS, block_bytes // (pair_bytes * min(num_items, 1024))))
    return users, min(num_items, _WIDEST_TILE, block_bytes // (pair_bytes * users))


class Scorer:
    """Scores states (n, d) against a table (K, d), a tile of items at a time, in two buffers used again.

    All tiles of a block are products of one shape, since only those round alike: an item that equals the
    target must tie with it wherever it stands. So the last tile overlaps the one before, the target's own
    score comes from a tile of the same shape, and a block of one user is doubled (its product would be
    one of a matrix with a vector, which rounds differently at its edges). What rounding is left is allowed
    for when ties are counted.
    """

    def __init__(self, table: Tensor, *, list_length: int, block_bytes: int) -> None:
        if block_bytes < _FEWEST_BYTES:
            raise ArgumentError(f"block_bytes is {block_bytes}. Pass at least {_FEWEST_BYTES}.")
        num_items = table.shape[0]
        self.block_users, self.width = tile_shape(num_items, table.element_size(), block_bytes)
        self.list_length = list_length
        self._table = table
        self._whole = self.width == num_items
        size = self.block_users * self.width
        self._scores, self._scratch = (table.new_empty(size) for _ in range(2))

    def rank(self, states: Tensor, targets: Tensor, seen: SeenPairs) -> RankedBlock:
        """Rank the targets (n,) of at most `block_users` states."""
        if len(states) == 1:
            twice = self.rank(states.expand(2, -1), targets.expand(2), seen)
            return RankedBlock(twice.ranks[:1], twice.losses[:1], twice.lists[:1])
        count = len(states)
        scores, scratch = self._rows_of(self._scores, count), self._rows_of(self._scratch, count)
        own = self._own_scores(states, targets, scores)
        tied = own - self._rounding(states, targets)
        if not self._whole:
            seen = seen.sorted_by_item()
        ranks = torch.zeros(count, dtype=torch.int64, device=states.device)
        log_total = torch.full((count,), -torch.inf, dtype=torch.float64, device=states.device)
        left_out = torch.zeros(count, dtype=torch.bool, device=states.device)
        best = BestItems(self.list_length, count, states)
        for start, skip in self._tiles():
            if not self._whole:  # else the scores are there already
                torch.mm(states, self._table[start : start + self.width].T, out=scores)
            tile, work = scores[:, skip:], scratch[:, skip:]
            log_total = torch.logaddexp(log_total, _log_sum_exp(tile, work))
            here = torch.nonzero((targets >= start) & (targets < start + self.width))[:, 0]
            scores[here, targets[here] - start] = own[here, 0]
            self._leave_out(scores, seen, start)
            left_out[here] = scores[here, targets[here] - start] == -torch.inf
            ranks += torch.ge(tile, tied, out=work).sum(1).to(torch.int64)
            best.add(tile, start + skip)
        losses = log_total - own[:, 0].double()
        if not torch.isfinite(losses).all():
            raise _not_finite()
        return RankedBlock(ranks.masked_fill_(left_out, len(self._table)), losses, best.items)

    def top(self, states: Tensor, seen: SeenPairs) -> "BestItems":
        """Return the best items of at most `block_users` states."""
        scores = self._rows_of(self._scores, len(states))
        if not self._whole:
            seen = seen.sorted_by_item()
        best = BestItems(self.list_length, len(states), states)
        for start, skip in self._tiles():
            torch.mm(states, self._table[start : start + self.width].T, out=scores)
            if not torch.stack(torch.aminmax(scores)).isfinite().all():  # of which a NaN makes both NaN
                raise _not_finite()
            self._leave_out(scores, seen, start)
            best.add(scores[:, skip:], start + skip)
        return best

    def _rows_of(self, buffer: Tensor, count: int) -> Tensor:
        return buffer[: count * self.width].view(count, self.width)

    def _rounding(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return how far below a target's score (n, 1) another may be by rounding alone, and still tie."""
        sizes = torch.linalg.vector_norm(states, dim=1) * torch.linalg.vector_norm(
            self._table[targets], dim=1
        )
        rounding: Tensor = (_TIE_ULPS * torch.finfo(states.dtype).eps * sizes)[:, None]
        return rounding

    def _tiles(self) -> Iterator[tuple[int, int]]:
        """Return where each tile begins, and how many of its items the tile before had already."""
        num_items = len(self._table)
        for begin in range(0, num_items, self.width):
            start = min(begin, num_items - self.width)
            yield start, begin - start

    def _own_scores(self, states: Tensor, targets: Tensor, scores: Tensor) -> Tensor:
        """Return the targets' scores (n, 1); where one tile holds all items, leave theirs in `scores`."""
        if self._whole:
            return torch.mm(states, self._table.T, out=scores).gather(1, targets[:, None])
        gathered = self._table.new_zeros(self.width, self._table.shape[1])
        gathered[: len(targets)] = self._table[targets]
        return torch.mm(states, gathered.T, out=scores).diagonal().clone()[:, None]

    def _leave_out(self, scores: Tensor, seen: SeenPairs, start: int) -> None:
        rows, items = seen.rows, seen.items
        if not self._whole:
            begin, end = np.searchsorted(items, [start, start + self.width])
            rows, items = rows[begin:end], items[begin:end]
        if len(rows):
            flat = torch.from_numpy(rows * self.width + (items - start))
            scores.view(-1).index_fill_(0, flat.to(scores.device), -torch.inf)


class BestItems:
    """The best `items` (n, length) of each row over the tiles so far, -1 where none is left, and `scores`."""

    def __init__(self, length: int, count: int, like: Tensor) -> None:
        self._length = length
        self.scores = like.new_full((count, length), -torch.inf)
        self.items = torch.full((count, length), -1, device=like.device)

    def add(self, tile: Tensor, start: int) -> None:
        """Take in scores (n, w) of the items from `start` on."""
        if self._length == 0:
            return
        scores, places = tile.topk(min(self._length, tile.shape[1]), dim=1)
        items = (places + start).masked_fill_(scores == -torch.inf, -1)
        self.scores, chosen = torch.cat([self.scores, scores], 1).topk(self._length, dim=1)
        self.items = torch.cat([self.items, items], 1).gather(1, chosen)


def _log_sum_exp(scores: Tensor, scratch: Tensor) -> Tensor:
    highest = scores.amax(1, keepdim=True)
    # Where all of a tile is minus infinity, minus itself would be NaN.
    highest = highest.masked_fill_(highest == -torch.inf, 0.0)
    total = torch.sub(scores, highest, out=scratch).exp_().sum(1)
    return total.double().log() + highest[:, 0].double()


def _not_finite() -> NotFiniteError:
    return NotFiniteError(
        "the model gives scores that are NaN or infinite, so nothing can be ranked. "
        "Train with a smaller learning rate or evaluate an earlier checkpoint."
    )
