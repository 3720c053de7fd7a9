"""One training loop, from the first batch to the last checkpoint."""

import dataclasses
import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from budgetrec.allocation import Allocation
from budgetrec.data.batches import Batch
from budgetrec.data.repeats import should_keep_seen
from budgetrec.data.store import Dataset
from budgetrec.errors import InterruptedRunError, NotFiniteError, TrainingError
from budgetrec.files import check_free, claim, new_folder, remove_partial
from budgetrec.memory import steady_heap
from budgetrec.memory.budget import MemoryWatch, evaluation_block_bytes
from budgetrec.optimizers import learning_rate_factor, load_optimizer_tensors, optimizer_tensors
from budgetrec.ranking.validation import validate
from budgetrec.ranking.view import scoring_view
from budgetrec.runs.checkpoint import (
    generator_tensors,
    load_checkpoint,
    load_generators,
    load_model_tensors,
    model_tensors,
    save_checkpoint,
)
from budgetrec.runs.environment import write_environment
from budgetrec.runs.layout import BEST, FILES, LAST, METRICS_FILE
from budgetrec.runs.record import read_rows
from budgetrec.runs.run import Run, write_frame, write_run
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.device import training_device
from budgetrec.stepping.stepper import Stepper
from budgetrec.training.changes import Replan
from budgetrec.training.interruptions import polite_interrupts, told_when_memory_runs_out
from budgetrec.training.progress import Progress
from budgetrec.training.tracking import Tracker, Watcher
from budgetrec.units import format_bytes, parse_bytes

_SANITY_USERS = 64
_SAMPLER = "sampler."  # begins the names of a sampler's tensors in a checkpoint


def train(
    dataset: Dataset,
    output: Path,
    config: RunConfig,
    *,
    features: Tensor | None = None,
    documents: Mapping[str, str] | None = None,
    replan: Replan | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> Run:
    """Train a model on a prepared dataset and return the run, which is saved in the folder `output`.

    `features` (K, f) stand in for a trained table of item vectors. `documents` are texts by their file names,
    kept in the folder. `replan` is asked for another allocation as often as the settings say.
    """
    config.refuse_contradictions(has_features=features is not None)
    with claim(output):
        check_free(output, overwrite=overwrite, files=FILES)
        if config.training.keep_seen is None:  # decided once, for validation, evaluation and recommendations
            config = config.replaced({"keep_seen": should_keep_seen(dataset)})
        watcher = watcher or Watcher()
        with watcher.starting(), told_when_memory_runs_out():
            trainer = _Trainer(dataset, output, config, features, replan, watcher)
            trainer.begin(overwrite=overwrite, documents=documents or {})
        return trainer.run()


def resume(
    run: Run, config: RunConfig, *, replan: Replan | None = None, watcher: Watcher | None = None
) -> Run:
    """Continue a run that was interrupted or that ended, from its last checkpoint.

    `config` differs from the run's own in what `RESUMABLE` names, and in nothing else.
    """
    folder, watcher = run.folder, watcher or Watcher()
    with claim(folder):
        remove_partial(folder)
        remove_partial(folder / "checkpoint")
        with watcher.starting(), told_when_memory_runs_out():
            trainer = _Trainer(run.dataset, folder, config, run.features, replan, watcher)
            trainer.take_up()
        if not trainer.finished():
            for evaluation in folder.glob("evaluation-*"):  # of weights that will not be the best for long
                evaluation.unlink()
            write_run(folder, config, run.dataset, run.features)
        elif config != run.config:
            raise TrainingError(
                f"{folder} has {trainer.progress.step:,} steps already, so with {trainer.limits()} nothing "
                "is left to do. Pass larger numbers."
            )
        return trainer.run()


class _Trainer:
    """Everything that one run needs, built from its settings."""

    def __init__(
        self,
        dataset: Dataset,
        folder: Path,
        config: RunConfig,
        features: Tensor | None,
        replan: Replan | None,
        watcher: Watcher,
    ) -> None:
        training = config.training
        self.dataset, self.folder, self.config, self.features = dataset, folder, config, features
        self.replan, self.watcher = replan, watcher
        budget = None if training.memory is None else parse_bytes(training.memory)
        if budget is not None:
            steady_heap()
        self.memory = MemoryWatch(training_device(training), budget)
        self.stepper = Stepper(dataset, config, features)
        self.validation = dataset.validation()
        if len(self.validation) == 0:
            raise TrainingError("the dataset has no validation part. Prepare it with another split.")
        self.progress = Progress()
        self.told_of_excess = False
        self.total_steps = self._count_steps()
        self._learning_rate(0)  # refuse a schedule that cannot be followed before anything is written
        self.order_state = self._order.get_state()
        self.saved_step: int | None = None
        self.tracker = Tracker(folder, tensorboard=training.tensorboard)
        self.rows: list[dict[str, Any]] = []

    def begin(self, *, overwrite: bool, documents: Mapping[str, str]) -> None:
        """Write the folder of a run that has not taken a step, whole or not at all."""
        self.stepper.rehearse()
        row = self._evaluate()
        with new_folder(self.folder, overwrite=overwrite, files=FILES) as staging:
            (staging / "checkpoint").mkdir()
            write_run(staging, self.config, self.dataset, self.features)
            write_environment(staging)
            for name, text in documents.items():
                (staging / name).write_text(text, "utf-8")
            self._keep(row, staging)
            self._save(staging)

    def run(self) -> Run:
        """Train until a reason to stop."""
        training, progress, saved = self.config.training, self.progress, time.monotonic()
        try:
            with (
                polite_interrupts() as interrupted,
                self.watcher.watching(self.total_steps, training.seconds),
                self.tracker.writing(self.rows[-1]),
            ):
                while not self.finished():
                    self._begin_epoch()
                    self.order_state = self._order.get_state()
                    for batch in self.stepper.batches.epoch(self._order, skip=progress.batch):
                        self._step(batch)
                        due = time.monotonic() - saved > training.checkpoint_seconds
                        if progress.examples >= progress.next_evaluation or self.finished():
                            self._keep(self._evaluate(), self.folder)
                        elif interrupted() or due:
                            self._check_sane()
                        else:
                            continue
                        self._save(self.folder)
                        saved = time.monotonic()
                        if self.finished():
                            break
                        if interrupted():
                            raise self._interrupted(f"at step {progress.step:,}; everything is saved.")
        except KeyboardInterrupt:
            raise self._interrupted(f"at once; step {self.saved_step:,} is saved.") from None
        del self.stepper  # before the run is opened and needs memory of its own
        self.memory.trim()
        return Run.open(self.folder, dataset=self.dataset)

    @property
    def _order(self) -> torch.Generator:
        return self.stepper.generators["order"]

    def _step(self, batch: Batch) -> None:
        """Take one step of the optimisers."""
        begin = time.perf_counter()
        progress = self.progress
        learning_rate = self._learning_rate(progress.step)
        try:
            sums = self.stepper.step(batch, learning_rate)
        except NotFiniteError as error:
            raise self._diverged(progress.step + 1) from error
        progress.step += 1
        progress.batch += 1
        if progress.batch == len(self.stepper.batches):
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self.order_state = self._order.get_state()
        self._stay_within_memory(len(batch.ids))
        progress.examples += len(batch.ids)
        progress.targets += sums.num_targets
        progress.logits += sums.num_logits
        progress.loss_sum += sums.loss
        progress.loss_steps += 1
        progress.seconds += time.perf_counter() - begin
        self.watcher.step(
            step=progress.step,
            seconds=progress.seconds,
            examples=progress.examples,
            targets=progress.targets,
            loss=sums.loss,
            training_bytes=self.memory.growth(),
            peak_bytes=self.memory.peak(),
        )
        every = self.config.training.replan
        if self.replan is not None and every is not None and progress.step % every == 0:
            self._replan()

    def _stay_within_memory(self, batch_size: int) -> None:
        """Cut steps into smaller parts when the run has exceeded its budget."""
        excess = self.memory.excess()
        parts = self.stepper.num_parts
        if excess and self.stepper.split(batch_size):
            self.watcher.change(
                f"step {self.progress.step:,}: {format_bytes(excess)} above the budget of "
                f"{format_bytes(self.memory.budget_bytes or 0)}; steps are cut into "
                f"{self.stepper.micro_batches} parts from now on instead of {parts}, for the same result."
            )
        elif excess and not self.told_of_excess:
            self.told_of_excess = True
            self.watcher.change(
                f"step {self.progress.step:,}: {format_bytes(excess)} above the budget of "
                f"{format_bytes(self.memory.budget_bytes or 0)}, and steps cannot be cut any finer."
            )
        if excess:
            self.memory.forget_peak()
        self.progress.micro_batches = self.stepper.micro_batches

    def _begin_epoch(self) -> None:
        """Adopt a batch size that replanning has chosen."""
        size = self.progress.next_batch_size
        if size is not None and self.progress.batch == 0:
            self.progress.next_batch_size = None
            self._change(dataclasses.replace(self.stepper.allocation, batch_size=size))

    def _change(self, allocation: Allocation) -> None:
        self.progress.allocation = allocation
        self.stepper.change(allocation)
        self.total_steps = self._count_steps()

    def _replan(self) -> None:
        """Ask for another allocation; another batch size waits for the next epoch."""
        assert self.replan is not None  # noqa: S101 - looked at before
        change, now = self.replan(self.stepper), self.stepper.allocation
        if change.allocation is not None:
            if change.allocation.batch_size != now.batch_size:
                self.progress.next_batch_size = change.allocation.batch_size
            self._change(dataclasses.replace(change.allocation, batch_size=now.batch_size))
        self.watcher.change(f"step {self.progress.step:,}: {change.sentence}")

    def _count_steps(self) -> int | None:
        """Return the step at which the run ends at the latest, if it is known."""
        training, progress = self.config.training, self.progress
        limits = [] if training.steps is None else [training.steps]
        if training.ending_epochs is not None:
            begun = progress.step - progress.batch
            limits.append(begun + (training.ending_epochs - progress.epoch) * len(self.stepper.batches))
        return min(limits, default=None)

    def _evaluate(self) -> dict[str, Any]:
        """Make a row of metrics.parquet."""
        begin = time.perf_counter()
        progress = self.progress
        values = self._validate(self.config.training.validation_users)
        return {
            "step": progress.step,
            "epoch": progress.examples / self.stepper.batches.num_sequences,
            "examples": progress.examples,
            "targets": progress.targets,
            "logits": progress.logits,
            "seconds": progress.seconds,
            "evaluation_seconds": time.perf_counter() - begin,
            "train_loss": progress.loss_sum / progress.loss_steps if progress.loss_steps else None,
            **values,
            "learning_rate": self._learning_rate(progress.step),
            "batch_size": self.stepper.config.training.batch_size,
            "num_negatives": self.stepper.config.objective.num_negatives,
            "peak_bytes": self.memory.peak(),
            "training_bytes": self.memory.growth(),
        }

    def _validate(self, max_users: int | None) -> dict[str, float]:
        view = scoring_view(self.stepper.model, self.config.objective)
        self.memory.trim()
        try:
            return validate(
                view,
                self.dataset,
                self.validation,
                keep_seen=bool(self.config.training.keep_seen),
                max_users=max_users,
                block_bytes=evaluation_block_bytes(self.memory.budget_bytes),
            )
        except NotFiniteError as error:
            raise self._diverged(self.progress.step) from error

    def _check_sane(self) -> None:
        """Check that the weights still give scores, on a few users, before they replace good ones."""
        self._validate(_SANITY_USERS)

    def _keep(self, row: dict[str, Any], folder: Path) -> None:
        """Record a row, and save the weights if they are the best so far."""
        training, progress = self.config.training, self.progress
        self.rows.append(row)
        write_frame(folder / METRICS_FILE, pl.DataFrame(self.rows, infer_schema_length=None))
        progress.loss_sum, progress.loss_steps = 0.0, 0
        spacing = training.evaluate_every or self.stepper.batches.num_sequences
        progress.next_evaluation = max(
            (progress.examples // spacing + 1) * spacing,
            math.ceil(progress.examples * (1 + training.evaluation_growth)),
        )
        value = -row[training.metric] if training.metric == "val_loss" else row[training.metric]
        if progress.best is None or value > progress.best:
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
            save_checkpoint(folder / BEST, model_tensors(self.stepper.model), {"step": progress.step})
        else:
            progress.stale += 1
        self.tracker.write(row)
        self.watcher.evaluation(row)

    def limits(self) -> str:
        """Name what ends the run."""
        training = self.config.training
        names = ("epochs", "steps", "seconds", "patience")
        given = [f"{name} {getattr(training, name)}" for name in names if getattr(training, name) is not None]
        return ", ".join(given) or f"epochs {training.ending_epochs}"

    def finished(self) -> bool:
        """Say whether there is a reason to stop."""
        training, progress = self.config.training, self.progress
        return (
            (self.total_steps is not None and progress.step >= self.total_steps)
            or (training.seconds is not None and progress.seconds >= training.seconds)
            or (training.patience is not None and progress.stale >= training.patience)
        )

    def _learning_rate(self, step: int) -> float:
        optimizer = self.config.optimizer
        return optimizer.learning_rate * learning_rate_factor(
            step,
            schedule=optimizer.schedule,
            warmup_steps=optimizer.warmup_steps,
            total_steps=self.total_steps,
        )

    def _interrupted(self, when: str) -> InterruptedRunError:
        command = shlex.join(["budgetrec", "train", "--resume", str(self.folder)])
        return InterruptedRunError(f"interrupted {when}", command)

    def _diverged(self, step: int) -> TrainingError:
        kept = "" if self.saved_step is None else f" The last good checkpoint is of step {self.saved_step:,}."
        return TrainingError(
            f"the loss became NaN or infinite at step {step:,} with learning rate "
            f"{self._learning_rate(max(step - 1, 0)):g}. Lower --learning-rate, add --warmup-steps, or pass "
            f"--clip-norm 1.{kept}"
        )

    def _save(self, folder: Path) -> None:
        """Write the last checkpoint; everything that decides the next step is in it."""
        tensors = {
            **model_tensors(self.stepper.model),
            **optimizer_tensors(self.stepper.optimizers, self.stepper.names),
            **generator_tensors(self.stepper.generators),
            # The order of a half-done epoch is drawn again, from the state that it was drawn from.
            "generator.order": self.order_state,
        }
        if self.stepper.lasting_sampler is not None:
            state = self.stepper.lasting_sampler.state()
            tensors |= {f"{_SAMPLER}{name}": tensor for name, tensor in state.items()}
        save_checkpoint(folder / LAST, tensors, self.progress.to_dict())
        self.saved_step = self.progress.step

    def take_up(self) -> None:
        """Continue where the last checkpoint left off."""
        path = self.folder / LAST
        tensors, state = load_checkpoint(path)
        load_model_tensors(self.stepper.model, tensors, path)
        load_optimizer_tensors(self.stepper.optimizers, self.stepper.names, tensors)
        load_generators(self.stepper.generators, tensors)
        self.order_state = self._order.get_state()
        try:
            self.progress = Progress.from_dict(state, self.stepper.allocation)
        except (TypeError, ValueError, AttributeError) as error:
            raise TrainingError(f"{path} is damaged: {error}. Train again.") from error
        self.saved_step = self.progress.step
        self.stepper.steps = self.progress.step
        if self.progress.allocation is not None:
            self.stepper.change(self.progress.allocation)
        if self.progress.batch >= len(self.stepper.batches):
            raise TrainingError(
                f"{path} is at batch {self.progress.batch:,} of an epoch, which has "
                f"{len(self.stepper.batches):,}: run.toml was changed. Restore it, or train again."
            )
        if self.progress.micro_batches is not None:  # a run without a step yet has those of its settings
            self.stepper.micro_batches = self.progress.micro_batches
        self.total_steps = self._count_steps()
        if self.stepper.lasting_sampler is not None:
            kept = {
                name.removeprefix(_SAMPLER): tensors[name] for name in tensors if name.startswith(_SAMPLER)
            }
            self.stepper.lasting_sampler.load_state(kept)
        self.rows = read_rows(self.folder, self.progress.step)
