"""A model with its objective and its optimisers, built from settings: everything that takes a step.

Training takes steps until it has a reason to stop; the planner takes a few to see how long they last.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.allocation import Allocation
from budgetrec.data.batches import Batch, TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import BudgetrecError, TrainingError, first_line
from budgetrec.models import SequenceModel
from budgetrec.models.layers import seed_dropout
from budgetrec.optimizers import choose_table_updates, make_optimizers, set_learning_rate
from budgetrec.samplers.contract import LastingSampler
from budgetrec.samplers.target_counts import count_targets
from budgetrec.settings.build import build_model, build_objective, build_sampler
from budgetrec.settings.sections import RunConfig, TrainingConfig, check_table_updates
from budgetrec.stepping.device import training_device
from budgetrec.stepping.gradients import (
    StepSums,
    accumulate_gradients,
    clip_gradients,
    gather_in_place,
    whole_gradient,
)

_COUNTED_TARGETS, _COUNTED_EPOCHS = 2**20, 32  # small data is counted over several epochs


class Stepper:
    """Takes steps; what it is made of can be looked at, and parts of it changed between steps.

    `micro_batches` is what a step is cut into; None leaves that to what is fastest. `model`, if given, stands
    in for the one that the settings name, and steps are those of a loop of one's own: nothing is cut, and
    gradients and optimisers are torch's own.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: RunConfig,
        features: Tensor | None = None,
        *,
        model: SequenceModel | None = None,
    ) -> None:
        training = config.training
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        self.dataset, self.config, self.features = dataset, config, features
        self.fabric = _make_fabric(training)
        self.device = self.fabric.device
        self.generators = _make_generators(training.seed, self.device)
        self.own_loop = model is not None
        if model is None:
            model = build_model(
                config.model, dataset.num_items, features=features, generator=self.generators["weights"]
            )
        self.model = model
        self.fabric.to_device(self.model)  # in place, as modules are moved
        seed_dropout(self.model, self.generators["dropout"])
        self.batches = self._make_batches()
        self.table_updates = resolve_table_updates(
            config,
            num_items=dataset.num_items,
            num_sequences=self.batches.num_sequences,
            num_targets=self.batches.num_targets,
            has_features=features is not None,
        )
        self._set_objective()
        sparse = self.table_updates == "row-sparse"
        self.row_gradients = [] if self.own_loop else gather_in_place(self.model, sparse=sparse)
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        optimizer = config.optimizer
        self.optimizers = make_optimizers(
            self.names,
            [gradients.weight for gradients in self.row_gradients],
            optimizer=optimizer.optimizer,
            table_updates=self.table_updates,
            learning_rate=optimizer.learning_rate,
            momentum=optimizer.momentum,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            fused=not self.own_loop,
        )
        self.forward = torch.compile(self.model, dynamic=True) if training.compile else None
        self.micro_batches = training.micro_batches
        self.num_parts = 1  # of the last step
        self.steps = 0

    def _make_batches(self) -> TrainingBatches:
        return TrainingBatches(
            self.dataset,
            batch_size=self.config.training.batch_size,
            max_length=self.config.model.max_length,
            windows=self.config.training.windows,
            group_by_length=False,  # batches are drawn at random, and sorted by length inside
        )

    def _count_targets(self, num_slots: int) -> NDArray[np.float64]:
        """Count how often items would fill slots that are drawn from each batch's targets."""
        epochs = min(max(_COUNTED_TARGETS // self.batches.num_targets, 1), _COUNTED_EPOCHS)
        last_only = self.config.training.targets == "last"

        def targets() -> Iterator[Tensor]:
            generator = torch.Generator().manual_seed(0)
            for _ in range(epochs):
                for batch in self.batches.epoch(generator):
                    inputs = self.model.training_inputs(batch, generator, last_only=last_only)
                    yield inputs.targets[inputs.target_mask]

        return count_targets(targets(), self.dataset.num_items, num_slots=num_slots)

    def _set_objective(self) -> None:
        config = self.config.objective
        self.sampler = build_sampler(
            config,
            num_items=self.dataset.num_items,
            train_counts=self.dataset.train_counts,
            target_counts=self._count_targets,
            item_table=self.model.item_table,
        )
        self.objective = build_objective(config, self.dataset.num_items, self.sampler)
        specification = config.sampler_specification
        self.lasting_sampler: LastingSampler | None = None
        if specification is not None and self.sampler is not None:
            self.lasting_sampler = specification.lasting(self.sampler)

    @property
    def allocation(self) -> Allocation:
        """How steps are taken now."""
        return dataclasses.replace(
            self.config.allocation, micro_batches=self.micro_batches, table_updates=self.table_updates
        )

    def change(self, allocation: Allocation) -> None:
        """Continue with another allocation; weights, optimisers and table updates stay.

        Another batch size shows from the next epoch's batches on.
        """
        self.config = self.config.replaced(allocation.settings)
        self.micro_batches = allocation.micro_batches
        if self.batches.batch_size != allocation.batch_size:
            self.batches = self._make_batches()
        self._set_objective()

    def gradient(self, batch: Batch) -> StepSums:
        """Set every parameter's gradient to that of a batch.

        Where a device has no memory left for that, the batch is cut into more parts until it has.
        """
        while True:
            states = self._generator_states()
            try:
                return self._gradient(batch)
            except torch.OutOfMemoryError:
                self._restore(states)  # draw the same negatives again
                if not self.split(len(batch.ids)):
                    raise
                torch.cuda.empty_cache()

    def split(self, batch_size: int) -> bool:
        """Cut steps into twice as many parts from now on, if that can be: same step, less memory."""
        parts = max(self.micro_batches or 1, self.num_parts)
        if self.own_loop or not self.objective.separable or parts >= batch_size:
            return False
        self.micro_batches = min(2 * parts, batch_size)
        return True

    def _gradient(self, batch: Batch) -> StepSums:
        self.model.train()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for gradients in self.row_gradients:
            gradients.begin()
        add = whole_gradient
        if not self.own_loop:
            add = partial(accumulate_gradients, micro_batches=self.micro_batches)
        sums = add(
            self.model,
            self.objective,
            Batch(*(self.fabric.to_device(part) for part in (batch.ids, batch.targets, batch.mask))),
            last_only=self.config.training.targets == "last",
            generator=self.generators["negatives"],
            backward=self.fabric.backward,
            autocast=self.fabric.autocast,
            forward=self.forward,
        )
        for gradients in self.row_gradients:
            gradients.finish()
        if self.config.optimizer.clip_norm is not None:
            clip_gradients(self.names, self.config.optimizer.clip_norm)
        self.num_parts = sums.num_parts
        return sums

    def step(self, batch: Batch, learning_rate: float) -> StepSums:
        """Take one step of the optimisers."""
        set_learning_rate(self.optimizers, learning_rate)
        sums = self.gradient(batch)
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1
        lasting = self.lasting_sampler
        if lasting is not None and self.steps % lasting.refresh_steps == 0:
            lasting.refresh(self.model.item_table().detach())
        return sums

    def rehearse(self) -> None:
        """Compute one gradient and forget it: settings that do not fit fail before anything is written."""
        states = self._generator_states()
        try:
            self.gradient(next(self.batches.epoch(self.generators["order"])))
        except Exception as error:
            if self.forward is None or isinstance(error, BudgetrecError):
                raise
            raise TrainingError(f"torch.compile failed: {first_line(error)}. Leave out --compile.") from error
        self._restore(states)

    def _generator_states(self) -> dict[str, Tensor]:
        return {name: generator.get_state() for name, generator in self.generators.items()}

    def _restore(self, states: dict[str, Tensor]) -> None:
        for name, generator in self.generators.items():
            generator.set_state(states[name])


def resolve_table_updates(
    config: RunConfig, *, num_items: int, num_sequences: int, num_targets: int, has_features: bool
) -> str:
    """Say how the item table is updated, "dense" or "row-sparse".

    `num_sequences` and `num_targets` are those of an epoch.
    """
    wanted, objective, training = config.optimizer.table_updates, config.objective, config.training
    if not objective.specification.draws or has_features:
        check_table_updates(config, has_features=has_features)
        return "dense"
    if wanted != "auto":
        return wanted
    batch_size = min(training.batch_size, num_sequences)
    num_inputs = num_targets * batch_size // num_sequences
    scored = batch_size if training.targets == "last" else num_inputs
    num_groups = {"batch": 1, "sequence": batch_size, "target": scored}[objective.sharing]
    touched = num_inputs + scored + num_groups * objective.num_negatives
    return choose_table_updates(num_items=num_items, dim=config.model.dim, rows_touched=touched)


def _make_fabric(training: TrainingConfig) -> Fabric:
    kind = training_device(training).type
    if training.precision == "bf16-mixed" and kind == "cpu":
        _check_bfloat16()
    precision: Any = training.precision
    return Fabric(accelerator=kind, devices=1, precision=precision)


def _check_bfloat16() -> None:
    """Multiply two small matrices in a process of its own: some processors die of an illegal instruction."""
    code = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    probe = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # noqa: S603
    if probe.returncode:
        raise TrainingError(
            "this processor cannot multiply bfloat16 with this torch. Pass --precision 32-true."
        )


def _make_generators(seed: int, device: torch.device) -> dict[str, torch.Generator]:
    """Make a generator for each use, so that a change in one leaves the draws of the others alone."""
    places: dict[str, str | torch.device] = {
        "weights": "cpu",
        "order": "cpu",
        "negatives": device,
        "dropout": device,
    }
    seeds = np.random.SeedSequence(seed).generate_state(len(places), np.uint64)
    return {
        name: torch.Generator(place).manual_seed(int(own >> np.uint64(1)))
        for (name, place), own in zip(places.items(), seeds, strict=True)
    }
