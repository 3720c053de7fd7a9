"""Metrics against hand values and against torchmetrics."""

import numpy as np
import pytest
import torch
from torchmetrics.functional import retrieval

from budgetrec.data import ragged
from budgetrec.errors import ArgumentError
from budgetrec.ranking import metrics
from budgetrec.ranking.ranks import Ranking, rank_targets
from tests.evaluation.fakes import constant_model, dataset_of, random_dataset, random_model


def test_hand_values():
    """Ranks 1, 2, 10 and 11 at cut-off 10."""
    values = metrics.per_user(np.array([1, 2, 10, 11]), [10])
    assert values["ndcg@10"].tolist() == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0])
    assert values["hit_rate@10"].tolist() == [1, 1, 1, 0]
    assert values["recall@10"].tolist() == [1, 1, 1, 0]
    assert values["precision@10"].tolist() == [0.1, 0.1, 0.1, 0]
    assert values["mrr@10"].tolist() == [1, 0.5, 0.1, 0]
    assert values["map@10"].tolist() == [1, 0.5, 0.1, 0]
    assert values["mrr"].tolist() == pytest.approx([1, 0.5, 0.1, 1 / 11])


@pytest.mark.parametrize("cutoff", [1, 5, 10, 60])
def test_torchmetrics_agrees(cutoff):
    """On random scores without ties, user by user, for every metric; it takes scores above 0 only."""
    random = np.random.default_rng(cutoff)
    scores = torch.from_numpy(random.permuted(np.tile(np.arange(1.0, 61.0), (50, 1)), axis=1))
    targets = torch.from_numpy(random.integers(0, 60, 50))
    ranks = (scores >= scores.gather(1, targets[:, None])).sum(1).numpy()
    ours = metrics.per_user(ranks, [cutoff])
    theirs = {
        f"ndcg@{cutoff}": retrieval.retrieval_normalized_dcg,
        f"hit_rate@{cutoff}": retrieval.retrieval_hit_rate,
        f"recall@{cutoff}": retrieval.retrieval_recall,
        f"precision@{cutoff}": retrieval.retrieval_precision,
        f"mrr@{cutoff}": retrieval.retrieval_reciprocal_rank,
        f"map@{cutoff}": retrieval.retrieval_average_precision,
    }
    assert theirs.keys() | {"mrr"} == ours.keys()
    for name, function in theirs.items():
        expected = [
            float(function(row, torch.arange(60) == target, top_k=cutoff))
            for row, target in zip(scores, targets, strict=True)
        ]
        # It discounts in float32, from differences of running sums.
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-7, err_msg=name)
    whole = [
        float(retrieval.retrieval_reciprocal_rank(row, torch.arange(60) == target))
        for row, target in zip(scores, targets, strict=True)
    ]
    np.testing.assert_allclose(ours["mrr"], whole, rtol=1e-6)


def test_surprisal_by_hand():
    """4 users: item 0 is had by all (0 bits), item 1 by two (1 of 2 bits), items 2 and 3 by one or none."""
    dataset = dataset_of(
        [[0, 1, 2, 3, 3], [0, 0, 1, 3, 3], [0, 0, 3, 3], [0, 3, 3]],
        num_items=4,
    )
    surprisals = metrics.item_surprisals(dataset)
    assert surprisals.tolist() == [0.0, 0.5, 1.0, 1.0]
    lists = np.array([[0, 1], [2, 3], [1, -1]])
    assert metrics.surprisal(lists, surprisals).tolist() == [0.25, 1.0, 0.5]


def test_surprisal_does_not_hang_on_the_blocks(monkeypatch):
    """Users are counted in blocks; blocks of 5 interactions give what one block gives."""
    random = np.random.default_rng(0)
    dataset = random_dataset(random, num_users=30, num_items=12)
    whole = metrics.item_surprisals(dataset)
    monkeypatch.setattr(ragged, "_AT_ONCE", 5)
    assert metrics.item_surprisals(dataset).tolist() == whole.tolist()


def test_lists_give_coverage_and_surprisal_at_each_cutoff():
    """Everyone is shown items 4 and 3 of 8, both trained on by nobody: coverage 1/8 and 2/8, surprisal 1."""
    dataset = dataset_of([[0, 1, 2, 5], [0, 2, 1, 6]], num_items=8)
    model = constant_model([0, 0, 0, 3, 4, 0, 0, 0])
    ranking = rank_targets(model, dataset, dataset.test(), list_length=2)
    values = metrics.list_metrics(ranking, dataset, [1, 2])
    assert values["coverage@1"] == 1 / 8
    assert values["coverage@2"] == 2 / 8
    assert values["surprisal@1"].tolist() == [1.0, 1.0]
    assert values["surprisal@2"].tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentError, match="no lists of 5 items"):
        metrics.list_metrics(ranking, dataset, [1, 5])


def test_ndcg_of_ranks_equals_ndcg_of_lists():
    """What the lists show is what the ranks say, when nothing ties."""
    random = np.random.default_rng(6)
    dataset = random_dataset(random, num_users=60, num_items=50)
    ranking = rank_targets(random_model(random, num_items=50), dataset, dataset.test(), list_length=10)
    places = (ranking.lists == ranking.targets[:, None]) @ (1 / np.log2(np.arange(2, 12)))
    np.testing.assert_allclose(metrics.ndcg(ranking.ranks, 10), places)
    assert places.sum() > 0


def test_cutoffs_below_one_are_refused():
    """The sentence repeats them."""
    with pytest.raises(ArgumentError, match=r"cutoffs are \[10, 0\]"):
        metrics.per_user(np.array([1]), [10, 0])
    zero = np.zeros(1, np.int64)
    with pytest.raises(ArgumentError, match="no lists"):
        metrics.list_metrics(Ranking(zero, zero, zero, zero.astype(float), 3), None, [1])
