"""Items that users have again among what is held out: counted, and what follows for rankings."""

import numpy as np
import pytest

from budgetrec.data import ragged
from budgetrec.data.repeats import count_repeats, repeated_targets, should_keep_seen
from tests.evaluation.fakes import dataset_of, random_dataset


@pytest.mark.parametrize("block_interactions", [1, 7, 2**20])
def test_a_target_is_repeated_where_its_history_has_it(monkeypatch, block_interactions):
    """Against a loop over users, whatever the blocks are."""
    monkeypatch.setattr(ragged, "_AT_ONCE", block_interactions)
    dataset = random_dataset(np.random.default_rng(0), num_users=50, num_items=30)
    targets = dataset.test()
    expected = [
        dataset.items[place] in dataset.items[begin:place]
        for begin, place in zip(targets.begins, targets.places, strict=True)
    ]
    found = repeated_targets(dataset, targets)
    assert found.tolist() == expected
    assert 0 < found.sum() < 50
    assert count_repeats(dataset)["test"] == {"targets": 50, "repeated": int(found.sum())}


@pytest.mark.parametrize(("num_repeated", "keeps"), [(0, False), (4, False), (5, True), (100, True)])
def test_seen_items_are_kept_from_five_percent_of_the_validation_items_on(num_repeated, keeps):
    """4 of 100 are too few, 5 are enough; what is repeated in the test part alone does not count."""
    sequences = [[0, 1, 0 if user < num_repeated else 2, 1] for user in range(100)]
    assert should_keep_seen(dataset_of(sequences, num_items=3)) is keeps
