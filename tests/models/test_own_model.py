"""A model of one's own: `forward` and `item_vectors` are all it needs, and what is missing is a sentence."""

import pytest
import torch
from torch import nn

from budgetrec.errors import ArgumentError
from budgetrec.models import SequenceModel
from budgetrec.models.own_model import complete, left_as_it_was


class Mine(SequenceModel):
    """A recurrent network over a table, without a word on its sizes."""

    def __init__(self, num_items=50, width=8):
        super().__init__()
        self.table = nn.Embedding(num_items, width)
        self.network = nn.GRU(width, 8, batch_first=True)

    def forward(self, ids, mask):
        """Return states."""
        return self.network(self.table(ids))[0]

    def item_vectors(self, ids):
        """Return rows of the table."""
        return self.table(ids)


class Short(Mine):
    """Has vectors for ten positions."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(10, 8)

    def forward(self, ids, mask):
        """Return states."""
        return self.table(ids) + self.places(torch.arange(ids.shape[1]))


class WithoutMask(Mine):
    """Forgets an argument."""

    def forward(self, ids):
        """Return states."""
        return self.table(ids)


class Bare(nn.Module):
    """Follows nothing."""


class Empty(Mine):
    """Has nothing to train."""

    def __init__(self):
        nn.Module.__init__(self)


def sized(**members):
    """Return a model that says something of its sizes."""
    model = Mine()
    for name, value in members.items():
        setattr(model, name, value)
    return model


def test_sizes_come_from_the_dataset_and_the_settings():
    """A model that says neither how many items it has nor how much it reads gets both; others keep theirs."""
    model = complete(Mine(), num_items=50, max_length=30)
    assert (model.num_items, model.max_length) == (50, 30)
    assert complete(sized(max_length=20), num_items=50, max_length=30).max_length == 20


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Bare(), r"Bare is no budgetrec\.models\.SequenceModel; derive its class from that"),
        (Empty(), "Empty has no parameters"),
        (sized(num_items=40), "Mine has 40 items and the dataset has 50; build it with dataset.num_items"),
        (
            Mine(num_items=40),
            r"Mine has no answer to forward\(ids, mask\) of shape \(2, 30\): index out of range",
        ),
        (Short(), r"Short has no answer to forward\(ids, mask\) of shape \(2, 30\)"),
        (WithoutMask(), "takes 2 positional arguments but 3 were given"),
        (Mine(width=6), "Mine has no answer to forward|return states"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_missing_is_one_sentence(model, words):
    """Each is refused before anything slow happens."""
    with pytest.raises(ArgumentError, match=words) as refused:
        complete(model, num_items=50, max_length=30)
    assert "\n" not in str(refused.value)


def test_states_and_vectors_have_one_width():
    """Vectors of another width than the states are refused with both shapes."""

    class Wide(Mine):
        def item_vectors(self, ids):
            return self.table(ids).repeat(1, 2)

    with pytest.raises(
        ArgumentError, match=r"made \(2, 30, 8\) of two sequences.* and \(2, 16\) of two items"
    ):
        complete(Wide(), num_items=50, max_length=30)


def test_a_model_is_left_as_it_was():
    """Weights, modes and gradients are those of before, to the bit."""
    model = Mine().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with left_as_it_was(model):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.tensor([[1, 2]]), None).sum().backward()
        optimizer.step()
        assert not torch.equal(model.table.weight, before["table.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
