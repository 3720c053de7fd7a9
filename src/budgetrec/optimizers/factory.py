"""Build optimisers by name: torch's for dense parameters, row-sparse ones for item tables."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from budgetrec.errors import ArgumentError
from budgetrec.optimizers.ranges import check_settings
from budgetrec.optimizers.row_sparse import LazyAdam, RowSparseSGD, RowwiseAdagrad, supports_fused
from budgetrec.options import check_choice, check_positive

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adagrad")
TABLE_UPDATES = ("dense", "row-sparse")

# LazyAdam is faster than fused Adam below a quarter of the rows, or below half of them in a table of 16 MiB
# or more, whose gradient and moments no longer fit the caches: see benchmarks/results/optimizers.md. Sorting
# rows and launching a dozen kernels has a fixed cost on top, about that of a dense step over 2^18 numbers.
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
    fused: bool = True,
) -> list[Optimizer]:
    """Build one optimiser for everything, or one for the parameters and a row-sparse one for the tables.

    `tables` are the item tables and `parameters` the rest. A table that is also among the parameters, as in
    `model.parameters()`, counts as a table. Row-sparse updates need sparse gradients of the tables, and leave
    the weights and moments of untouched rows unchanged.

    "momentum" is "sgd" with `momentum`. `betas` apply to Adam and AdamW, `epsilon` also to Adagrad. Weight
    decay is added to the gradient, or decoupled for "adamw". It applies to all parameters, including norms
    and biases. With `fused`, dense parameters get torch's fused kernels where there are some; without, what
    torch does if it is not told.

    >>> weight, table = nn.Linear(2, 2).weight, nn.Embedding(9, 2, sparse=True).weight
    >>> words = {"optimizer": "adam", "table_updates": "row-sparse"}
    >>> [type(built).__name__ for built in make_optimizers([weight], [table], **words, learning_rate=0.1)]
    ['Adam', 'LazyAdam']
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    check_choice("table_updates", table_updates, TABLE_UPDATES)
    check_settings(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        betas=betas,
        epsilon=epsilon,
    )
    item_tables = list(dict.fromkeys(tables))
    dense = [parameter for parameter in dict.fromkeys(parameters) if parameter not in set(item_tables)]
    if table_updates == "dense":
        dense, item_tables = [*dense, *item_tables], []
    if not dense and not item_tables:
        raise ArgumentError("there are no parameters and no tables to optimise; pass those of a model.")
    velocity = momentum if optimizer == "momentum" else 0.0
    built: list[Optimizer] = []
    if dense:
        # On a CPU, fused kernels take a third of the time of torch's default for Adam and Adagrad, and the
        # same time for SGD.
        kernels = True if fused and all(supports_fused(parameter) for parameter in dense) else None
        shared: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay, "fused": kernels}
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
    """Build torch's SGD with all velocities set to zero.

    In torch 2.13 the fused kernel fails if one parameter gets its first gradient later than another.
    """
    optimizer = SGD(parameters, momentum=momentum, **shared)
    if momentum:
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    return optimizer


def choose_table_updates(*, num_items: int, dim: int, rows_touched: int) -> str:
    """Return which updates of a table are faster, "dense" or "row-sparse".

    `rows_touched` is the number of distinct rows that a step gathers; repeats cost little. The cost of
    row-sparse updates grows with the rows touched. The cost of dense updates grows with the table, whose
    gradient must be cleared and summed too.

    >>> choose_table_updates(num_items=1_000_000, dim=64, rows_touched=40_000)
    'row-sparse'
    >>> choose_table_updates(num_items=3_416, dim=64, rows_touched=3_000)  # every item, every step
    'dense'
    """
    check_positive(num_items=num_items, dim=dim, rows_touched=rows_touched)
    elements = num_items * dim
    share = _SHARE_OF_LARGE if elements >= _LARGE_ELEMENTS else _SHARE_OF_SMALL
    return "row-sparse" if rows_touched * dim <= share * (elements - _FIXED_ELEMENTS) else "dense"
