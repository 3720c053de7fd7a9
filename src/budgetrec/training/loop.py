"""One training loop, from the first batch to the last checkpoint."""

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import torch
from torch import Tensor

from budgetrec.data.batches import Batch
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, InterruptedRunError, NotFiniteError, TrainingError
from budgetrec.files import check_free, new_folder, remove_partial
from budgetrec.memory import steady_heap
from budgetrec.memory.budget import MemoryWatch, evaluation_block_bytes
from budgetrec.optimizers import learning_rate_factor, load_optimizer_tensors, optimizer_tensors
from budgetrec.planner.kinds import Kind
from budgetrec.planner.making import Data, Planner, probe_noise
from budgetrec.planner.record import Plan
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
from budgetrec.runs.layout import BEST, FILES, LAST, METRICS_FILE, PLAN
from budgetrec.runs.run import Run, write_frame, write_run
from budgetrec.samplers import QuadraticKernel
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper, training_device
from budgetrec.training.tracking import Tracker, Watcher
from budgetrec.units import format_bytes, parse_bytes

DEFAULT_EPOCHS = 20
_SANITY_USERS = 64
_WORTH_A_CHANGE = 0.05  # of the time to the same loss; a smaller gain may be an error of measurement
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "storage size")


@dataclass
class Progress:
    """Where a run is; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    examples: int = 0
    targets: int = 0
    logits: int = 0
    seconds: float = 0.0  # of training, evaluation and saving apart
    next_evaluation: int = 0  # in examples
    loss_sum: float = 0.0  # since the last evaluation
    loss_steps: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    micro_batches: int | None = None  # where steps had to be cut finer than was asked for
    allocation: dict[str, Any] = dataclasses.field(default_factory=dict)  # what replanning changed
    next_batch_size: int | None = None  # from the next epoch on


def train(
    dataset: Dataset | Path | str,
    output: Path | str,
    config: RunConfig | None = None,
    *,
    features: Tensor | None = None,
    plan: Plan | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a prepared dataset and give the run, which is saved in the folder `output`.

    `settings` are those of the command line, such as `dim=64` and `epochs=5`; they win over `plan`, which
    wins over `config`. `features` (K, f) stand in for a trained table of item vectors.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    output = Path(output)
    check_free(output, overwrite=overwrite, files=FILES)
    chosen = config or RunConfig()
    if plan is not None:
        chosen = chosen.replaced({"memory": str(plan.budget_bytes), **plan.settings})
    chosen = chosen.replaced(settings)
    chosen.refuse_unused(settings)
    if chosen.training.replan is not None and plan is None:
        raise ArgumentError("replan changes a plan, and there is none. Pass --plan, or use budgetrec fit.")
    with _told_when_memory_runs_out():
        trainer = _Trainer(dataset, output, chosen, features, plan, watcher or Watcher())
        trainer.begin(overwrite=overwrite)
    return trainer.run()


def resume(
    folder: Path | str,
    *,
    dataset: Dataset | Path | str | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Go on with a run that was interrupted or that ended, from its last checkpoint.

    `dataset` says where the data is now, if it has moved. `settings` may change when the run stops and how
    often it saves, and nothing else: `epochs`, `steps`, `seconds`, `patience`, `checkpoint_seconds`.
    """
    folder = Path(folder)
    run = Run.open(folder, dataset=dataset, weights=None)
    config = run.config.replaced(settings)  # which refuses unknown names
    for name in sorted(settings.keys() - _MAY_CHANGE):
        raise ArgumentError(
            f"{name} cannot change in the middle of a run. Start another run, or change one of "
            f"{', '.join(sorted(_MAY_CHANGE))}."
        )
    remove_partial(folder)
    remove_partial(folder / "checkpoint")
    plan = Plan.read(folder / PLAN) if (folder / PLAN).is_file() else None
    with _told_when_memory_runs_out():
        trainer = _Trainer(run.dataset, folder, config, run.features, plan, watcher or Watcher())
        trainer.take_up()
    if not trainer.finished():
        for evaluation in folder.glob("evaluation-*"):  # of weights that will not be the best for long
            evaluation.unlink()
        write_run(folder, config, run.dataset, run.features)
    elif settings:
        raise TrainingError(
            f"{folder} has {trainer.progress.step:,} steps already, so with {trainer.limits()} nothing is "
            "left to do. Pass larger numbers."
        )
    return trainer.run()


_MAY_CHANGE = {"epochs", "steps", "seconds", "patience", "checkpoint_seconds"}


class _Trainer:
    """Everything that one run needs, built from its settings."""

    def __init__(
        self,
        dataset: Dataset,
        folder: Path,
        config: RunConfig,
        features: Tensor | None,
        plan: Plan | None,
        watcher: Watcher,
    ) -> None:
        training = config.training
        self.dataset, self.folder, self.config, self.features = dataset, folder, config, features
        self.plan, self.watcher = plan, watcher
        budget = None if training.memory is None else parse_bytes(training.memory)
        if budget is not None:
            steady_heap()
        self.memory = MemoryWatch(training_device(training), budget)
        self.stepper = Stepper(dataset, config, features)
        self.validation = dataset.validation()
        if len(self.validation) == 0:
            raise TrainingError("the dataset has no validation part. Prepare it with another split.")
        self.progress = Progress()
        self.planner: Planner | None = None
        self.told_of_excess = False
        self.total_steps = self._count_steps()
        self._learning_rate(0)  # refuse a schedule that cannot be followed before anything is written
        self.order_state = self._order.get_state()
        self.saved_step: int | None = None
        self.tracker = Tracker(folder, tensorboard=training.tensorboard)
        self.rows: list[dict[str, Any]] = []

    def begin(self, *, overwrite: bool) -> None:
        """Write the folder of a run that has not taken a step, whole or not at all."""
        self.stepper.rehearse()
        row = self._evaluate()
        with new_folder(self.folder, overwrite=overwrite, files=FILES) as staging:
            (staging / "checkpoint").mkdir()
            write_run(staging, self.config, self.dataset, self.features)
            write_environment(staging)
            if self.plan is not None:
                self.plan.write(staging / PLAN)
            self._keep(row, staging)
            self._save(staging)

    def run(self) -> Run:
        """Train until a reason to stop."""
        training, progress, saved = self.config.training, self.progress, time.monotonic()
        try:
            with (
                _polite_interrupts() as interrupted,
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
                            raise InterruptedRunError(
                                f"interrupted at step {progress.step:,}; everything is saved. "
                                f"Go on with: budgetrec train --resume {self.folder}"
                            )
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted at once; step {self.saved_step:,} is saved. "
                f"Go on with: budgetrec train --resume {self.folder}"
            ) from None
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
            peak_bytes=self.memory.peak(),
        )
        if self.config.training.replan is not None and progress.step % self.config.training.replan == 0:
            self._replan()

    def _stay_within_memory(self, batch_size: int) -> None:
        """Cut steps finer when the run has grown above its budget."""
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
        """Take over a batch size that replanning has chosen."""
        size = self.progress.next_batch_size
        if size is not None and self.progress.batch == 0:
            self.progress.next_batch_size = None
            self._change(batch_size=size)

    def _change(self, **allocation: Any) -> None:
        self.progress.allocation |= allocation
        self.stepper.change(**allocation)
        self.total_steps = self._count_steps()

    def _replan(self) -> None:
        """Measure the noise again, and change the allocation if that pays."""
        assert self.plan is not None  # noqa: S101 - refused before
        stepper, progress = self.stepper, self.progress
        if self.planner is None:
            lengths = stepper.batches.lengths
            width = None if self.features is None else self.features.shape[1]
            data = Data(
                num_items=self.dataset.num_items,
                lengths=lengths,
                features_width=width,
                train_counts=self.dataset.train_counts,
            )
            self.planner = Planner.of_plan(self.plan, self.config, data, device_type=stepper.device.type)
        constants, gradient, told = probe_noise(stepper)
        new = self.planner.plan(constants, gradient, told).plan
        objective, size = stepper.config.objective, stepper.config.training.batch_size
        now = Kind(
            objective=self.plan.objective,
            sharing=objective.sharing,
            lean=objective.lean,
            table_updates=self.plan.table_updates,
        )
        gain = self.planner.gain(new, now, size, objective.num_negatives, constants, gradient)
        if gain < _WORTH_A_CHANGE:
            self.watcher.change(f"step {progress.step:,}: planned again; the allocation stays.")
            return
        if new.batch_size != size:
            progress.next_batch_size = new.batch_size
        self._change(num_negatives=new.num_negatives, sharing=new.sharing, lean=new.lean)
        later = "" if new.batch_size == size else f", and n = {new.batch_size:,} from the next epoch on"
        self.watcher.change(
            f"step {progress.step:,}: planned again; k = {new.num_negatives:,} a {new.sharing}{later}: "
            f"{gain:.0%} less time to the same loss than n = {size:,}, k = {objective.num_negatives:,} a "
            f"{objective.sharing}."
        )

    def _count_steps(self) -> int | None:
        """Return the step at which the run ends at the latest, if it is known."""
        training, progress = self.config.training, self.progress
        epochs = training.epochs
        if (
            epochs is None
            and training.steps is None
            and training.seconds is None
            and training.patience is None
        ):
            epochs = DEFAULT_EPOCHS
        limits = [] if training.steps is None else [training.steps]
        if epochs is not None:
            begun = progress.step - progress.batch
            limits.append(begun + (epochs - progress.epoch) * len(self.stepper.batches))
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
                max_users=max_users,
                block_bytes=evaluation_block_bytes(self.memory.budget_bytes),
            )
        except NotFiniteError as error:
            raise self._diverged(self.progress.step) from error

    def _check_sane(self) -> None:
        """See that the weights still give scores, on a few users, before they replace good ones."""
        self._validate(_SANITY_USERS)

    def _keep(self, row: dict[str, Any], folder: Path) -> None:
        """Write a row down, and the weights if they are the best so far."""
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
        return ", ".join(given) or f"epochs {DEFAULT_EPOCHS}"

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
        if isinstance(self.stepper.sampler, QuadraticKernel):
            tensors["sampler.vectors"] = self.stepper.sampler.vectors()
        save_checkpoint(folder / LAST, tensors, dataclasses.asdict(self.progress))
        self.saved_step = self.progress.step

    def take_up(self) -> None:
        """Take over where the last checkpoint left off."""
        path = self.folder / LAST
        tensors, state = load_checkpoint(path)
        load_model_tensors(self.stepper.model, tensors, path)
        load_optimizer_tensors(self.stepper.optimizers, self.stepper.names, tensors)
        load_generators(self.stepper.generators, tensors)
        self.order_state = self._order.get_state()
        try:
            self.progress = Progress(**state)
        except TypeError as error:
            raise TrainingError(f"{path} is damaged: {error}. Train again.") from error
        self.saved_step = self.progress.step
        self.stepper.steps = self.progress.step
        self.stepper.micro_batches = self.progress.micro_batches
        if self.progress.allocation:
            self.stepper.change(**self.progress.allocation)
        self.total_steps = self._count_steps()
        if isinstance(self.stepper.sampler, QuadraticKernel):
            self.stepper.update_sampler(tensors["sampler.vectors"].to(self.stepper.device))
        rows = pl.read_parquet(self.folder / METRICS_FILE).filter(pl.col("step") <= self.progress.step)
        self.rows = rows.to_dicts()


@contextmanager
def _told_when_memory_runs_out() -> Iterator[None]:
    """Turn a failed allocation, in whatever words, into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError, torch.OutOfMemoryError) as error:
        words = str(error).lower()
        if isinstance(error, RuntimeError) and not any(part in words for part in _OUT_OF_MEMORY):
            raise
        raise TrainingError(
            "the run needs more memory than there is. Lower --dim, --batch-size, --num-negatives or "
            "--max-length, or raise --micro-batches."
        ) from error


@contextmanager
def _polite_interrupts() -> Iterator[Callable[[], bool]]:
    """Take note of Ctrl-C and a polite kill instead of breaking off in the middle of a step.

    A second one breaks off at once.
    """
    noted: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(signum)

    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
