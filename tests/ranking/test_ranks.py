"""Ranks and losses equal those of a slow reading of the definition, whatever the blocks."""

import numpy as np
import pytest
import torch

from budgetrec.data.store import Targets
from budgetrec.errors import ArgumentError, DataError, NotFiniteError
from budgetrec.ranking.ranks import rank_targets
from budgetrec.ranking.validation import spread, validate
from tests.evaluation.fakes import AverageModel, constant_model, dataset_of, random_dataset, random_model


def _reference(model, dataset, targets, *, keep_seen):
    """Rank one target at a time with a loop over items."""
    inputs, outputs = model.inputs.detach().double(), model.outputs.detach().double()
    ranks, losses = [], []
    for begin, place in zip(targets.begins, targets.places, strict=True):
        history, target = dataset.items[begin:place], dataset.items[place]
        state = inputs[torch.as_tensor(history[-model.max_length :].astype(np.int64))].sum(0)
        scores = outputs @ (state / model.max_length)
        losses.append(float(scores.logsumexp(0) - scores[target]))
        seen = set() if keep_seen else set(history.tolist())
        others = [j for j in range(dataset.num_items) if j != target and j not in seen]
        before = sum(bool(scores[j] >= scores[target]) for j in others)
        ranks.append(dataset.num_items if target in seen else 1 + before)
    return ranks, losses


@pytest.mark.parametrize("keep_seen", [False, True])
@pytest.mark.parametrize("batch_size", [1, 13, None])
@pytest.mark.parametrize("block_bytes", [64, 500, 3000, 2**26])
def test_ranks_and_losses_equal_the_reference_for_any_blocks(keep_seen, block_bytes, batch_size):
    """One tile of all items or many overlapping ones, rows cut or whole: the same numbers.

    Histories are longer than the model looks back, and users have items again, targets included.
    """
    random = np.random.default_rng(0)
    dataset = random_dataset(random, num_users=40, num_items=53)
    model = random_model(random, num_items=53)
    ranking = rank_targets(
        model, dataset, dataset.test(), batch_size=batch_size, keep_seen=keep_seen, block_bytes=block_bytes
    )
    ranks, losses = _reference(model, dataset, dataset.test(), keep_seen=keep_seen)
    assert ranking.ranks.tolist() == ranks
    np.testing.assert_allclose(ranking.losses, losses, rtol=1e-5)
    assert ranking.users.tolist() == list(range(40))
    assert ranking.targets.tolist() == dataset.items[dataset.test_targets].tolist()


def test_ties_count_against_the_target():
    """With all scores equal the target comes last of the items left: 6 items, 3 of them seen."""
    dataset = dataset_of([[0, 1, 2, 3]], num_items=6)
    model = constant_model([1.0] * 6)
    assert rank_targets(model, dataset, dataset.test()).ranks.tolist() == [3]
    assert rank_targets(model, dataset, dataset.test(), keep_seen=True).ranks.tolist() == [6]


@pytest.mark.parametrize("block_bytes", [64, 2**12, 2**15, 2**26])
@pytest.mark.parametrize("num_users", [1, 3, 100])
def test_equal_vectors_tie_wherever_they_stand(num_users, block_bytes):
    """A collapsed model, all items one vector, gets the last rank: products of all tiles round alike."""
    random = np.random.default_rng(1)
    dataset = random_dataset(random, num_users=num_users, num_items=1001)
    model = AverageModel(random.normal(size=(1001, 50)), np.tile(random.normal(size=50), (1001, 1)))
    ranking = rank_targets(model, dataset, dataset.test(), keep_seen=True, block_bytes=block_bytes)
    assert (ranking.ranks == 1001).all()


@pytest.mark.parametrize("block_bytes", [64, 2**26])
def test_a_target_that_is_left_out_comes_last(block_bytes):
    """Scores 5 4 3 2 1: item 1 was seen, so as the target it is in no list and has rank 5; kept, it has 2."""
    dataset = dataset_of([[0, 1, 2, 1]], num_items=5)
    asked = {"list_length": 4, "block_bytes": block_bytes}
    model, targets = constant_model([5, 4, 3, 2, 1]), dataset.test()
    ranking = rank_targets(model, dataset, targets, **asked)
    assert ranking.ranks.tolist() == [5]
    assert ranking.lists.tolist() == [[3, 4, -1, -1]]
    kept = rank_targets(model, dataset, targets, keep_seen=True, **asked)
    assert kept.ranks.tolist() == [2]
    assert kept.lists.tolist() == [[0, 1, 2, 3]]


def test_all_of_the_history_is_removed_not_only_what_the_model_looks_at():
    """The model sees the last item only; items 0 and 1 still make room for the target 4."""
    dataset = dataset_of([[0, 1, 2, 3, 4]], num_items=6)
    model = constant_model([9, 8, 7, 6, 5, 4], max_length=1)
    assert rank_targets(model, dataset, dataset.test()).ranks.tolist() == [1]


@pytest.mark.parametrize("block_bytes", [64, 3000, 2**26])
def test_lists_are_the_best_items_that_were_not_seen(block_bytes):
    """Sorted by score, best first, over any tiles; the target's rank is its place in them."""
    random = np.random.default_rng(2)
    dataset = random_dataset(random, num_users=30, num_items=41)
    model = random_model(random, num_items=41)
    ranking = rank_targets(model, dataset, dataset.test(), list_length=7, block_bytes=block_bytes)
    whole = rank_targets(model, dataset, dataset.test(), list_length=100)
    assert whole.lists.shape == (30, 41)
    np.testing.assert_array_equal(ranking.lists, whole.lists[:, :7])
    for row, (begin, place) in enumerate(zip(dataset.offsets[:-1], dataset.test_targets, strict=True)):
        seen = set(dataset.items[begin:place].tolist())
        listed = [item for item in whole.lists[row].tolist() if item >= 0]
        assert sorted(listed) == sorted(set(range(41)) - seen)
        if dataset.items[place] in seen:
            assert whole.ranks[row] == 41
        else:
            assert listed[whole.ranks[row] - 1] == dataset.items[place]


def test_padding_changes_nothing():
    """Batches of one length and of many give the same losses."""
    random = np.random.default_rng(3)
    dataset = random_dataset(random, num_users=50, num_items=20)
    model = random_model(random, num_items=20, max_length=9)
    alone = rank_targets(model, dataset, dataset.validation(), batch_size=1)
    together = rank_targets(model, dataset, dataset.validation(), batch_size=50)
    np.testing.assert_allclose(alone.losses, together.losses, rtol=1e-6)
    assert alone.ranks.tolist() == together.ranks.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_numbers_are_refused(bad):
    """One NaN or infinity anywhere in the table is told in a sentence, not ranked."""
    dataset = dataset_of([[0, 1, 2, 3]], num_items=5)
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        rank_targets(constant_model([1, 2, 3, 4, bad]), dataset, dataset.test())


def test_a_model_of_another_catalogue_is_refused():
    """The sentence names both sizes."""
    dataset = dataset_of([[0, 1, 2, 3]], num_items=5)
    with pytest.raises(ArgumentError, match=r"\(4, 1\), and the dataset 5 items"):
        rank_targets(constant_model([1, 2, 3, 4]), dataset, dataset.test())


def test_no_targets_and_no_history_are_refused():
    """Both say what is missing."""
    dataset = dataset_of([[0, 1, 2, 3]], num_items=5)
    none = np.empty(0, np.int64)
    with pytest.raises(DataError, match="no target"):
        rank_targets(constant_model([1] * 5), dataset, Targets(none, none, none))
    zero = np.zeros(1, np.int64)
    with pytest.raises(DataError, match="no history"):
        rank_targets(constant_model([1] * 5), dataset, Targets(zero, zero, zero))


def test_the_scores_stay_within_their_bytes(monkeypatch):
    """No matrix product of an evaluation gives more than half of the bound: scratch takes the other half."""
    random = np.random.default_rng(4)
    dataset = random_dataset(random, num_users=300, num_items=5000)
    model = random_model(random, num_items=5000)
    sizes = []
    multiply = torch.mm

    def watch(a, b, *, out):
        sizes.append(out.numel() * out.element_size())
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", watch)
    rank_targets(model, dataset, dataset.test(), batch_size=300, block_bytes=2**20)
    assert max(sizes) <= 2**19
    assert max(sizes) > 2**18


def test_validation_leaves_the_model_as_it_was_and_repeats():
    """Dropout is off inside and on again after; parts keep their own modes; two calls agree to the bit."""
    random = np.random.default_rng(5)
    dataset = random_dataset(random, num_users=30, num_items=40)
    model = random_model(random, num_items=40)
    model.train()
    model.frozen = torch.nn.Dropout().eval()
    state = torch.get_rng_state()
    first = validate(model, dataset, dataset.validation(), batch_size=7)
    assert first == validate(model, dataset, dataset.validation(), batch_size=7)
    assert model.training
    assert model.dropout.training
    assert not model.frozen.training
    assert torch.equal(state, torch.get_rng_state())
    assert list(first) == ["val_loss", "ndcg@10", "hit_rate@10", "mrr"]
    ranks, losses = _reference(model, dataset, dataset.validation(), keep_seen=False)
    assert first["val_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert first["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert first["hit_rate@10"] == pytest.approx(np.mean(np.array(ranks) <= 10))


def test_a_model_that_fails_is_still_put_back():
    """An error on the way does not leave the model in evaluation mode."""
    dataset = dataset_of([[0, 1, 2, 3]], num_items=5)
    model = constant_model([np.nan] * 5).train()
    with pytest.raises(NotFiniteError):
        validate(model, dataset, dataset.validation(), batch_size=2)
    assert model.training


def test_max_users_takes_the_same_spread_targets():
    """3 of 10: the targets 0, 3 and 6; more than there are takes all."""
    dataset = dataset_of([[0, 1, 2]] * 10, num_items=3)
    assert spread(dataset.test(), 3).users.tolist() == [0, 3, 6]
    assert len(spread(dataset.test(), 99)) == 10
    with pytest.raises(ArgumentError, match="max_users is 0"):
        spread(dataset.test(), 0)
