"""The best items of histories equal those of a slow reading of the definition, whatever the blocks."""

import numpy as np
import pytest
import torch

from budgetrec.errors import ArgumentError, NotFiniteError
from budgetrec.ranking.histories import Histories
from budgetrec.ranking.ranks import rank_targets
from budgetrec.ranking.top import top_items
from tests.evaluation.fakes import constant_model, dataset_of, random_dataset, random_model


def _histories(dataset):
    return Histories(dataset.items, dataset.offsets[:-1], dataset.offsets[1:])


@pytest.mark.parametrize("keep_seen", [False, True])
@pytest.mark.parametrize("num_users", [1, 40])
@pytest.mark.parametrize("block_bytes", [64, 500, 3000, 2**26])
def test_lists_equal_the_reference_for_any_blocks(keep_seen, num_users, block_bytes):
    """Items in the order of their scores, and the scores themselves; nothing that was seen."""
    random = np.random.default_rng(0)
    dataset = random_dataset(random, num_users=num_users, num_items=53)
    model = random_model(random, num_items=53)
    best = top_items(
        model, _histories(dataset), num_items=53, top=9, keep_seen=keep_seen, block_bytes=block_bytes
    )
    inputs, outputs = model.inputs.detach(), model.outputs.detach()
    for row, (begin, end) in enumerate(zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True)):
        history = torch.as_tensor(dataset.items[begin:end].astype(np.int64))
        scores = outputs @ (inputs[history[-model.max_length :]].sum(0) / model.max_length)
        if not keep_seen:
            scores[history] = -torch.inf
        expected = scores.topk(9)
        assert best.items[row].tolist() == expected.indices.tolist()
        np.testing.assert_allclose(best.scores[row], expected.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep_seen", [False, True])
def test_lists_are_those_of_an_evaluation(keep_seen):
    """Ranking a target and listing items go one way: the same items, also where the target was seen."""
    random = np.random.default_rng(1)
    dataset = random_dataset(random, num_users=30, num_items=41)
    model = random_model(random, num_items=41)
    targets = dataset.test()
    ranking = rank_targets(model, dataset, targets, list_length=6, keep_seen=keep_seen)
    histories = Histories(dataset.items, targets.begins, targets.places)
    best = top_items(model, histories, num_items=41, top=6, keep_seen=keep_seen)
    np.testing.assert_array_equal(best.items, ranking.lists)


def test_places_are_empty_where_nothing_is_left():
    """Of five items three were had, so two are listed."""
    best = top_items(
        constant_model([5, 4, 3, 2, 1]), _histories(dataset_of([[0, 1, 3]], num_items=5)), num_items=5, top=9
    )
    assert best.items.tolist() == [[2, 4, -1, -1, -1]]
    assert best.scores[0, :2].tolist() == [3, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_numbers_are_refused(bad):
    """Also of an item that was seen."""
    histories = _histories(dataset_of([[0, 1, 4]], num_items=5))
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        top_items(constant_model([1, 2, 3, 4, bad]), histories, num_items=5, top=2)


def test_what_cannot_be_listed_is_told():
    """A list of nothing, and a table of another catalogue."""
    histories = _histories(dataset_of([[0, 1, 2]], num_items=4))
    with pytest.raises(ArgumentError, match="top is 0"):
        top_items(constant_model([1] * 4), histories, num_items=4, top=0)
    with pytest.raises(ArgumentError, match=r"\(4, 1\), and the dataset 5 items"):
        top_items(constant_model([1] * 4), histories, num_items=5, top=1)
