"""From words to optimisers: torch's own for dense parameters, row-sparse ones for item tables."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from budgetrec.errors import ArgumentError
from budgetrec.optimizers.checks import (
    check_betas,
    check_epsilon,
    check_learning_rate,
    check_momentum,
    check_weight_decay,
    check_word,
)
from budgetrec.optimizers.row_sparse import LazyAdam, RowSparseSGD, RowwiseAdagrad, supports_fused

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adagrad")
TABLE_UPDATES = ("dense", "row-sparse")

# Where LazyAdam takes less time than fused Adam in benchmarks/results/optimizers.md: below a quarter of the
# rows, and below half of them in a table of 16 MiB or more, whose gradient and moments leave the caches. Off
# that goes what sorting rows and calling a dozen kernels cost however few the rows are: as much as a dense
# step over 2^18 numbers.
_SHARE_OF_SMALL, _SHARE_OF_LARGE = 0.25, 0.5
_LARGE_ELEMENTS = 2**22
_FIXED_ELEMENTS = 2**18


def make_optimizers(
    parameters: Iterable[nn.Parameter],
    tables: Iterable[nn.Parameter],
    *,
    optimizer: str,
    table_updates: str,
    learning_rate: float,
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.98),
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[Optimizer]:
    """Build one optimiser for everything, or one for the parameters and a row-sparse one for the tables.

    `tables` are the item tables and `parameters` the rest; a table that is among the parameters too, as in
    `model.parameters()`, counts as a table. With row-sparse updates the tables need sparse gradients, and
    rows that a step does not touch keep their weights and moments.

    "momentum" is "sgd" with `momentum`; `betas` are Adam's and AdamW's, `epsilon` also Adagrad's. Weight
    decay is added to the gradient, and decoupled for "adamw". It decays everything given, norms and biases
    too.

    >>> weight, table = nn.Linear(2, 2).weight, nn.Embedding(9, 2, sparse=True).weight
    >>> words = {"optimizer": "adam", "table_updates": "row-sparse"}
    >>> [type(built).__name__ for built in make_optimizers([weight], [table], **words, learning_rate=0.1)]
    ['Adam', 'LazyAdam']
    """
    check_word("optimizer", optimizer, OPTIMIZERS)
    check_word("table_updates", table_updates, TABLE_UPDATES)
    check_learning_rate(learning_rate)
    check_momentum(momentum)
    check_betas(betas)
    check_epsilon(epsilon)
    check_weight_decay(weight_decay)
    item_tables = list(dict.fromkeys(tables))
    known = set(item_tables)
    dense = [parameter for parameter in dict.fromkeys(parameters) if parameter not in known]
    if table_updates == "dense":
        dense, item_tables = [*dense, *item_tables], []
    if not dense and not item_tables:
        raise ArgumentError("there are no parameters and no tables; pass those of a model.")
    velocity = momentum if optimizer == "momentum" else 0.0
    built: list[Optimizer] = []
    if dense:
        # On the processor the fused kernels take a third of the time of torch's default for Adam and Adagrad,
        # and as long for SGD.
        fused = True if all(supports_fused(parameter) for parameter in dense) else None
        shared: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay, "fused": fused}
        if optimizer in ("sgd", "momentum"):
            built.append(_sgd(dense, velocity, shared))
        elif optimizer == "adagrad":
            built.append(Adagrad(dense, eps=epsilon, **shared))
        else:
            made = AdamW if optimizer == "adamw" else Adam
            built.append(made(dense, betas=betas, eps=epsilon, **shared))
    if item_tables:
        shared = {"learning_rate": learning_rate, "weight_decay": weight_decay}
        if optimizer in ("sgd", "momentum"):
            built.append(RowSparseSGD(item_tables, momentum=velocity, **shared))
        elif optimizer == "adagrad":
            built.append(RowwiseAdagrad(item_tables, epsilon=epsilon, **shared))
        else:
            shared["decoupled_weight_decay"] = optimizer == "adamw"
            built.append(LazyAdam(item_tables, betas=betas, epsilon=epsilon, **shared))
    return built


def _sgd(parameters: list[nn.Parameter], momentum: float, shared: dict[str, Any]) -> SGD:
    """Build torch's SGD, with velocities of zero from the start.

    In torch 2.13 the fused kernel raises when one parameter meets its first gradient later than another.
    """
    optimizer = SGD(parameters, momentum=momentum, **shared)
    if momentum:
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    return optimizer


def choose_table_updates(*, num_items: int, dim: int, rows_touched: int) -> str:
    """Say which updates of a table are faster, "dense" or "row-sparse".

    `rows_touched` counts the distinct rows that a step gathers; repeats cost little. Row-sparse updates cost
    in proportion to the rows touched and dense ones to the table, with its gradient to clear and add up.

    >>> choose_table_updates(num_items=1_000_000, dim=64, rows_touched=40_000)
    'row-sparse'
    >>> choose_table_updates(num_items=3_416, dim=64, rows_touched=3_000)  # every item, every step
    'dense'
    """
    for name, number in (("num_items", num_items), ("dim", dim), ("rows_touched", rows_touched)):
        if number < 1:
            raise ArgumentError(f"{name} is {number}; pass at least 1.")
    elements = num_items * dim
    share = _SHARE_OF_LARGE if elements >= _LARGE_ELEMENTS else _SHARE_OF_SMALL
    return "row-sparse" if rows_touched * dim <= share * (elements - _FIXED_ELEMENTS) else "dense"
