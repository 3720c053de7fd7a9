"""The gradient noise of a trained model's output layer, measured by drawing negatives, against the law.

The model's own states over a sample of training sequences are the population; its mean gradient is the true
one. Each repeat draws sequences of the population and negatives, and the squared distance of its corrected
gradient from the true one is the noise. The law sees only its constants, from other sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.models import SASRec
from budgetrec.models.contract import SequenceModel
from budgetrec.runs.run import Run
from budgetrec.study.engine.outputs import Progress
from budgetrec.study.engine.scale import Scale, by_scale
from budgetrec.study.variance.study import Setting, World, mean_noise, uniform_layer
from budgetrec.theory.constants import measure_constants
from budgetrec.theory.noise import predict_noise

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The size of a study; each sequence gives as many targets as the others, drawn from its positions."""

    num_sequences: int
    num_probe_sequences: int
    targets_per_sequence: int
    batch_sizes: tuple[int, ...]
    num_negatives: tuple[int, ...]
    num_repeats: int


GRIDS = by_scale(
    Grid,
    num_sequences=(64, 384, 1024),
    num_probe_sequences=(24, 96, 128),
    targets_per_sequence=(6, 16, 32),
    batch_sizes=((4,), (16, 64), (16, 64, 256)),
    num_negatives=((16, 32), (32, 128, 512), (32, 128, 512, 2048)),
    num_repeats=(30, 100, 300),
)


def count_cells(scale: Scale) -> int:
    """Count the rows of the study."""
    grid = GRIDS[scale]
    return 3 * len(grid.batch_sizes) * len(grid.num_negatives)


def study_trained(run: Run, *, scale: Scale, seed: int, progress: Progress) -> pl.DataFrame:
    """Measure every cell of the scale; a row for each, with what was measured and what was predicted."""
    model, dataset, objective = run.network, run.dataset, run.config.objective
    if not isinstance(model, SASRec) or objective.cosine or objective.temperature != 1:
        raise ArgumentError(
            f"{run.folder} is not a SASRec whose logits are plain products. Pass a run of one."
        )
    grid, generator = GRIDS[scale], np.random.default_rng(seed)
    features, targets = _states(model, dataset, grid, seed)
    table = model.item_table().detach().double().numpy()
    probe, population = slice(grid.num_probe_sequences), slice(grid.num_probe_sequences, None)
    layer = uniform_layer(
        features[probe].reshape(-1, table.shape[1]),
        targets[probe].reshape(-1),
        table,
        grid.targets_per_sequence,
    )
    constants = measure_constants(layer, generator=generator)
    rows = _measure(features[population], targets[population], table, grid, generator, progress)
    frame = pl.DataFrame(list(rows))
    points = ("batch_size", "num_targets", "num_negatives", "num_groups")
    law = [
        float(predict_noise(constants, **{name: row[name] for name in points}).total)
        for row in frame.iter_rows(named=True)
    ]
    return frame.with_columns(law=pl.Series(law)).with_columns(
        law_error=pl.col("law") / pl.col("measured") - 1
    )


@torch.inference_mode()
def _states(
    model: SequenceModel, dataset: Dataset, grid: Grid, seed: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Return states (sequences, m, d) and targets (sequences, m) of sequences that are long enough."""
    generator = torch.Generator().manual_seed(seed)
    wanted = grid.num_sequences + grid.num_probe_sequences
    # At random: with batches of similar length, the probe would see other sequences than the steps.
    batches = TrainingBatches(dataset, batch_size=64, max_length=model.max_length, group_by_length=False)
    states, targets = [], []
    for batch in batches.epoch(generator):
        hidden = model(batch.ids, batch.mask)
        for row, length in enumerate(batch.mask.sum(1).tolist()):
            if length >= grid.targets_per_sequence:
                places = torch.randperm(length, generator=generator)[: grid.targets_per_sequence]
                states.append(hidden[row, places].double().numpy())
                targets.append(batch.targets[row, places].numpy())
        if len(states) >= wanted:
            return np.stack(states[:wanted]), np.stack(targets[:wanted])
    raise ArgumentError(
        f"only {len(states)} training sequences have {grid.targets_per_sequence} targets, and {wanted} are "
        "needed. Pass a smaller --scale or a run on more data."
    )


def _measure(
    features: Floats,
    targets: NDArray[np.int64],
    table: Floats,
    grid: Grid,
    generator: np.random.Generator,
    progress: Progress,
) -> Iterator[dict[str, object]]:
    world = World(Setting(name="trained"), table)
    length, dim = grid.targets_per_sequence, table.shape[1]
    truth = _true_gradient(features.reshape(-1, dim), targets.reshape(-1), table)
    for batch_size in grid.batch_sizes:
        count = batch_size * length
        for sharing, groups in (("shared", 1), ("per sequence", batch_size), ("per target", count)):
            for k in grid.num_negatives:
                noise = np.empty(grid.num_repeats)
                for repeat in range(grid.num_repeats):
                    chosen = generator.integers(0, len(features), batch_size)
                    x, y = features[chosen].reshape(-1, dim), targets[chosen].reshape(-1)
                    step = world.step_gradient(
                        (x, y, x @ table.T), num_negatives=k, num_groups=groups, generator=generator
                    )
                    noise[repeat] = np.square(step - truth).sum()
                progress(1)
                yield {
                    "sharing": sharing,
                    "batch_size": batch_size,
                    "num_targets": count,
                    "num_negatives": k,
                    "num_groups": groups,
                    **mean_noise(noise),
                }


def _true_gradient(features: Floats, targets: NDArray[np.int64], table: Floats) -> Floats:
    """Return the full softmax's gradient of the table over the population, (K, d)."""
    gradient = np.zeros_like(table)
    for start in range(0, len(features), 1024):
        x, y = features[start : start + 1024], targets[start : start + 1024]
        logits = x @ table.T
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(len(y)), y] -= 1
        gradient += shares.T @ x
    return gradient / len(features)
