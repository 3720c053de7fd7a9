r"""Generated interactions with a known truth, to judge a trained model against the best possible one.

Items live in clusters; within a cluster popularity falls by Zipf's law. A user moves from the cluster of the
last item by a Markov chain all users share, or, with probability w, by a taste of their own:

$$P(i \mid u, c) \propto \big[(1 - w)\,A_{c, c(i)} + w\,\theta_{u, c(i)}\big]\; \pi_{c(i)}(i),$$

over the items that u has not had yet. `Truth` holds A (`transitions`), theta (`tastes`), pi (`popularity`)
and w (`taste_weight`), so the oracle's ranking, and its NDCG@10, can be computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.store import Dataset, Targets
from budgetrec.errors import ArgumentError, DataError

MARKER = "demo.json"
FILES = (MARKER, "events.parquet", "items.parquet", "truth.npz")
_FIRST_TIME = 1_700_000_000
_BLOCK = 512


@dataclass(frozen=True)
class Truth:
    """Everything that the oracle knows. Users and items are numbered as in their labels."""

    cluster_of: NDArray[np.int64]  # (K,)
    popularity: NDArray[np.float64]  # (K,), sums to 1 in each cluster
    transitions: NDArray[np.float64]  # (C, C)
    tastes: NDArray[np.float64]  # (users, C)
    taste_weight: float

    def cluster_probabilities(
        self, users: NDArray[np.int64], last_items: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (n, C): where each user goes next, given the last item."""
        moves = self.transitions[self.cluster_of[last_items]]
        return (1 - self.taste_weight) * moves + self.taste_weight * self.tastes[users]

    def item_probabilities(
        self, users: NDArray[np.int64], last_items: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (n, K): what each user takes next if nothing had been taken yet."""
        clusters = self.cluster_probabilities(users, last_items)
        return np.asarray(clusters[:, self.cluster_of] * self.popularity)

    def save(self, path: Path) -> None:
        """Write the truth as .npz."""
        np.savez(
            path,
            cluster_of=self.cluster_of,
            popularity=self.popularity,
            transitions=self.transitions,
            tastes=self.tastes,
            taste_weight=np.float64(self.taste_weight),
        )

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(
                    cluster_of=arrays["cluster_of"],
                    popularity=arrays["popularity"],
                    transitions=arrays["transitions"],
                    tastes=arrays["tastes"],
                    taste_weight=float(arrays["taste_weight"]),
                )
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path} holds no truth of demo data ({error}). Make it again.") from error


def label_users(numbers: NDArray[np.int64]) -> pl.Series:
    """Name users by their numbers, as in `user-17`."""
    return pl.select("user-" + pl.lit(pl.Series(numbers)).cast(pl.String)).to_series().alias("user")


def label_items(numbers: NDArray[np.int64]) -> pl.Series:
    """Name items by their numbers, as in `item-3`."""
    return pl.select("item-" + pl.lit(pl.Series(numbers)).cast(pl.String)).to_series().alias("item")


def numbers_of(labels: pl.Series) -> NDArray[np.int64]:
    """Read the numbers back out of labels."""
    return labels.str.extract(r"-(\d+)$").cast(pl.Int64).to_numpy()


def make_truth(*, num_users: int, num_items: int, seed: int) -> Truth:
    """Draw clusters, popularity, moves and tastes."""
    if num_users < 1 or num_items < 20:
        raise ArgumentError(
            f"demo data of {num_users} users and {num_items} items cannot be made. "
            "Pass at least 1 user and 20 items."
        )
    if seed < 0:
        raise ArgumentError(f"seed is {seed}. Pass 0 or more.")
    random = np.random.default_rng([seed, 0])
    num_clusters = max(2, num_items // 20)
    # Every cluster gets its share; which items are in it is left to chance.
    cluster_of = random.permutation(np.arange(num_items) % num_clusters)
    rank_in_cluster = np.empty(num_items, np.int64)
    by_cluster = np.argsort(cluster_of, kind="stable")
    sizes = np.bincount(cluster_of, minlength=num_clusters)
    rank_in_cluster[by_cluster] = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    popularity = np.asarray(1.0 / (rank_in_cluster + 1.0), np.float64)
    popularity /= np.bincount(cluster_of, popularity)[cluster_of]

    # Each cluster has a few likely next ones; a little goes everywhere.
    transitions = np.full((num_clusters, num_clusters), 0.05 / num_clusters)
    for share in (0.6, 0.25, 0.1):
        transitions[np.arange(num_clusters), random.permutation(num_clusters)] += share
    tastes = random.dirichlet(np.full(num_clusters, 3.0 / num_clusters), num_users)
    return Truth(cluster_of, popularity, transitions, tastes, taste_weight=0.2)


def generate_events(truth: Truth, *, num_rows: int, seed: int) -> pl.DataFrame:
    """Draw about `num_rows` / users interactions for each user, `num_rows` in all, ordered by time."""
    random = np.random.default_rng([seed, 1])
    num_users, num_items = len(truth.tastes), len(truth.cluster_of)
    lengths = _draw_lengths(random, num_users, num_rows, longest=num_items // 2)
    # Longest first, so that the users still going on are always the first rows.
    by_length = np.argsort(-lengths, kind="stable")
    sequences = _draw_sequences(random, truth, by_length, lengths[by_length])
    gaps = random.exponential(6 * 3600.0, sequences.shape)
    begins = random.integers(0, 90 * 86_400, num_users)
    times = _FIRST_TIME + begins[:, None] + np.cumsum(gaps, axis=1).astype(np.int64)
    real = np.arange(sequences.shape[1]) < lengths[by_length][:, None]
    users = np.broadcast_to(by_length[:, None], sequences.shape)
    return pl.DataFrame(
        {
            "user": label_users(users[real]),
            "item": label_items(sequences[real]),
            "timestamp": times[real],
        }
    ).sort("timestamp", maintain_order=True)


def item_features(truth: Truth, *, seed: int, width: int = 16) -> pl.DataFrame:
    """Return a vector for each item: a noisy image of its cluster, and its popularity in the last place."""
    random = np.random.default_rng([seed, 2])
    centres = random.normal(size=(len(truth.transitions), width - 1))
    vectors = centres[truth.cluster_of] + 0.1 * random.normal(size=(len(truth.cluster_of), width - 1))
    vectors = np.column_stack([vectors, np.log(truth.popularity)]).astype(np.float32)
    return pl.DataFrame(
        {
            "item": label_items(np.arange(len(vectors))),
            "vector": pl.Series(vectors, dtype=pl.Array(pl.Float32, width)),
        }
    )


@dataclass(frozen=True)
class OracleResult:
    """NDCG of the oracle: on the targets that came (`ndcg`), and on average over those that could have."""

    ndcg: float
    expected_ndcg: float
    cutoff: int
    num_users: int


def oracle(truth: Truth, dataset: Dataset, targets: Targets, *, cutoff: int = 10) -> OracleResult:
    """Rank the items that a user has not had by their true probability, and measure NDCG."""
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
        probabilities = truth.item_probabilities(users, item_numbers[dataset.items[places - 1]])
        lengths = places - begins
        rows = np.repeat(np.arange(len(places)), lengths)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        probabilities[rows, item_numbers[dataset.items[begins[rows] + within]]] = 0.0
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        yield probabilities, item_numbers[dataset.items[places]]


def _draw_lengths(
    random: np.random.Generator, num_users: int, num_rows: int, *, longest: int
) -> NDArray[np.int64]:
    shortest = 5
    if not shortest * num_users <= num_rows <= longest * num_users:
        raise ArgumentError(
            f"{num_rows:,} rows do not fit {num_users:,} users: each has {shortest} to {longest} "
            f"(half of the items). Pass {shortest * num_users:,} to {longest * num_users:,} rows."
        )
    weights = random.lognormal(0.0, 0.5, num_users)
    lengths = shortest + weights * (num_rows - shortest * num_users) / weights.sum()
    whole: NDArray[np.int64] = np.minimum(lengths.astype(np.int64), longest)
    # What rounding and the cap took is handed out one by one to whoever has room.
    while (missing := num_rows - int(whole.sum())) > 0:
        room = np.flatnonzero(whole < longest)
        whole[random.permutation(room)[:missing]] += 1
    return whole


def _draw_sequences(
    random: np.random.Generator, truth: Truth, users: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw all users' sequences side by side, one step at a time; `lengths` fall from row to row."""
    sequences = np.full((len(users), int(lengths[0])), -1, np.int64)
    by_cluster = np.argsort(truth.cluster_of, kind="stable")
    ends = np.cumsum(truth.popularity[by_cluster])  # cluster c lies between c and c + 1
    for step in range(sequences.shape[1]):
        active = int(np.searchsorted(-lengths, -step, side="left"))
        undecided = np.arange(active)
        while len(undecided):
            if step == 0:
                clusters = truth.tastes[users[undecided]]
            else:
                clusters = truth.cluster_probabilities(users[undecided], sequences[undecided, step - 1])
            cumulative = np.cumsum(clusters, axis=1)
            points = random.random(len(undecided)) * cumulative[:, -1]
            cluster = (cumulative < points[:, None]).sum(axis=1).clip(max=clusters.shape[1] - 1)
            places = np.searchsorted(ends, cluster + random.random(len(undecided)))
            drawn = by_cluster[places.clip(max=len(ends) - 1)]
            # Drawing again until an item is new is drawing from the new ones alone.
            seen = (sequences[undecided, :step] == drawn[:, None]).any(axis=1)
            sequences[undecided[~seen], step] = drawn[~seen]
            undecided = undecided[seen]
    return sequences
