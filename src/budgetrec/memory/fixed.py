"""What is in memory throughout training: weights, gradients and the state of the optimisers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from budgetrec.memory.timeline import record
from budgetrec.models.item_encoders import ItemTable
from budgetrec.optimizers.row_gradients import BLOCK_BYTES

MakeOptimizers = Callable[[list[nn.Parameter], list[nn.Parameter]], list[Optimizer]]


@dataclass(frozen=True)
class Fixed:
    """Bytes that do not depend on the batch, each for a catalogue of any size: constant + bytes per item."""

    weights: tuple[int, float]
    gradients: tuple[int, float]  # row-sparse sums apart
    state: tuple[int, float]


def item_tables(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained tables of item vectors."""
    return [part.weight for part in model.modules() if isinstance(part, ItemTable)]


def count_fixed(model: nn.Module, make: MakeOptimizers, *, sparse: bool, num_items: int) -> Fixed:
    """Count for a model of `num_items` items; small stand-ins show the state of its optimisers."""
    tables = item_tables(model)
    in_tables = sum(table.nbytes for table in tables)
    parameters = list(model.parameters())
    others = sum(parameter.nbytes for parameter in parameters) - in_tables
    buffers = sum(buffer.nbytes for buffer in model.buffers() if buffer.shape[:1] != (num_items,))
    per_item = in_tables / num_items
    dense_state = state_share(make, 64, sparse=False)
    table_state = sum(state_share(make, table.shape[1], sparse=sparse) * table.nbytes for table in tables)
    return Fixed(
        weights=(others + buffers, per_item),
        gradients=(others, 8.0 * len(tables) if sparse else per_item),  # a place an item where sparse
        state=(round(dense_state * others), table_state / num_items),
    )


@dataclass(frozen=True)
class FreshGradients:
    """Where each step makes new gradients: their bytes, and what the update works in on top of them."""

    gradients: int
    update: int


def count_own(model: nn.Module, make: MakeOptimizers, *, at_once: bool) -> tuple[Fixed, FreshGradients]:
    """Count for a model of one's own, whose catalogue stays as it is, and a loop that uses torch as it comes.

    An update works on all parameters `at_once`, or on one after the other.
    """
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    trained = [parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]
    stand_in = nn.Parameter(torch.zeros(64, 64))
    stand_in.grad = torch.zeros(64, 64)
    (optimizer,) = make([stand_in], [])
    optimizer.step()  # makes its state
    share = record(optimizer.step, ("update",)).peak / stand_in.nbytes
    state = round(state_share(make, 64, sparse=False) * sum(trained))
    return (
        Fixed(weights=(weights, 0.0), gradients=(0, 0.0), state=(state, 0.0)),
        FreshGradients(sum(trained), round(share * (sum(trained) if at_once else max(trained, default=0)))),
    )


def state_share(make: MakeOptimizers, dim: int, *, sparse: bool) -> float:
    """Return the state of a parameter (R, dim) in its own bytes, counters apart."""
    stand_in = nn.Parameter(torch.zeros(8, dim))
    stand_in.grad = _touch(stand_in, 1) if sparse else torch.zeros(8, dim)
    (optimizer,) = make([], [stand_in]) if sparse else make([stand_in], [])
    optimizer.step()
    values = optimizer.state[stand_in].values() if stand_in in optimizer.state else ()
    kept = sum(value.nbytes for value in values if isinstance(value, torch.Tensor) and value.dim())
    return float(kept / stand_in.nbytes)


@dataclass(frozen=True)
class UpdateBytes:
    """What a row-sparse update needs on top of the gradient, by how many rows were touched."""

    rows: tuple[int, ...]
    peaks: tuple[int, ...]

    def __call__(self, touched: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate, and continue with the last slope: above one block only ids grow with the rows."""
        slope = (self.peaks[-1] - self.peaks[-2]) / (self.rows[-1] - self.rows[-2])
        beyond = np.maximum(touched - self.rows[-1], 0) * slope
        needed: NDArray[np.float64] = np.interp(touched, (0, *self.rows), (0, *self.peaks)) + beyond
        return needed


def measure_updates(dim: int, make: MakeOptimizers) -> UpdateBytes:
    """Update tables of one, three and six blocks of rows."""
    block = max(1, BLOCK_BYTES // (4 * dim))
    rows, peaks = (block, 3 * block, 6 * block), []
    table = nn.Parameter(torch.zeros(rows[-1], dim))
    for optimizer in make([], [table]):
        table.grad = _touch(table, 1)
        optimizer.step()
        for count in rows:
            table.grad = _touch(table, count)
            peaks.append(record(optimizer.step, ("update",)).peak)
    return UpdateBytes(rows, tuple(peaks))


def _touch(table: nn.Parameter, count: int) -> torch.Tensor:
    ids = torch.arange(count)[None]
    return torch.sparse_coo_tensor(
        ids, torch.zeros(count, table.shape[1]), table.shape, check_invariants=False
    )
