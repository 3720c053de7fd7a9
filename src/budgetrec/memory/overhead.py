"""What a process needs for training besides tensors: code of libraries, their workspaces, threads.

It is measured, not guessed: a child process trains a small model for a few steps, evaluates it, releases it
and the holes of its heap, and reports how much it has grown all the same.
"""

import subprocess
import sys
from functools import lru_cache

import lightning_fabric  # noqa: F401 - the trainer's libraries are there before memory is measured
import numpy as np
import polars as pl
import safetensors.torch  # noqa: F401 - see above
import torch

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import TrainingError
from budgetrec.memory.budget import release_memory
from budgetrec.memory.heap import steady_heap
from budgetrec.memory.peaks import resident_bytes
from budgetrec.memory.run_parts import optimizer_maker
from budgetrec.ranking.ranks import rank_targets
from budgetrec.settings.build import build_model, build_objective, build_sampler
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.gradients import accumulate_gradients, gather_in_place

_USERS, _LENGTH, _ITEMS = 400, 40, 2000
_STEPS = 5


@lru_cache(maxsize=1)
def measure_overhead(*, threads: int | None = None) -> int:
    """Return the bytes by which a training process on this CPU grows beyond its tensors; takes seconds."""
    command = [sys.executable, "-m", __name__, *([str(threads)] if threads else [])]
    child = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TrainingError(f"the overhead of training cannot be measured: {reason}.")
    return int(child.stdout)


def main() -> None:
    """Train a little, and print the overhead."""
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    config = RunConfig().replaced({"table_updates": "dense", "num_negatives": 64, "max_length": _LENGTH})
    steady_heap()
    dataset = _dataset()
    device = torch.device("cpu")
    before = resident_bytes(device)
    _train(config, dataset)
    release_memory()
    sys.stdout.write(str(max(0, resident_bytes(device) - before)))


def _train(config: RunConfig, dataset: Dataset) -> None:
    generator = torch.Generator().manual_seed(0)
    model = build_model(config.model, _ITEMS, features=None, generator=generator)
    sampler = build_sampler(
        config.objective,
        num_items=_ITEMS,
        train_counts=dataset.train_counts,
        target_counts=lambda num_slots: dataset.train_counts.astype(np.float64),
        item_table=model.item_table,
    )
    objective = build_objective(config.objective, _ITEMS, sampler)
    row_gradients = gather_in_place(model, sparse=False)
    optimizers = optimizer_maker(config.optimizer, "dense")(
        list(model.parameters()), [g.weight for g in row_gradients]
    )
    batches = TrainingBatches(dataset, batch_size=32, max_length=_LENGTH, group_by_length=False)
    for _, batch in zip(range(_STEPS), batches.epoch(generator), strict=False):
        for gradients in row_gradients:
            gradients.begin()
        accumulate_gradients(
            model,
            objective,
            batch,
            micro_batches=None,
            last_only=False,
            generator=generator,
            backward=torch.Tensor.backward,
        )
        for gradients in row_gradients:
            gradients.finish()
        for optimizer in optimizers:
            optimizer.step()
    rank_targets(model, dataset, dataset.validation())


def _dataset() -> Dataset:
    """Make sequences of random items, the last of each for validation."""
    items = np.random.default_rng(0).integers(_ITEMS, size=_USERS * _LENGTH).astype(np.int32)
    offsets = np.arange(_USERS + 1, dtype=np.int64) * _LENGTH
    return Dataset(
        items=items,
        offsets=offsets,
        train_stops=offsets[1:] - 1,
        validation_targets=offsets[1:] - 1,
        test_targets=offsets[:0],
        user_labels=pl.Series("user", np.arange(_USERS)),
        item_labels=pl.Series("item", np.arange(_ITEMS)),
        train_counts=np.bincount(items, minlength=_ITEMS),
        info={},
    )


if __name__ == "__main__":
    main()
