"""Optimisers are built by name, and the cost of a step decides between dense and row-sparse."""

import pytest
import torch
from torch import nn

from budgetrec.errors import ArgumentError
from budgetrec.optimizers import OPTIMIZERS, choose_table_updates, make_optimizers

from .conftest import random_table

SETTINGS = {"optimizer": "adam", "table_updates": "dense", "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("word", "dense", "by_row"),
    [
        ("sgd", "SGD", "RowSparseSGD"),
        ("momentum", "SGD", "RowSparseSGD"),
        ("adam", "Adam", "LazyAdam"),
        ("adamw", "AdamW", "LazyAdam"),
        ("adagrad", "Adagrad", "RowwiseAdagrad"),
    ],
)
def test_each_word_is_a_dense_and_a_row_sparse_optimizer(word: str, dense: str, by_row: str):
    """A name builds one optimiser for everything, or one of torch's and a row-sparse one."""
    weight, table = nn.Parameter(torch.ones(3)), random_table()
    for updates, expected in (("dense", [dense]), ("row-sparse", [dense, by_row])):
        built = make_optimizers([weight], [table], **SETTINGS | {"optimizer": word, "table_updates": updates})
        assert [type(optimizer).__name__ for optimizer in built] == expected
        held = [parameter for optimizer in built for parameter in optimizer.param_groups[0]["params"]]
        assert [id(parameter) for parameter in held] == [id(weight), id(table)]


@pytest.mark.parametrize("updates", ["dense", "row-sparse"])
def test_settings_reach_both_optimizers(updates: str):
    """No setting is dropped on the way, and one that the word does not have is not invented."""
    chosen = {"momentum": 0.8, "betas": (0.7, 0.6), "epsilon": 1e-5, "weight_decay": 0.3}
    given = {
        "sgd": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.3},
        "momentum": {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.3},
        "adam": {"lr": 0.1, "betas": (0.7, 0.6), "eps": 1e-5, "weight_decay": 0.3},
        "adamw": {"lr": 0.1, "betas": (0.7, 0.6), "eps": 1e-5, "weight_decay": 0.3},
        "adagrad": {"lr": 0.1, "eps": 1e-5, "weight_decay": 0.3},
    }
    assert tuple(given) == OPTIMIZERS
    for word, expected in given.items():
        settings = SETTINGS | chosen | {"optimizer": word, "table_updates": updates}
        for optimizer in make_optimizers([nn.Parameter(torch.ones(3))], [random_table()], **settings):
            [group] = optimizer.param_groups
            assert {name: group[name] for name in expected} == expected
            assert group.get("decoupled_weight_decay", False) == (word == "adamw")


def test_a_table_among_the_parameters_is_a_table():
    """`model.parameters()` holds the table too, and no parameter is updated twice."""
    model = nn.ModuleDict({"table": nn.Embedding(5, 2, sparse=True), "norm": nn.LayerNorm(2)})
    for updates, counts in (("row-sparse", [2, 1]), ("dense", [3])):
        settings = SETTINGS | {"table_updates": updates}
        built = make_optimizers(model.parameters(), [model["table"].weight], **settings)
        assert [len(optimizer.param_groups[0]["params"]) for optimizer in built] == counts


def test_dense_optimizers_use_fused_kernels_on_the_processor():
    """Fused kernels take a third of the time of torch's default."""
    for word in OPTIMIZERS:
        [optimizer] = make_optimizers([nn.Parameter(torch.ones(3))], [], **SETTINGS | {"optimizer": word})
        assert optimizer.defaults["fused"] is True


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "adamm"}, "optimizer is 'adamm'; pass one of sgd, momentum, adam, adamw, adagrad."),
        ({"table_updates": "sparse"}, "table_updates is 'sparse'; pass one of dense, row-sparse."),
        ({"learning_rate": -0.1}, "learning_rate is -0.1; pass 0 or more."),
        ({"momentum": 1.0}, "momentum is 1.0; pass a number from 0 to below 1, such as 0.9."),
    ],
)
def test_wrong_words_and_numbers_are_one_sentence(wrong: dict[str, object], message: str):
    """What is wrong, what was seen, what to do."""
    with pytest.raises(ArgumentError) as caught:
        make_optimizers([], [random_table()], **SETTINGS | wrong)
    assert str(caught.value) == message


def test_nothing_to_optimize_is_refused():
    """An empty model is a mistake."""
    with pytest.raises(ArgumentError, match="no parameters and no tables"):
        make_optimizers([], [], **SETTINGS)


@pytest.mark.parametrize(
    ("num_items", "rows_touched", "chosen"),
    [
        (1_000, 1, "dense"),
        (3_000, 30, "dense"),
        (10_000, 1_000, "row-sparse"),
        (10_000, 2_000, "dense"),
        (30_000, 6_000, "row-sparse"),
        (30_000, 9_000, "dense"),
        (100_000, 30_000, "row-sparse"),
        (100_000, 100_000, "dense"),
        (1_000_000, 300_000, "row-sparse"),
    ],
)
def test_few_rows_of_a_large_table_are_updated_by_row(num_items: int, rows_touched: int, chosen: str):
    """The choice is that of the measured table in benchmarks/results/optimizers.md."""
    assert choose_table_updates(num_items=num_items, dim=64, rows_touched=rows_touched) == chosen


def test_sizes_below_one_are_refused():
    """A catalogue without items is a mistake."""
    with pytest.raises(ArgumentError, match="num_items is 0; pass a number above 0"):
        choose_table_updates(num_items=0, dim=64, rows_touched=1)
