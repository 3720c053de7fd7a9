"""What a rehearsal needs of a run's settings: a model, an objective, optimisers and windows."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from budgetrec.data.batches import Batch
from budgetrec.errors import ArgumentError
from budgetrec.memory.distinct import Frequencies
from budgetrec.memory.dry_run import Asked
from budgetrec.memory.rehearsal import Stand
from budgetrec.memory.shapes import Windows
from budgetrec.models.contract import SequenceModel
from budgetrec.objectives.contract import Objective
from budgetrec.optimizers import make_optimizers
from budgetrec.settings.build import build_objective, build_sampler
from budgetrec.settings.sections import OptimizerConfig, RunConfig
from budgetrec.stepping.gradients import gather_in_place

_SAMPLE = 1024  # windows that a model of one's own is asked about


def stand_for(model: SequenceModel, config: RunConfig, *, sparse: bool) -> Stand:
    """Return a model to rehearse with."""
    last_only = config.training.targets == "last"
    return Stand(model, gather_in_place(model, sparse=sparse), last_only, _autocast(config))


def own_stand(model: SequenceModel, config: RunConfig) -> Stand:
    """Return a model of one's own to rehearse a loop of one's own with."""
    last_only = config.training.targets == "last"
    return Stand(model, [], last_only, _autocast(config), own_loop=True)


def objective_for(asked: Asked, config: RunConfig, model: SequenceModel) -> Objective:
    """Return the objective of a rehearsal."""
    settings = replace(config.objective, num_negatives=asked.num_negatives)
    sampler = build_sampler(
        settings,
        num_items=model.num_items,
        train_counts=np.ones(model.num_items, np.int64),
        target_counts=lambda num_slots: np.ones(model.num_items),
        item_table=model.item_table,
    )
    return build_objective(settings, model.num_items, sampler, block_bytes=asked.block_bytes)


def is_sparse(config: RunConfig, *, with_features: bool) -> bool:
    """Say whether only the rows of the item table that a step touches are updated."""
    updates = config.optimizer.table_updates
    if updates == "auto":
        raise ArgumentError("table_updates is auto; pass dense or row-sparse, as memory depends on it.")
    return updates == "row-sparse" and config.objective.specification.draws and not with_features


def is_separable(config: RunConfig) -> bool:
    """Return whether a batch may be cut: see `Objective.separable`."""
    sampler = config.objective.sampler_specification
    return config.objective.specification.separable and not (sampler is not None and sampler.adaptive)


def frequencies_of(config: RunConfig, train_counts: NDArray[np.int64] | None) -> Frequencies | None:
    """Return how often items are drawn, where that is by their number of interactions."""
    specification = config.objective.sampler_specification
    if train_counts is None or specification is None or not specification.by_counts:
        return None
    sampler = build_sampler(
        replace(config.objective, num_negatives=1),
        num_items=len(train_counts),
        train_counts=train_counts,
        target_counts=lambda num_slots: train_counts.astype(np.float64),
        item_table=lambda: torch.zeros(len(train_counts), 1),
    )
    log_q = None if sampler is None else specification.proposal(sampler)
    return None if log_q is None else Frequencies.by_weight(log_q.double().exp().numpy())


def optimizer_maker(
    optimizer: OptimizerConfig, updates: str, *, fused: bool = True
) -> Callable[..., list[Optimizer]]:
    """Return what makes the optimisers of a run."""

    def make(parameters: list[nn.Parameter], tables: list[nn.Parameter]) -> list[Optimizer]:
        return make_optimizers(
            parameters,
            tables,
            optimizer=optimizer.optimizer,
            table_updates=updates,
            learning_rate=optimizer.learning_rate,
            momentum=optimizer.momentum,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            fused=fused,
        )

    return make


def _autocast(config: RunConfig) -> Callable[[], AbstractContextManager[object]]:
    """Stand in for mixed precision with a type of the same size that every processor can multiply."""
    if config.training.precision == "32-true":
        return nullcontext
    return lambda: torch.autocast("cpu", torch.float16)


def windows_of(model: SequenceModel, lengths: NDArray[np.int64], last_only: bool) -> Windows:
    """Say what the model reads and predicts of windows, given how many targets each has."""
    if len(lengths) == 0:
        raise ArgumentError("there are no training windows; pass the targets of each.")
    if type(model).training_inputs is SequenceModel.training_inputs:
        return Windows(lengths, np.ones_like(lengths) if last_only else lengths)
    generator, random = torch.Generator().manual_seed(0), np.random.default_rng(0)
    chosen = np.sort(random.choice(lengths, min(_SAMPLE, len(lengths)), replace=False))
    positions, targets = [], []
    for some in np.array_split(chosen, max(1, len(chosen) // 64)):
        mask = torch.arange(int(some.max())) < torch.from_numpy(some)[:, None]
        ids: Tensor = torch.zeros(mask.shape, dtype=torch.int64)
        inputs = model.training_inputs(Batch(ids, ids, mask), generator, last_only=last_only)
        positions.append(inputs.mask.sum(1).numpy())
        targets.append(inputs.target_mask.sum(1).numpy())
    return Windows(np.concatenate(positions), np.concatenate(targets))
