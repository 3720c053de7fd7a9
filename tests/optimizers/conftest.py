"""Tables, gradients and a few steps of training, for every optimiser."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from budgetrec.optimizers import LazyAdam, RowSparseSGD, RowwiseAdagrad
from budgetrec.optimizers.row_sparse import RowSparseOptimizer

NUM_ITEMS, DIM = 12, 4

ROW_SPARSE: dict[str, Callable[[list[nn.Parameter]], RowSparseOptimizer]] = {
    "sgd": lambda tables: RowSparseSGD(tables, learning_rate=0.1),
    "sgd, decay": lambda tables: RowSparseSGD(tables, learning_rate=0.1, weight_decay=0.2),
    "momentum": lambda tables: RowSparseSGD(tables, learning_rate=0.1, momentum=0.9),
    "adam": lambda tables: LazyAdam(tables, learning_rate=0.1),
    "adam, decay": lambda tables: LazyAdam(tables, learning_rate=0.1, weight_decay=0.2),
    "adamw": lambda tables: LazyAdam(
        tables, learning_rate=0.1, weight_decay=0.2, decoupled_weight_decay=True
    ),
    "adagrad": lambda tables: RowwiseAdagrad(tables, learning_rate=0.1),
    "adagrad, decay": lambda tables: RowwiseAdagrad(tables, learning_rate=0.1, weight_decay=0.2),
}


def random_table(seed: int = 0, num_items: int = NUM_ITEMS, dim: int = DIM) -> nn.Parameter:
    """Return a table of normal numbers."""
    return nn.Parameter(torch.randn(num_items, dim, generator=torch.Generator().manual_seed(seed)))


def set_row_gradient(table: nn.Parameter, ids: Sequence[int] | Tensor, seed: int) -> Tensor:
    """Set a sparse gradient with one entry for each id, and return the entries."""
    places = torch.as_tensor(ids, dtype=torch.int64)
    entries = torch.randn(len(places), table.shape[1], generator=torch.Generator().manual_seed(seed))
    table.grad = None
    functional.embedding(places, table, sparse=True).backward(entries)
    return entries
