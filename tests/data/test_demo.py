"""The demo data follow their truth, and nobody beats the oracle."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

from budgetrec import Dataset, prepare
from budgetrec.data.demo import Truth, generate_events, item_features, make_truth
from budgetrec.errors import ArgumentError
from tests.data.oracle import item_probabilities, numbers_of, oracle


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Generate and prepare 2,000 users."""
    folder = tmp_path_factory.mktemp("demo")
    truth = make_truth(num_users=2000, num_items=1000, seed=0)
    events = generate_events(truth, num_rows=80_000, seed=0)
    events.write_parquet(folder / "events.parquet")
    return truth, events, prepare(folder / "events.parquet", folder / "dataset")


def test_rows_users_and_items_are_as_many_as_asked(demo):
    """Exactly the rows asked for, each user with 5 or more, nobody has an item twice."""
    _, events, _ = demo
    assert events.height == 80_000
    assert events["user"].n_unique() == 2000
    assert events["item"].n_unique() <= 1000
    assert events.group_by("user").len()["len"].min() >= 5
    assert not events.select("user", "item").is_duplicated().any()
    assert events["timestamp"].is_sorted()


def test_second_items_follow_the_truth(demo):
    """Chi-square: clusters of second items against their true probabilities.

    The second item is drawn from all but the first; over 2,000 users the expected counts are the sums of the
    users' own probabilities. The statistic must lie below the 99.9% quantile.
    """
    truth, events, _ = demo
    ordered = events.with_columns(place=pl.int_range(pl.len()).over("user")).filter(pl.col("place") < 2)
    first = ordered.filter(pl.col("place") == 0).sort("user")
    second = ordered.filter(pl.col("place") == 1).sort("user")
    users, before, after = numbers_of(first["user"]), numbers_of(first["item"]), numbers_of(second["item"])
    probabilities = item_probabilities(truth, users, before)
    probabilities[np.arange(len(users)), before] = 0
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    num_clusters = len(truth.transitions)
    expected = np.bincount(truth.cluster_of, probabilities.sum(axis=0), num_clusters)
    observed = np.bincount(truth.cluster_of[after], minlength=num_clusters)
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(0.999, num_clusters - 1)


def test_popularity_within_a_cluster_falls_by_zipf(demo):
    """Second in its cluster is half as likely as the first, third a third, and shares sum to 1."""
    truth, _, _ = demo
    for cluster in (0, 7):
        own = np.sort(truth.popularity[truth.cluster_of == cluster])[::-1]
        assert own.sum() == pytest.approx(1)
        assert own[:3] / own[0] == pytest.approx([1, 1 / 2, 1 / 3])


def test_the_oracle_gets_what_it_expects(demo):
    """NDCG@10 on the targets that came is within 3 standard errors (0.02) of its expectation."""
    truth, _, dataset = demo
    result = oracle(truth, dataset, dataset.test())
    assert result.num_users == 2000
    assert result.ndcg == pytest.approx(result.expected_ndcg, abs=0.02)
    assert result.expected_ndcg > 0.2


def test_the_oracle_beats_popularity_and_chance(demo):
    """Ranking by training counts scores well below the oracle on the same targets."""
    truth, _, dataset = demo
    targets = dataset.test()
    score = 0.0
    for begin, place in zip(targets.begins, targets.places, strict=True):
        seen = np.unique(dataset.items[begin:place])
        item = dataset.items[place]  # items are numbered by popularity, so the number is the rank
        rank = item - np.searchsorted(seen, item)
        score += 1 / np.log2(rank + 2) if rank < 10 else 0
    assert score / len(targets) < oracle(truth, dataset, targets).ndcg / 4


def test_oracle_ndcg_by_hand(tmp_path):
    """Two clusters of one move each: from a, b is certain, so the oracle is always right."""
    truth = Truth(
        cluster_of=np.array([0, 1, 2]),
        popularity=np.ones(3),
        transitions=np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
        tastes=np.full((1, 3), 1 / 3),
        taste_weight=0.0,
    )
    rows = {"user": ["user-0"] * 3, "item": ["item-0", "item-1", "item-2"], "timestamp": [1, 2, 3]}
    pl.DataFrame(rows).write_parquet(tmp_path / "e.parquet")
    dataset = prepare(tmp_path / "e.parquet", tmp_path / "d")
    result = oracle(truth, dataset, dataset.test(), cutoff=2)
    assert (result.ndcg, result.expected_ndcg) == (1.0, 1.0)


def test_seeds_repeat_and_differ():
    """A seed always generates the same rows, another seed others."""
    first, again, other = (
        generate_events(make_truth(num_users=30, num_items=40, seed=s), num_rows=300, seed=s)
        for s in (1, 1, 2)
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_features_tell_the_cluster():
    """Items of one cluster have closer vectors than items of two."""
    truth = make_truth(num_users=1, num_items=100, seed=0)
    vectors = np.stack(item_features(truth, seed=0)["vector"].to_list())[:, :-1]
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    same = truth.cluster_of[:, None] == truth.cluster_of[None]
    assert distances[same].max() < distances[~same].min()


@pytest.mark.parametrize("rows", [10, 10**6])
def test_rows_that_do_not_fit_are_refused(rows):
    """Too few or too many rows for the users and items."""
    with pytest.raises(ArgumentError, match="do not fit"):
        generate_events(make_truth(num_users=10, num_items=40, seed=0), num_rows=rows, seed=0)


def test_the_command_writes_events_features_and_truth(budgetrec, refused, tmp_path):
    """`data demo` and `prepare` work hand in hand; the truth can be loaded back."""
    arguments = (
        "data",
        "demo",
        "-o",
        tmp_path / "demo",
        "--users",
        50,
        "--items",
        60,
        "--rows",
        1500,
        "--seed",
        3,
    )
    answer = budgetrec(*arguments, "--json")
    assert json.loads(answer.out)["interactions"] == 1500
    assert Truth.load(tmp_path / "demo" / "truth.npz").tastes.shape == (50, 3)
    assert "exists already" in refused(*arguments)
    assert budgetrec(*arguments, "--overwrite").code == 0
    assert "at least" in refused("data", "demo", "-o", tmp_path / "x", "--users", 0)
    assert budgetrec("prepare", tmp_path / "demo" / "events.parquet", "-o", tmp_path / "d").code == 0
    assert Dataset.open(tmp_path / "d").num_users == 50
