"""Generate interactions of MovieLens-1M's size, so that a benchmark runs anywhere.

What decides the time of an epoch is how long the sequences are and how many items there are. Lengths follow a
log-normal law whose least, median, mean and largest values are close to those of MovieLens-1M (20, 96, 165
and 2,314); no user meets an item twice; popularity falls off as one over the rank. The order within a user
carries no meaning, so nothing can be learned from this data beyond popularity.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl

USERS, ITEMS, SHORTEST, LONGEST = 6_040, 3_416, 20, 2_314


def generate(seed: int = 0) -> pl.DataFrame:
    """Return user, item and timestamp, ordered by user and time."""
    random = np.random.default_rng(seed)
    lengths = _draw_lengths(random, USERS)
    log_popularity = -np.log(np.arange(1, ITEMS + 1) + 100)
    items = []
    for length in lengths:
        # The items with the largest keys: a draw without replacement in proportion to popularity.
        keys = log_popularity + random.gumbel(size=ITEMS)
        items.append(random.permutation(np.argpartition(keys, -length)[-length:]))
    return _interactions(lengths, np.concatenate(items))


def deal(num_items: int, seed: int = 0, num_users: int = 6_400) -> pl.DataFrame:
    """Return sequences of the same lengths whatever the number of items, each item about equally often.

    Every item is there when `num_items` is at most the number of rows, a little over a million.
    """
    random = np.random.default_rng(seed)
    lengths = _draw_lengths(random, num_users)
    return _interactions(lengths, random.permutation(np.arange(lengths.sum()) % num_items))


def _draw_lengths(random: np.random.Generator, num_users: int) -> np.ndarray:
    beyond = random.lognormal(np.log(77.5), 1.13, num_users).astype(np.int64)
    return np.minimum(SHORTEST + beyond, LONGEST)


def _interactions(lengths: np.ndarray, items: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(1, len(lengths) + 1), lengths),
            "item": items + 1,
            "timestamp": 956_703_932 + np.concatenate([np.arange(length) for length in lengths]),
        }
    )


def main() -> None:
    """Write the file and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    interactions = generate(asked.seed)
    interactions.write_parquet(asked.output)
    lengths = interactions.group_by("user").len()["len"]
    counts = interactions.group_by("item").len()["len"]
    print(
        f"{len(interactions):,} rows, {len(lengths):,} users, {len(counts):,} items; rows a user: "
        f"{lengths.min()} to {lengths.max():,}, median {lengths.median():.0f}, mean {lengths.mean():.1f}; "
        f"rows an item: {counts.min()} to {counts.max():,}"
    )


if __name__ == "__main__":
    main()
