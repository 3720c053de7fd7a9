"""A tiny dataset from lists, and a model whose scores can be worked out by hand."""

import numpy as np
import polars as pl
import torch
from torch import nn

from budgetrec.data.store import Dataset


def dataset_of(sequences, *, num_items):
    """Hold out the last item of each sequence for the test and the one before for validation."""
    lengths = [len(sequence) for sequence in sequences]
    offsets = np.cumsum([0, *lengths])
    items = np.array([item for sequence in sequences for item in sequence], np.int32)
    stops = offsets[1:] - 2
    counts = np.zeros(num_items, np.int64)
    for begin, stop in zip(offsets[:-1], stops, strict=True):
        np.add.at(counts, items[begin:stop], 1)
    return Dataset(
        items=items,
        offsets=offsets.astype(np.int64),
        train_stops=stops.astype(np.int64),
        validation_targets=(offsets[1:] - 2).astype(np.int64),
        test_targets=(offsets[1:] - 1).astype(np.int64),
        user_labels=pl.Series([f"user {u}" for u in range(len(sequences))]),
        item_labels=pl.Series([f"item {i}" for i in range(num_items)]),
        train_counts=counts,
        info={"statistics": {}, "split": {"name": "leave-one-out"}, "steps": [], "source": {}},
    )


def random_dataset(random, *, num_users, num_items, longest=30):
    """Draw sequences of 3 to `longest` items; items may come again."""
    lengths = random.integers(3, longest + 1, num_users)
    return dataset_of(
        [random.integers(0, num_items, length).tolist() for length in lengths], num_items=num_items
    )


class AverageModel(nn.Module):
    """The state of a history is the sum of its items' input vectors over `max_length`."""

    def __init__(self, inputs, outputs, *, max_length=5):
        super().__init__()
        self.inputs = nn.Parameter(torch.as_tensor(inputs, dtype=torch.float32))
        self.outputs = nn.Parameter(torch.as_tensor(outputs, dtype=torch.float32))
        self.dropout = nn.Dropout(0.5)
        self.max_length = max_length

    def predict(self, ids, mask):
        """Return the states (n, d)."""
        return self.dropout((self.inputs[ids] * mask[..., None]).sum(1) / self.max_length)

    def item_table(self):
        """Return the output vectors (K, d)."""
        return self.outputs


def random_model(random, *, num_items, dim=8, max_length=5):
    """Draw both tables."""
    return AverageModel(
        random.normal(size=(num_items, dim)), random.normal(size=(num_items, dim)), max_length=max_length
    )


def constant_model(scores, *, max_length=5):
    """Return every history the same scores."""
    scores = np.asarray(scores, float)
    model = AverageModel(np.zeros((len(scores), 1)), scores[:, None], max_length=max_length)
    model.predict = lambda ids, mask: torch.ones(len(ids), 1)
    return model
