r"""Metrics of a ranking, user by user.

Each user here has **one** held-out item, of rank $r$ (1 is the best). So at cut-off $k$

========= ============================== =============================================
ndcg      $[r \le k] / \log_2(r + 1)$    the ideal list has the item first, worth 1
hit_rate  $[r \le k]$
recall    $[r \le k]$                    equals hit_rate: one item is all there is
precision $[r \le k] / k$
mrr       $[r \le k] / r$                without a cut-off $1 / r$ over the whole list
map       $[r \le k] / r$                equals mrr at the same cut-off, for the same reason
========= ============================== =============================================

Averages over users are the published figures.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from budgetrec.data.ragged import lay_out_in_blocks
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.ranking.ranks import Ranking

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Lists = NDArray[np.int32] | NDArray[np.int64]  # of items, a row for each user

_BLOCK_ENTRIES = 2**20


def ndcg(ranks: Ints, cutoff: int) -> Floats:
    """Discount a hit by its place.

    >>> ndcg(np.array([1, 3, 11]), cutoff=10).tolist()  # 1, 1 / log2 4, too late
    [1.0, 0.5, 0.0]
    """
    return np.where(ranks <= cutoff, 1 / np.log2(ranks + 1.0), 0.0)


def hit_rate(ranks: Ints, cutoff: int) -> Floats:
    """Say 1 where the item is among the first `cutoff`; recall says the same with one held-out item."""
    return (ranks <= cutoff).astype(np.float64)


def precision(ranks: Ints, cutoff: int) -> Floats:
    """Return the share of the list that is right: 1 / cutoff or nothing."""
    return hit_rate(ranks, cutoff) / cutoff


def mrr(ranks: Ints, cutoff: int | None = None) -> Floats:
    """Return the reciprocal rank, over the whole list or 0 beyond `cutoff`; map says the same.

    >>> mrr(np.array([1, 4, 20])).tolist(), mrr(np.array([1, 4, 20]), cutoff=10).tolist()
    ([1.0, 0.25, 0.05], [1.0, 0.25, 0.0])
    """
    reciprocal = 1.0 / ranks
    return reciprocal if cutoff is None else np.where(ranks <= cutoff, reciprocal, 0.0)


def per_user(ranks: Ints, cutoffs: Sequence[int]) -> dict[str, Floats]:
    """Return the metrics that a rank decides: `ndcg@k`, ... for each cut-off, and `mrr` over all."""
    values: dict[str, Floats] = {}
    for cutoff in check_cutoffs(cutoffs):
        hits, reciprocal = hit_rate(ranks, cutoff), mrr(ranks, cutoff)
        values |= {
            f"ndcg@{cutoff}": ndcg(ranks, cutoff),
            f"hit_rate@{cutoff}": hits,
            f"recall@{cutoff}": hits,
            f"mrr@{cutoff}": reciprocal,
            f"map@{cutoff}": reciprocal,
            f"precision@{cutoff}": precision(ranks, cutoff),
        }
    return values | {"mrr": mrr(ranks)}


def coverage(lists: Lists, num_items: int) -> float:
    """Return the share of the catalogue that is in any list; places of -1 are empty.

    >>> coverage(np.array([[0, 1], [1, -1]]), num_items=4)
    0.5
    """
    shown = np.zeros(num_items, bool)
    for block in _blocks_of_rows(lists):
        shown[block[block >= 0]] = True
    return float(np.count_nonzero(shown) / num_items)


def surprisal(lists: Lists, item_surprisals: Floats) -> Floats:
    """Average the surprisal of the items of each list; places of -1 are empty."""
    padded = np.append(item_surprisals, 0.0)  # which -1 finds
    parts = [
        padded[block].sum(1) / np.maximum(np.count_nonzero(block >= 0, axis=1), 1)
        for block in _blocks_of_rows(lists)
    ]
    return np.concatenate(parts)


def item_surprisals(dataset: Dataset) -> Floats:
    r"""Return how unexpected each item is, from 0 (all users trained on have it) to 1 (one of them, or none).

    $-\log_2(u_j / N) / \log_2 N$, where $u_j$ of the $N$ users in the training part had item $j$: the
    definition of RePlay's `Surprisal`, where too an item that nobody had counts as if one user had it.
    """
    begins, stops = dataset.train_ranges()
    lengths = np.maximum(stops - begins, 0)
    num_users = int(np.count_nonzero(lengths))
    if num_users < 2:
        return np.ones(dataset.num_items)
    items, counts = np.asarray(dataset.items), np.zeros(dataset.num_items, np.int64)
    for _, users, places in lay_out_in_blocks(begins, lengths):
        pairs = np.sort(users * dataset.num_items + items[places])
        once = pairs[np.diff(pairs, prepend=-1) > 0]  # who had an item twice counts once
        counts += np.bincount(once % dataset.num_items, minlength=dataset.num_items)
    surprisals: Floats = np.log2(num_users / np.maximum(counts, 1)) / np.log2(num_users)
    return surprisals


def list_metrics(ranking: Ranking, dataset: Dataset, cutoffs: Sequence[int]) -> Mapping[str, Floats | float]:
    """Return `coverage@k` (one number) and `surprisal@k` (user by user) of the lists of a ranking."""
    lists = ranking.lists
    if lists is None or lists.shape[1] < min(max(cutoffs), ranking.num_items):
        raise ArgumentError(f"the ranking has no lists of {max(cutoffs)} items. Rank with list_length.")
    rare = item_surprisals(dataset)
    values: dict[str, Floats | float] = {}
    for cutoff in check_cutoffs(cutoffs):
        values[f"coverage@{cutoff}"] = coverage(lists[:, :cutoff], ranking.num_items)
        values[f"surprisal@{cutoff}"] = surprisal(lists[:, :cutoff], rare)
    return values


def _blocks_of_rows(lists: Lists) -> list[Lists]:
    size = max(1, _BLOCK_ENTRIES // max(lists.shape[1], 1))
    return [lists[start : start + size] for start in range(0, max(len(lists), 1), size)]


def check_cutoffs(cutoffs: Sequence[int]) -> list[int]:
    """Return the cut-offs in order, each once."""
    if not cutoffs or min(cutoffs) < 1:
        raise ArgumentError(f"cutoffs are {list(cutoffs)}. Pass whole numbers of at least 1.")
    return sorted(set(cutoffs))
