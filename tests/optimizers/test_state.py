"""Optimiser state survives a file bit for bit."""

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.optim import Optimizer

from budgetrec.errors import ArgumentError, DataError
from budgetrec.optimizers import OPTIMIZERS, load_optimizer_tensors, make_optimizers, optimizer_tensors


class Model(nn.Module):
    """A table, a layer, and a parameter that gets its first gradient late."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(20, 4, sparse=sparse)
        self.layer = nn.Linear(4, 3)
        self.late = nn.Parameter(torch.empty(3))
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def loss(self, ids: torch.Tensor, step: int) -> torch.Tensor:
        """Return a number that depends on the rows and, from step 7 on, on the late parameter."""
        out = self.layer(self.items(ids)).tanh()
        return (out * self.late if step >= 7 else out).square().sum()


def start(word: str, updates: str) -> tuple[Model, list[Optimizer], dict[nn.Parameter, str]]:
    """Make a model, its optimisers and its names."""
    model = Model(sparse=updates == "row-sparse")
    optimizers = make_optimizers(
        model.parameters(),
        [model.items.weight],
        optimizer=word,
        table_updates=updates,
        learning_rate=0.05,
        weight_decay=0.01,
    )
    return model, optimizers, {parameter: name for name, parameter in model.named_parameters()}


def train(model: Model, optimizers: list[Optimizer], steps: range) -> None:
    """Train on rows that depend on the step alone, with duplicates."""
    for step in steps:
        ids = torch.randint(20, (9,), generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        model.loss(ids, step).backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("word", OPTIMIZERS)
@pytest.mark.parametrize("updates", ["dense", "row-sparse"])
@pytest.mark.parametrize("done", [0, 5])
def test_a_restored_run_is_an_unbroken_one(word: str, updates: str, done: int):
    """Five steps, a file, five more in fresh objects: equal bit for bit to ten in one go."""
    model, optimizers, names = start(word, updates)
    train(model, optimizers, range(10))
    first, its_optimizers, its_names = start(word, updates)
    train(first, its_optimizers, range(done))
    stored = save(dict(first.state_dict()) | optimizer_tensors(its_optimizers, its_names))

    second, fresh, second_names = start(word, updates)
    tensors = load(stored)
    second.load_state_dict({name: tensors[name] for name in second.state_dict()})
    load_optimizer_tensors(fresh, second_names, tensors)
    train(second, fresh, range(done, 10))

    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name
    ended, resumed = optimizer_tensors(optimizers, names), optimizer_tensors(fresh, second_names)
    assert ended.keys() == resumed.keys()
    assert all(torch.equal(ended[key], resumed[key]) for key in ended)


def test_keys_name_the_optimizer_the_state_and_the_parameter():
    """Every number that an optimiser keeps has a key, counters as 0-d tensors too."""
    _, optimizers, names = start("adam", "row-sparse")
    tensors = optimizer_tensors(optimizers, names)
    dense = ("layer.weight", "layer.bias", "late")
    keys = [(0, name) for name in dense] + [(1, "items.weight")]
    expected = [
        f"optimizer.{i}.{kind}.{name}" for i, name in keys for kind in ("step", "exp_avg", "exp_avg_sq")
    ]
    assert sorted(tensors) == sorted(expected)
    assert tensors["optimizer.1.step.items.weight"].shape == ()
    assert tensors["optimizer.1.exp_avg.items.weight"].shape == (20, 4)


def test_plain_sgd_has_no_state():
    """There is nothing to save, and a checkpoint needs nothing."""
    _, optimizers, names = start("sgd", "row-sparse")
    assert optimizer_tensors(optimizers, names) == {}
    load_optimizer_tensors(optimizers, names, {"items.weight": torch.zeros(1)})


def test_what_is_restored_is_a_copy():
    """Training on leaves the loaded tensors as they were."""
    model, optimizers, names = start("momentum", "row-sparse")
    tensors = {key: tensor.clone() for key, tensor in optimizer_tensors(optimizers, names).items()}
    load_optimizer_tensors(optimizers, names, tensors)
    train(model, optimizers, range(2))
    assert all(float(tensor.abs().sum()) == 0 for tensor in tensors.values())


KEY = "optimizer.1.exp_avg.items.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({KEY: None}, f"it has no tensor '{KEY}'; resume with the model and optimiser"),
        ({KEY: torch.zeros(19, 4)}, rf"'{KEY}' is \(19, 4\) torch.float32, not \(20, 4\) torch.float32"),
        ({KEY: torch.zeros(20, 4).double()}, r"is \(20, 4\) torch.float64, not"),
        (
            {"optimizer.1.sum.items.weight": torch.zeros(20)},
            "has 1 tensors that these optimisers do not have",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_whole(
    change: dict[str, torch.Tensor | None], message: str
):
    """A missing, misshapen or foreign tensor is named, and no state is touched."""
    model, optimizers, names = start("adam", "row-sparse")
    train(model, optimizers, range(2))
    changed = optimizer_tensors(optimizers, names) | change
    tensors = {key: tensor for key, tensor in changed.items() if tensor is not None}
    _, fresh, fresh_names = start("adam", "row-sparse")
    with pytest.raises(DataError, match=f"the checkpoint does not fit: .*{message}"):
        load_optimizer_tensors(fresh, fresh_names, tensors)
    assert all(not optimizer.state for optimizer in fresh)


def test_a_parameter_without_a_name_is_refused():
    """Its state would be lost silently."""
    _, optimizers, names = start("adam", "dense")
    names = {parameter: name for parameter, name in names.items() if name != "late"}
    with pytest.raises(ArgumentError, match=r"optimizer 0 has a parameter of shape \(3,\) without a name"):
        optimizer_tensors(optimizers, names)


def test_an_optimizer_of_unknown_state_is_refused():
    """State that cannot be restored bit for bit is not saved in part."""
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ArgumentError, match="the state of RMSprop cannot be saved"):
        optimizer_tensors([torch.optim.RMSprop([weight])], {weight: "weight"})
