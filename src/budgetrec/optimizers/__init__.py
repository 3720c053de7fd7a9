"""Dense and row-sparse optimisers, learning-rate schedules, and optimiser state as named tensors."""

from budgetrec.optimizers.factory import OPTIMIZERS, TABLE_UPDATES, choose_table_updates, make_optimizers
from budgetrec.optimizers.row_sparse import LazyAdam, RowSparseSGD, RowwiseAdagrad
from budgetrec.optimizers.schedules import SCHEDULES, learning_rate_factor, set_learning_rate
from budgetrec.optimizers.state import load_optimizer_tensors, optimizer_tensors

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "TABLE_UPDATES",
    "LazyAdam",
    "RowSparseSGD",
    "RowwiseAdagrad",
    "choose_table_updates",
    "learning_rate_factor",
    "load_optimizer_tensors",
    "make_optimizers",
    "optimizer_tensors",
    "set_learning_rate",
]
