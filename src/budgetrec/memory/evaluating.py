"""What an evaluation between steps takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from budgetrec.memory.heap import LARGE_BYTES
from budgetrec.memory.law import Law, fit
from budgetrec.memory.timeline import Timeline, record
from budgetrec.ranking.histories import NextItemModel, evaluating
from budgetrec.ranking.scorer import tile_shape

# What histories of many widths leave in the heap, in activations of the widest whose tensors lie there:
# fitted to benchmarks/memory.py, where it is from 3 to 7.
_HOLES = 5
_SEEN_BYTES = 48  # of a user's item that is left out: row, item, place and their sorted copies


@dataclass(frozen=True)
class EvaluationLaws:
    """Bytes of encoding histories, (1, sequences, positions), and of making the item table, (1, items)."""

    encode: Law
    table: Law
    table_kept: Law

    def total(
        self, *, num_items: int, dim: int, batch_size: int, length: int, block_bytes: int, num_targets: int
    ) -> float:
        """Return the peak of ranking targets, `batch_size` histories of `length` encoded at once."""
        users, width = tile_shape(num_items, 4, block_bytes)
        own = 0 if width == num_items else 4 * width * dim  # the targets' own vectors, as a tile
        table = np.array([1.0, num_items])
        positions = batch_size * length
        small = min(positions, LARGE_BYTES // (4 * dim))
        encode, in_heap = (
            float(self.encode.peaks(np.array([1.0, batch_size, count]))) for count in (positions, small)
        )
        scores = 8 * users * width
        ranks = 64 * num_targets  # places, lengths and order of the histories; ranks and losses
        score = own + users * length * _SEEN_BYTES
        return ranks + max(
            float(self.table.peaks(table)),
            float(self.table_kept.peaks(table)) + scores + max(encode, score) + _HOLES * in_heap,
        )


def find_evaluation_laws(views: Sequence[tuple[NextItemModel, int]], *, max_length: int) -> EvaluationLaws:
    """Encode small batches, and make the tables of models with different numbers of items."""
    model = views[0][0]
    longest = min(max_length, 32)
    sizes = [(2, longest), (3, longest), (4, max(1, longest // 2)), (6, max(1, longest // 2))]
    encoded = [_encode(model, *size) for size in sizes]
    tables = [_table(view) for view, _ in views]
    counts = np.array([[1.0, num_items] for _, num_items in views])
    return EvaluationLaws(
        encode=fit(
            [line.live for line in encoded], np.array([[1.0, count, count * width] for count, width in sizes])
        ),
        table=fit([line.live for line in tables], counts),
        table_kept=fit([line.live[-1:] for line in tables], counts),
    )


def _encode(model: NextItemModel, count: int, width: int) -> Timeline:
    ids, mask = torch.zeros(count, width, dtype=torch.int64), torch.ones(count, width, dtype=torch.bool)
    with evaluating(model):
        return record(lambda: model.predict(ids, mask), ("encode",))


def _table(model: NextItemModel) -> Timeline:
    made: list[torch.Tensor] = []
    with evaluating(model):
        line = record(lambda: made.append(model.item_table()), ("table",))
    if len(line.live):
        return line
    return Timeline(line.stages, np.zeros((1, 1), np.int64), np.zeros(1, np.int64))
