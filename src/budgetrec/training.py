"""One training loop, from the first batch to the last checkpoint."""

import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from torch import Tensor

from budgetrec.build import build_model, build_objective, scoring_view
from budgetrec.checkpoint import (
    generator_tensors,
    load_checkpoint,
    load_generators,
    load_model_tensors,
    model_tensors,
    remove_partial,
    save_checkpoint,
)
from budgetrec.config import RunConfig, TrainingConfig
from budgetrec.data.batches import Batch, TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import (
    ArgumentError,
    BudgetrecError,
    InterruptedRunError,
    NotFiniteError,
    TrainingError,
)
from budgetrec.evaluation.validation import validate
from budgetrec.files import check_free, new_folder
from budgetrec.memory import peak_bytes, reset_peak
from budgetrec.models.layers import seed_dropout
from budgetrec.optimizers import (
    choose_table_updates,
    learning_rate_factor,
    load_optimizer_tensors,
    make_optimizers,
    optimizer_tensors,
    set_learning_rate,
)
from budgetrec.runs import BEST, FILES, LAST, METRICS_FILE, Run, write_frame, write_run
from budgetrec.samplers import QuadraticKernel
from budgetrec.steps import StepSums, accumulate_gradients, clip_gradients, gather_in_place
from budgetrec.tracking import Tracker, Watcher

DEFAULT_EPOCHS = 20
_SANITY_USERS = 64
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "storage size")
_KERNEL_STEPS = 100  # the kernel sampler takes in the table's new vectors this often


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


def train(
    dataset: Dataset | Path | str,
    output: Path | str,
    config: RunConfig | None = None,
    *,
    features: Tensor | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a prepared dataset and give the run, which is saved in the folder `output`.

    `settings` are those of the command line, such as `dim=64` and `epochs=5`; they win over `config`.
    `features` (K, f) stand in for a trained table of item vectors.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    output = Path(output)
    check_free(output, overwrite=overwrite, files=FILES)
    chosen = (config or RunConfig()).replaced(settings)
    chosen.refuse_unused(settings)
    with _told_when_memory_runs_out():
        trainer = _Trainer(dataset, output, chosen, features, watcher or Watcher())
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
    with _told_when_memory_runs_out():
        trainer = _Trainer(run.dataset, folder, config, run.features, watcher or Watcher())
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
        self, dataset: Dataset, folder: Path, config: RunConfig, features: Tensor | None, watcher: Watcher
    ) -> None:
        training, optimizer = config.training, config.optimizer
        self.dataset, self.folder, self.config, self.features = dataset, folder, config, features
        self.watcher = watcher
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        self.fabric = _make_fabric(training)
        self.device = self.fabric.device
        reset_peak(self.device)
        self.generators = _make_generators(training.seed, self.device)
        model = build_model(
            config.model, dataset.num_items, features=features, generator=self.generators["weights"]
        )
        self.fabric.to_device(model)  # in place, as modules are moved
        self.model = model
        seed_dropout(self.model, self.generators["dropout"])
        self.objective = build_objective(config.objective, dataset, self.model)
        self.sampler = getattr(self.objective, "sampler", None)
        self.batches = TrainingBatches(
            dataset,
            batch_size=training.batch_size,
            max_length=config.model.max_length,
            windows=training.windows,
            group_by_length=False,  # batches are drawn at random, and sorted by length inside
        )
        self.validation = dataset.validation()
        if len(self.validation) == 0:
            raise TrainingError("the dataset has no validation part. Prepare it with another split.")
        self.table_updates = self._choose_table_updates()
        self.row_gradients = gather_in_place(self.model, sparse=self.table_updates == "row-sparse")
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.optimizers = make_optimizers(
            self.names,
            [gradients.weight for gradients in self.row_gradients],
            optimizer=optimizer.optimizer,
            table_updates=self.table_updates,
            learning_rate=optimizer.learning_rate,
            momentum=optimizer.momentum,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
        )
        self.total_steps = _total_steps(training, len(self.batches))
        self._learning_rate(0)  # refuse a schedule that cannot be followed before anything is written
        self.forward = torch.compile(self.model, dynamic=True) if training.compile else None
        self.order_state = self.generators["order"].get_state()
        self.progress = Progress()
        self.saved_step: int | None = None
        self.tracker = Tracker(folder, tensorboard=training.tensorboard)
        self.rows: list[dict[str, Any]] = []

    def begin(self, *, overwrite: bool) -> None:
        """Write the folder of a run that has not taken a step, whole or not at all."""
        self._rehearse()
        row = self._evaluate()
        with new_folder(self.folder, overwrite=overwrite, files=FILES) as staging:
            (staging / "checkpoint").mkdir()
            write_run(staging, self.config, self.dataset, self.features)
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
                    self.order_state = self.generators["order"].get_state()
                    for batch in self.batches.epoch(self.generators["order"], skip=progress.batch):
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
        return Run.open(self.folder, dataset=self.dataset)

    def _rehearse(self) -> None:
        """Compute one gradient and forget it: settings that do not fit fail before anything is written."""
        states = {name: generator.get_state() for name, generator in self.generators.items()}
        try:
            self._gradient(next(self.batches.epoch(self.generators["order"])))
        except Exception as error:
            if self.forward is None or isinstance(error, BudgetrecError):
                raise
            reason = str(error).strip().splitlines()[0]
            raise TrainingError(f"torch.compile failed: {reason}. Leave out --compile.") from error
        for name, generator in self.generators.items():
            generator.set_state(states[name])

    def _gradient(self, batch: Batch) -> StepSums:
        """Set every parameter's gradient to that of a batch."""
        self.model.train()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for gradients in self.row_gradients:
            gradients.begin()
        sums = accumulate_gradients(
            self.model,
            self.objective,
            Batch(*(self.fabric.to_device(part) for part in (batch.ids, batch.targets, batch.mask))),
            micro_batches=self.config.training.micro_batches,
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
        return sums

    def _step(self, batch: Batch) -> None:
        """Take one step of the optimisers."""
        begin = time.perf_counter()
        progress = self.progress
        learning_rate = self._learning_rate(progress.step)
        set_learning_rate(self.optimizers, learning_rate)
        try:
            sums = self._gradient(batch)
        except NotFiniteError as error:
            raise self._diverged(progress.step + 1) from error
        for optimizer in self.optimizers:
            optimizer.step()
        if isinstance(self.sampler, QuadraticKernel) and (progress.step + 1) % _KERNEL_STEPS == 0:
            self.sampler.update(torch.arange(self.sampler.num_items), self.model.item_table().detach())
        progress.step += 1
        progress.batch += 1
        if progress.batch == len(self.batches):
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self.order_state = self.generators["order"].get_state()
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
            peak_bytes=peak_bytes(self.device),
        )

    def _evaluate(self) -> dict[str, Any]:
        """Make a row of metrics.parquet."""
        begin = time.perf_counter()
        progress = self.progress
        values = self._validate(self.config.training.validation_users)
        return {
            "step": progress.step,
            "epoch": progress.examples / self.batches.num_sequences,
            "examples": progress.examples,
            "targets": progress.targets,
            "logits": progress.logits,
            "seconds": progress.seconds,
            "evaluation_seconds": time.perf_counter() - begin,
            "train_loss": progress.loss_sum / progress.loss_steps if progress.loss_steps else None,
            **values,
            "learning_rate": self._learning_rate(progress.step),
            "peak_bytes": peak_bytes(self.device),
        }

    def _validate(self, max_users: int | None) -> dict[str, float]:
        view = scoring_view(self.model, self.config.objective)
        try:
            return validate(view, self.dataset, self.validation, max_users=max_users)
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
        spacing = training.evaluate_every or self.batches.num_sequences
        progress.next_evaluation = (progress.examples // spacing + 1) * spacing
        value = -row[training.metric] if training.metric == "val_loss" else row[training.metric]
        if progress.best is None or value > progress.best:
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
            save_checkpoint(folder / BEST, model_tensors(self.model), {"step": progress.step})
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

    def _choose_table_updates(self) -> str:
        wanted, objective = self.config.optimizer.table_updates, self.config.objective
        if self.objective.whole_table or self.features is not None:
            if wanted == "row-sparse":
                cause = objective.objective if self.features is None else "item features"
                raise ArgumentError(
                    f"table_updates is row-sparse, but with {cause} each step touches every item. "
                    "Pass dense or auto."
                )
            return "dense"
        if wanted != "auto":
            return wanted
        training = self.config.training
        batch_size = min(training.batch_size, self.batches.num_sequences)
        num_inputs = self.batches.num_targets * batch_size // self.batches.num_sequences
        num_targets = batch_size if training.targets == "last" else num_inputs
        num_groups = {"batch": 1, "sequence": batch_size, "target": num_targets}[objective.sharing]
        touched = num_inputs + num_targets + num_groups * objective.num_negatives
        return choose_table_updates(
            num_items=self.dataset.num_items, dim=self.config.model.dim, rows_touched=touched
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
            **model_tensors(self.model),
            **optimizer_tensors(self.optimizers, self.names),
            **generator_tensors(self.generators),
            # The order of a half-done epoch is drawn again, from the state that it was drawn from.
            "generator.order": self.order_state,
        }
        if isinstance(self.sampler, QuadraticKernel):
            tensors["sampler.vectors"] = self.sampler.vectors()
        save_checkpoint(folder / LAST, tensors, dataclasses.asdict(self.progress))
        self.saved_step = self.progress.step

    def take_up(self) -> None:
        """Take over where the last checkpoint left off."""
        path = self.folder / LAST
        tensors, state = load_checkpoint(path)
        load_model_tensors(self.model, tensors, path)
        load_optimizer_tensors(self.optimizers, self.names, tensors)
        load_generators(self.generators, tensors)
        self.order_state = self.generators["order"].get_state()
        try:
            self.progress = Progress(**state)
        except TypeError as error:
            raise TrainingError(f"{path} is damaged: {error}. Train again.") from error
        self.saved_step = self.progress.step
        if isinstance(self.sampler, QuadraticKernel):
            self.sampler.update(
                torch.arange(self.sampler.num_items), tensors["sampler.vectors"].to(self.device)
            )
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


def _make_fabric(training: TrainingConfig) -> Fabric:
    if training.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device is cuda, but torch sees no GPU here. Pass --device cpu or auto.")
    cuda = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    if training.precision == "bf16-mixed" and not cuda:
        _check_bfloat16()
    precision: Any = training.precision
    return Fabric(accelerator="cuda" if cuda else "cpu", devices=1, precision=precision)


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


def _total_steps(training: TrainingConfig, steps_per_epoch: int) -> int | None:
    """Give the step at which the run ends at the latest, if it is known."""
    epochs = training.epochs
    if epochs is None and training.steps is None and training.seconds is None and training.patience is None:
        epochs = DEFAULT_EPOCHS
    limits = [limit for limit in (epochs and epochs * steps_per_epoch, training.steps) if limit is not None]
    return min(limits, default=None)


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
