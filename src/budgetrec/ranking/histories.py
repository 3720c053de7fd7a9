"""Histories and the states that a model gives them, for ranking targets and for listing the best items."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from budgetrec.data.batches import windows_before
from budgetrec.data.ragged import lay_out
from budgetrec.errors import ArgumentError
from budgetrec.models.own_model import modes_kept
from budgetrec.ranking.scorer import BLOCK_USERS, SeenPairs

# Histories encoded at once. Measured on one CPU thread with SASRec, d = 64, 200 positions, seconds for 6,040
# users: 1.5 by 32, 1.4 by 64, 1.9 by 128, 2.5 by 256.
ENCODED_AT_ONCE = {"cpu": 64}


class NextItemModel(Protocol):
    """What ranking needs of a model: any `nn.Module` with the two methods and `max_length`."""

    @property
    def max_length(self) -> int:
        """How many items of a history it looks at."""

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict what follows histories (n, width), padded on the right."""

    def item_table(self) -> Tensor:
        """Return the output vectors of all items (K, d)."""

    def modules(self) -> Iterator[nn.Module]:
        """Return the model and all its parts."""


@dataclass(frozen=True)
class Histories:
    """What came before: history `h` is `items[begins[h]:ends[h]]`, the earliest item first."""

    items: NDArray[np.int32]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begins)

    def seen(self, rows: NDArray[np.int64]) -> SeenPairs:
        """Return the items of the histories `rows`, all of them, even what a model does not look back to."""
        begins, lengths = self.begins[rows], self.ends[rows] - self.begins[rows]
        which, places = lay_out(begins, lengths)
        return SeenPairs(which, np.asarray(self.items)[places])


@contextmanager
def evaluating(model: NextItemModel) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and each of its parts back as it was."""
    with modes_kept(model.modules()), torch.inference_mode():
        for module in model.modules():
            module.training = False
        yield


def item_table(model: NextItemModel, num_items: int) -> Tensor:
    """Return the vectors (K, d) of all items as numbers that can be ranked."""
    table = model.item_table()
    if table.ndim != 2 or table.shape[0] != num_items:
        raise ArgumentError(
            f"the model's item table has shape {tuple(table.shape)}, and the dataset {num_items:,} items. "
            "Evaluate a model on the dataset it was made for."
        )
    return table if table.dtype == torch.float64 else table.float()


def encode(
    model: NextItemModel,
    histories: Histories,
    device: torch.device,
    *,
    block_users: int,
    batch_size: int | None = None,
) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
    """Return states (n, d) and which histories they are of, `block_users` at a time, the last what is left.

    Encoders are fastest in small batches and products with the table in large ones, so `batch_size` histories
    (what is fast, if not given) are encoded at once and their states put together or cut.
    """
    if batch_size is None:
        batch_size = ENCODED_AT_ONCE.get(device.type, BLOCK_USERS)
    states: list[Tensor] = []
    rows: list[NDArray[np.int64]] = []
    for batch, ids, mask in windows_before(
        histories.items, histories.begins, histories.ends, batch_size=batch_size, max_length=model.max_length
    ):
        states.append(model.predict(ids.to(device), mask.to(device)))
        rows.append(batch)
        if sum(map(len, rows)) >= block_users:
            whole, which = torch.cat(states), np.concatenate(rows)
            full = len(which) - len(which) % block_users
            for start in range(0, full, block_users):
                yield whole[start : start + block_users], which[start : start + block_users]
            states, rows = [whole[full:]], [which[full:]]
    if sum(map(len, rows)):
        yield torch.cat(states), np.concatenate(rows)
