"""A plan in a training loop of one's own: its batches, its objective, and an evaluation within its bytes."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from budgetrec.data.batches import Batch, TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import PlanError
from budgetrec.memory.budget import evaluation_block_bytes
from budgetrec.memory.heap import LARGE_BYTES_OF_OWN, steady_heap, trim_heap
from budgetrec.models.own_model import complete
from budgetrec.objectives.contract import Objective
from budgetrec.planner.plan import Plan
from budgetrec.ranking.validation import validate
from budgetrec.ranking.view import scoring_view
from budgetrec.samplers.target_counts import count_targets
from budgetrec.settings.build import build_objective, build_sampler
from budgetrec.settings.sections import RunConfig


class PlannedBatches(TrainingBatches):
    """Batches of a plan. Between two of them, holes in the heap are handed back to the system."""

    def epoch(self, generator: torch.Generator, *, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of one epoch as `TrainingBatches.epoch` does."""
        for batch in super().epoch(generator, skip=skip):
            trim_heap()
            yield batch


def own_batches(plan: Plan, dataset: Dataset) -> PlannedBatches:
    """Return batches as the plan's bytes were counted for; from here on the heap is held steady."""
    config = own_config(plan)
    steady_heap(LARGE_BYTES_OF_OWN)
    return PlannedBatches(
        dataset,
        batch_size=config.training.batch_size,
        max_length=config.model.max_length,
        windows=config.training.windows,
        group_by_length=False,  # batches are drawn at random: so the noise law has it
    )


def own_objective(plan: Plan, dataset: Dataset) -> Objective:
    """Return the objective as the plan's bytes were counted for."""
    config = own_config(plan).objective

    def count(num_slots: int) -> NDArray[np.float64]:
        batches = own_batches(plan, dataset).epoch(torch.Generator().manual_seed(0))
        targets = (batch.targets[batch.mask] for batch in batches)
        return count_targets(targets, dataset.num_items, num_slots=num_slots)

    sampler = build_sampler(
        config,
        num_items=dataset.num_items,
        train_counts=dataset.train_counts,
        target_counts=count,
        item_table=lambda: torch.zeros(dataset.num_items, 1),  # no sampler that looks at it is planned for
    )
    return build_objective(config, dataset.num_items, sampler)


def own_validation(plan: Plan, model: nn.Module, dataset: Dataset) -> dict[str, float]:
    """Rank the validation part with a model of one's own, within the plan's bytes."""
    config = own_config(plan)
    ready = complete(model, num_items=dataset.num_items, max_length=config.model.max_length)
    trim_heap()
    return validate(
        scoring_view(ready, config.objective),
        dataset,
        dataset.validation(),
        block_bytes=evaluation_block_bytes(plan.budget_bytes),
    )


def own_config(plan: Plan) -> RunConfig:
    """Return the settings of a plan for a model of one's own; refuse plans for ours."""
    if plan.own_model is None:
        raise PlanError(
            f"the plan is for {plan.made_for.get('model', 'a model of ours')} as budgetrec trains it, which "
            "cuts steps; for a loop of your own, plan with budgetrec.plan(dataset, memory=..., model=...)."
        )
    return RunConfig().replaced({name: value for name, value in plan.settings.items() if name != "model"})
