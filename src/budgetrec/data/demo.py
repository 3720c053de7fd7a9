r"""Generated interactions with a known truth, to compare a trained model with the best possible one.

Items form clusters, and popularity within a cluster follows Zipf's law. A user moves on from the cluster of
the last item by a Markov chain shared by all users or, with probability w, by a personal taste:

$$P(i \mid u, c) \propto \big[(1 - w)\,A_{c, c(i)} + w\,\theta_{u, c(i)}\big]\; \pi_{c(i)}(i),$$

over the items that u has not had yet. `Truth` has A (`transitions`), theta (`tastes`), pi (`popularity`) and
w (`taste_weight`), which determine the best possible ranking.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.errors import ArgumentError, DataError
from budgetrec.options import check_not_negative
from budgetrec.units import format_bytes

MARKER = "demo.json"
FILES = (MARKER, "events.parquet", "items.parquet", "truth.npz")
_MOST_BYTES = 4 * 2**30  # of probabilities: clusters x clusters, and users x clusters
_MOST_ROWS = 20_000_000
_SHORTEST = 5  # rows of a user
_FIRST_TIME = 1_700_000_000


@dataclass(frozen=True)
class Truth:
    """The parameters of the generator. Users and items are numbered as in their labels."""

    cluster_of: NDArray[np.int64]  # (K,)
    popularity: NDArray[np.float64]  # (K,), sums to 1 in each cluster
    transitions: NDArray[np.float64]  # (C, C)
    tastes: NDArray[np.float64]  # (users, C)
    taste_weight: float

    def cluster_probabilities(
        self, users: NDArray[np.int64], last_items: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (n, C): the probability of each next cluster, given the last item."""
        moves = self.transitions[self.cluster_of[last_items]]
        return (1 - self.taste_weight) * moves + self.taste_weight * self.tastes[users]

    def save(self, path: Path) -> None:
        """Write the truth as .npz."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file written by `save`."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{**arrays, "taste_weight": float(arrays["taste_weight"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not a truth file of demo data ({error}). Generate the data again."
            ) from error


def labels(kind: str, numbers: NDArray[np.int64]) -> pl.Series:
    """Return labels such as `user-17` for numbers."""
    return pl.select(f"{kind}-" + pl.lit(pl.Series(numbers)).cast(pl.String)).to_series().alias(kind)


def check_size(*, num_users: int, num_items: int, num_rows: int) -> None:
    """Refuse, before anything is drawn, what cannot be or would fill the memory of most machines."""
    _check_table(num_users, num_items)
    longest = num_items // 2
    if not _SHORTEST * num_users <= num_rows <= longest * num_users:
        raise ArgumentError(
            f"{num_rows:,} rows do not fit {num_users:,} users: each has {_SHORTEST} to {longest} "
            f"(half of the items). Pass {_SHORTEST * num_users:,} to {longest * num_users:,} rows."
        )
    if num_rows > _MOST_ROWS:
        raise ArgumentError(f"{num_rows:,} rows are too many to generate. Pass at most {_MOST_ROWS:,}.")


def _check_table(num_users: int, num_items: int) -> None:
    if num_users < 1 or num_items < 20:
        raise ArgumentError(
            f"{num_users} users and {num_items} items are too few for demo data. "
            "Pass at least 1 user and 20 items."
        )
    num_clusters = max(2, num_items // 20)
    table_bytes = 8 * num_clusters * (num_clusters + num_users)
    if table_bytes > _MOST_BYTES:
        raise ArgumentError(
            f"{num_users:,} users and {num_items:,} items take {format_bytes(table_bytes)} of probabilities, "
            f"more than {format_bytes(_MOST_BYTES)}. Pass fewer users or items."
        )


def make_truth(*, num_users: int, num_items: int, seed: int) -> Truth:
    """Draw clusters, popularity, transitions and tastes."""
    _check_table(num_users, num_items)
    check_not_negative(seed=seed)
    num_clusters = max(2, num_items // 20)
    random = np.random.default_rng([seed, 0])
    # Clusters are equally large; their items are random.
    cluster_of = random.permutation(np.arange(num_items) % num_clusters)
    rank_in_cluster = np.empty(num_items, np.int64)
    by_cluster = np.argsort(cluster_of, kind="stable")
    sizes = np.bincount(cluster_of, minlength=num_clusters)
    rank_in_cluster[by_cluster] = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    popularity = np.asarray(1.0 / (rank_in_cluster + 1.0), np.float64)
    popularity /= np.bincount(cluster_of, popularity)[cluster_of]

    # Each cluster has a few likely successors; every other one is possible.
    transitions = np.full((num_clusters, num_clusters), 0.05 / num_clusters)
    for share in (0.6, 0.25, 0.1):
        transitions[np.arange(num_clusters), random.permutation(num_clusters)] += share
    tastes = random.dirichlet(np.full(num_clusters, 3.0 / num_clusters), num_users)
    return Truth(cluster_of, popularity, transitions, tastes, taste_weight=0.2)


def generate_events(truth: Truth, *, num_rows: int, seed: int) -> pl.DataFrame:
    """Draw `num_rows` interactions, about equally many for each user, ordered by time."""
    random = np.random.default_rng([seed, 1])
    num_users, num_items = len(truth.tastes), len(truth.cluster_of)
    check_size(num_users=num_users, num_items=num_items, num_rows=num_rows)
    lengths = _draw_lengths(random, num_users, num_rows, longest=num_items // 2)
    # Longest first, so the users who are still active are always the first rows.
    by_length = np.argsort(-lengths, kind="stable")
    sequences = _draw_sequences(random, truth, by_length, lengths[by_length])
    gaps = random.exponential(6 * 3600.0, sequences.shape)
    begins = random.integers(0, 90 * 86_400, num_users)
    times = _FIRST_TIME + begins[:, None] + np.cumsum(gaps, axis=1).astype(np.int64)
    real = np.arange(sequences.shape[1]) < lengths[by_length][:, None]
    users = np.broadcast_to(by_length[:, None], sequences.shape)
    columns = [labels("user", users[real]), labels("item", sequences[real])]
    return pl.DataFrame([*columns, pl.Series("timestamp", times[real])]).sort(
        "timestamp", maintain_order=True
    )


def item_features(truth: Truth, *, seed: int, width: int = 16) -> pl.DataFrame:
    """Return a vector for each item: its cluster's centre with noise, and its log popularity last."""
    random = np.random.default_rng([seed, 2])
    centres = random.normal(size=(len(truth.transitions), width - 1))
    vectors = centres[truth.cluster_of] + 0.1 * random.normal(size=(len(truth.cluster_of), width - 1))
    vectors = np.column_stack([vectors, np.log(truth.popularity)]).astype(np.float32)
    column = pl.Series("vector", vectors, dtype=pl.Array(pl.Float32, width))
    return pl.DataFrame([labels("item", np.arange(len(vectors))), column])


def _draw_lengths(
    random: np.random.Generator, num_users: int, num_rows: int, *, longest: int
) -> NDArray[np.int64]:
    shortest = _SHORTEST
    weights = random.lognormal(0.0, 0.5, num_users)
    lengths = shortest + weights * (num_rows - shortest * num_users) / weights.sum()
    whole: NDArray[np.int64] = np.minimum(lengths.astype(np.int64), longest)
    # Rows lost to rounding and to the cap go one by one to users below the cap.
    while (missing := num_rows - int(whole.sum())) > 0:
        room = np.flatnonzero(whole < longest)
        whole[random.permutation(room)[:missing]] += 1
    return whole


def _draw_sequences(
    random: np.random.Generator, truth: Truth, users: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw all users' sequences in parallel, one step at a time; `lengths` must be descending."""
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
            # Redrawing until an item is new is the same as drawing only from the new ones.
            seen = (sequences[undecided, :step] == drawn[:, None]).any(axis=1)
            sequences[undecided[~seen], step] = drawn[~seen]
            undecided = undecided[seen]
    return sequences
