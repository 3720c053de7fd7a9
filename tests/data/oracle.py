"""The best possible model of the demo data, which knows the truth."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.demo import Truth
from budgetrec.data.store import Dataset, Targets

_BLOCK = 512


def item_probabilities(
    truth: Truth, users: NDArray[np.int64], last_items: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return (n, K): the probability of each next item, if the user had none yet."""
    clusters = truth.cluster_probabilities(users, last_items)
    return np.asarray(clusters[:, truth.cluster_of] * truth.popularity)


def numbers_of(labels: pl.Series) -> NDArray[np.int64]:
    """Return the numbers in labels such as `user-17`."""
    return labels.str.extract(r"-(\d+)$").cast(pl.Int64).to_numpy()


@dataclass(frozen=True)
class OracleResult:
    """NDCG of the oracle: on the actual targets (`ndcg`), and its expectation over possible ones."""

    ndcg: float
    expected_ndcg: float
    cutoff: int
    num_users: int


def oracle(truth: Truth, dataset: Dataset, targets: Targets, *, cutoff: int = 10) -> OracleResult:
    """Rank each user's unseen items by their true probability, and measure NDCG."""
    discounts = 1 / np.log2(np.arange(2, cutoff + 2))
    realised, expected = 0.0, 0.0
    for probabilities, target in _oracle_blocks(truth, dataset, targets):
        best = -np.sort(-np.partition(probabilities, -cutoff, axis=1)[:, -cutoff:], axis=1)
        expected += float((best @ discounts).sum())
        own = np.take_along_axis(probabilities, target[:, None], axis=1)
        # Ties count against the oracle, as they do against every model; the target ties with itself.
        ranks = (probabilities >= own).sum(axis=1) - 1
        realised += float((1 / np.log2(ranks[ranks < cutoff] + 2)).sum())
    count = max(len(targets), 1)
    return OracleResult(realised / count, expected / count, cutoff, len(targets))


def _oracle_blocks(
    truth: Truth, dataset: Dataset, targets: Targets
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    user_numbers = numbers_of(dataset.user_labels)
    item_numbers = numbers_of(dataset.item_labels)
    for start in range(0, len(targets), _BLOCK):
        block = slice(start, start + _BLOCK)
        places, begins = targets.places[block], targets.begins[block]
        users = user_numbers[targets.users[block]]
        probabilities = item_probabilities(truth, users, item_numbers[dataset.items[places - 1]])
        lengths = places - begins
        rows = np.repeat(np.arange(len(places)), lengths)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        probabilities[rows, item_numbers[dataset.items[begins[rows] + within]]] = 0.0
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        yield probabilities, item_numbers[dataset.items[places]]
