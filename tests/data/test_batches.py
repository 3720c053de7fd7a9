"""Batches hold each target once, know their padding, and can be taken up in the middle."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec import TrainingBatches, prepare
from budgetrec.data.batches import history_batches
from budgetrec.errors import ArgumentError
from tests.conftest import frame_of, sequences


def _dataset(folder, lengths):
    """User u's items are u * 1000, u * 1000 + 1, ...: an item identifies its user and position."""
    rows = [(u, u * 1000 + t, t) for u, length in enumerate(lengths) for t in range(length)]
    frame_of(rows).write_parquet(folder / "e.parquet")
    return prepare(folder / "e.parquet", folder / "d", overwrite=True)


def _pairs(dataset, batches, generator):
    """Return every (input, target) pair of an epoch by name, where the mask is true."""
    labels = dataset.item_labels.to_numpy()
    pairs = []
    for batch in batches.epoch(generator):
        assert batch.ids.shape == batch.targets.shape == batch.mask.shape
        assert batch.ids.shape[0] <= batches.batch_size
        assert batch.ids.shape[1] <= batches.max_length
        assert batch.mask[:, 0].all()  # right padding: every row begins with something real
        assert not batch.ids[~batch.mask].any()
        assert not batch.targets[~batch.mask].any()
        mask = batch.mask.numpy()
        inputs, targets = (labels[ids.numpy()[mask]].tolist() for ids in (batch.ids, batch.targets))
        pairs += zip(inputs, targets, strict=True)
    return pairs


@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=12).filter(lambda ls: max(ls) >= 4 or 2 in ls),
    batch_size=st.integers(1, 5),
    max_length=st.integers(1, 8),
    windows=st.sampled_from(["last", "all"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_each_target_comes_once_an_epoch(tmp_path_factory, lengths, batch_size, max_length, windows, seed):
    """`all` visits every item but the first of a sequence, `last` the last `max_length`; none twice."""
    dataset = _dataset(tmp_path_factory.mktemp("batches"), lengths)
    batches = TrainingBatches(dataset, batch_size=batch_size, max_length=max_length, windows=windows)
    expected = []
    for user, items in sequences(dataset).items():
        trained = items[:-2] if len(items) >= 3 else items
        pairs = list(pairwise(trained))
        assert all(b // 1000 == user for _, b in pairs)
        expected += pairs if windows == "all" else pairs[-max_length:]
    pairs = _pairs(dataset, batches, torch.Generator().manual_seed(seed))
    assert sorted(pairs) == sorted(expected)
    assert batches.num_targets == len(expected)
    assert len(list(batches.epoch(torch.Generator()))) == len(batches)


def test_an_epoch_can_be_taken_up_in_the_middle(tmp_path):
    """The same generator state and `skip` return the remaining batches."""
    dataset = _dataset(tmp_path, [9] * 40)
    batches = TrainingBatches(dataset, batch_size=4, max_length=5)
    whole = list(batches.epoch(torch.Generator().manual_seed(3)))
    rest = list(batches.epoch(torch.Generator().manual_seed(3), skip=6))
    assert len(rest) == len(whole) - 6
    for one, other in zip(whole[6:], rest, strict=True):
        assert torch.equal(one.ids, other.ids)


def test_epochs_differ_and_seeds_repeat(tmp_path):
    """A generator draws a new order each epoch, and its seed reproduces them."""
    dataset = _dataset(tmp_path, list(range(4, 60)))
    batches = TrainingBatches(dataset, batch_size=4, max_length=10)
    generator = torch.Generator().manual_seed(0)
    first, second = (_pairs(dataset, batches, generator) for _ in range(2))
    assert first != second
    assert first == _pairs(dataset, batches, torch.Generator().manual_seed(0))


def test_inputs_and_targets_are_tensors_of_their_own(tmp_path):
    """Changing one never changes the other, with padding and without."""
    for lengths in ([7, 7], [7, 9]):
        batches = TrainingBatches(_dataset(tmp_path, lengths), batch_size=2, max_length=9)
        (batch,) = batches.epoch(torch.Generator())
        before = batch.targets.clone()
        batch.ids.zero_()
        assert torch.equal(batch.targets, before)
        assert batch.targets.is_contiguous()


def test_similar_lengths_share_a_batch(tmp_path):
    """With lengths of 4 to 100, sorting within pools leaves under 15% of padding; without it over 25%."""
    random = np.random.default_rng(0)
    dataset = _dataset(tmp_path, random.integers(4, 100, 600).tolist())

    def padding(grouped):
        batches = TrainingBatches(dataset, batch_size=16, max_length=100, group_by_length=grouped)
        masks = [batch.mask for batch in batches.epoch(torch.Generator().manual_seed(0))]
        return 1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    assert padding(grouped=True) < 0.15
    assert padding(grouped=False) > 0.25


def test_histories_end_right_before_their_target(tmp_path):
    """The last `max_length` items before the target, for every tested user once."""
    dataset = _dataset(tmp_path, [3, 12, 5, 2])
    labels = dataset.item_labels.to_numpy()
    seen = {}
    for batch in history_batches(dataset, dataset.test(), batch_size=2, max_length=4):
        for ids, mask, target, user in zip(batch.ids, batch.mask, batch.targets, batch.users, strict=True):
            seen[int(user)] = (labels[ids[mask].numpy()].tolist(), int(labels[int(target)]))
    assert seen == {
        0: ([0, 1], 2),
        1: ([1007, 1008, 1009, 1010], 1011),
        2: ([2000, 2001, 2002, 2003], 2004),
    }


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"max_length": 0}, {"windows": "some"}])
def test_wrong_settings_are_refused(tmp_path, wrong):
    """One sentence each."""
    dataset = _dataset(tmp_path, [5])
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        TrainingBatches(dataset, **{"batch_size": 2, "max_length": 3, **wrong})


def test_nothing_to_predict_is_refused(tmp_path):
    """Sequences of one item have no target."""
    with pytest.raises(ArgumentError, match="nothing to predict"):
        TrainingBatches(_dataset(tmp_path, [1, 1]), batch_size=2, max_length=3)
