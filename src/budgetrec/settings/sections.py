"""One frozen record per stage, and the only place that reads and writes TOML.

A field's name is the name of its flag and of its key in `run.toml`, and its help is the flag's.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self

import tomli_w

from budgetrec.allocation import Allocation
from budgetrec.errors import ArgumentError, ConfigError
from budgetrec.files import check_plain
from budgetrec.models.registry import MODELS, ModelOptions
from budgetrec.objectives.registry import OBJECTIVES, ObjectiveOptions
from budgetrec.objectives.specification import SHARINGS, ObjectiveSpecification
from budgetrec.options import (
    Value,
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
    setting,
)
from budgetrec.samplers.registry import SAMPLERS, SamplerOptions
from budgetrec.samplers.specification import SamplerSpecification
from budgetrec.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelOptions):
    """What reads the sequences; the options of models stand in their registry."""

    model: str = setting("sasrec", f"One of {', '.join(MODELS)}.")

    def __post_init__(self) -> None:
        check_choice("model", self.model, tuple(MODELS))
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(ObjectiveOptions, SamplerOptions):
    """What is minimised, and what targets are scored against.

    The options that only some objectives or samplers read stand in their registries.
    """

    objective: str = setting("sampled-softmax", f"Loss to minimise: {', '.join(OBJECTIVES)}.")
    num_negatives: int = setting(256, "Negatives per target (k).")
    sharing: str = setting("sequence", "Draw one set of negatives per batch, sequence or target.")
    sampler: str = setting("uniform", f"How to draw negatives: {', '.join(SAMPLERS)}.")
    lean: bool = setting(False, "Compute logits block by block, to save memory.")

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, tuple(OBJECTIVES))
        check_choice("sampler", self.sampler, tuple(SAMPLERS))
        check_choice("sharing", self.sharing, SHARINGS)
        check_count(num_negatives=self.num_negatives, most=10**9)
        super().__post_init__()
        specification = self.sampler_specification
        if specification is not None and self.num_negatives < specification.fewest_negatives:
            raise ArgumentError(
                f"num_negatives is {self.num_negatives}, but the sampler {self.sampler} draws at least "
                f"{specification.fewest_negatives}. Pass more, or another sampler."
            )

    @property
    def specification(self) -> ObjectiveSpecification:
        """The objective's specification."""
        return OBJECTIVES[self.objective]

    @property
    def sampler_specification(self) -> SamplerSpecification | None:
        """The sampler's specification, if the objective draws."""
        return SAMPLERS[self.sampler] if self.specification.draws else None


def check_sharing(config: ObjectiveConfig) -> None:
    """Refuse a sampler that takes the targets of the whole batch for negatives that it does not share."""
    specification = config.sampler_specification
    if specification is not None and specification.whole_batch and config.sharing != "batch":
        raise ArgumentError(
            f"the sampler {config.sampler} takes the targets of the whole batch, so its negatives are shared "
            f"by it, not by each {config.sharing}. Pass --sharing batch."
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How weights follow the gradient."""

    optimizer: str = setting("adam", "One of sgd, momentum, adam, adamw, adagrad.")
    learning_rate: float = setting(1e-3, "Learning rate, at its peak if there is a schedule.")
    table_updates: str = setting("auto", "How to update item vectors: dense, row-sparse, or auto.")
    schedule: str = setting("constant", "Learning rate over time: constant, linear, cosine, inverse-sqrt.")
    warmup_steps: int = setting(0, "Raise the learning rate from 0 over this many steps.")
    weight_decay: float = setting(0.0, "Weight decay: decoupled with adamw, otherwise added to the gradient.")
    momentum: float = setting(0.9, "Momentum, with --optimizer momentum.")
    beta1: float = setting(0.9, "Adam and AdamW: decay of the running mean.")
    beta2: float = setting(0.98, "Adam and AdamW: decay of the running mean square.")
    clip_norm: float | None = setting(None, "Clip gradients to this norm. [default: no clipping]")

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, ("sgd", "momentum", "adam", "adamw", "adagrad"))
        check_choice("table_updates", self.table_updates, ("auto", "dense", "row-sparse"))
        check_choice("schedule", self.schedule, ("constant", "linear", "cosine", "inverse-sqrt"))
        check_positive(learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        check_not_negative(weight_decay=self.weight_decay)
        check_count(warmup_steps=self.warmup_steps or None)
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}; pass at least 0 and below 1.")


ENDING_SCHEDULES = ("linear", "cosine")  # they fall to 0 at the last step
DEFAULT_EPOCHS = 20
PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, how often, on what."""

    batch_size: int = setting(128, "Sequences per step (n).")
    micro_batches: int | None = setting(
        None, "Split each step into this many parts: same result, less memory. [default: the fastest]"
    )
    targets: str = setting("all", "Positions to predict the next item at: all, or last.")
    windows: str = setting("last", "Windows of a long sequence to train on: last, or all.")
    epochs: int | None = setting(
        None, "Stop after this many epochs. [default: 20, if nothing else stops training]"
    )
    steps: int | None = setting(None, "Stop after this many steps.")
    seconds: float | None = setting(None, "Stop after training for this many seconds.")
    patience: int | None = setting(
        None, "Stop after this many evaluations in a row without a better --metric."
    )
    metric: str = setting(
        "ndcg@10", "Validation metric that picks the best weights: ndcg@10, hit_rate@10, mrr, val_loss."
    )
    evaluate_every: int | None = setting(
        None, "Evaluate after this many training sequences. [default: one epoch]"
    )
    evaluation_growth: float = setting(
        0.0, "Evaluate less often as training goes on: wait for this share of the sequences seen so far."
    )
    validation_users: int | None = setting(
        None, "Evaluate on this many users during training, evenly spread. [default: all]"
    )
    keep_seen: bool | None = setting(
        None,
        "Rank and recommend what a user has had, too. [default: if 5% of the validation items are such]",
    )
    checkpoint_seconds: float = setting(120.0, "Save a checkpoint at least this often, in seconds.")
    memory: str | None = setting(
        None, "Memory that training may add to the process, such as 2GiB; steps that need more are split."
    )
    replan: int | None = setting(
        None,
        "With a plan: measure the noise again after this many steps; n, k and sharing may change.",
    )
    precision: str = setting("32-true", f"Number format: {', '.join(PRECISIONS)}.")
    compile: bool = setting(False, "Compile the model with torch.compile.")
    tensorboard: bool = setting(False, "Also write TensorBoard events; needs budgetrec[tensorboard].")
    device: str = setting("auto", "One of auto, cpu, cuda.")
    threads: int | None = setting(
        None, "Number of CPU threads; 1 is best on a busy machine. [default: torch's choice]"
    )
    seed: int = setting(0, "Seed of weights, order, negatives and dropout.")

    def __post_init__(self) -> None:
        check_choice("targets", self.targets, ("all", "last"))
        check_choice("windows", self.windows, ("last", "all"))
        check_choice("metric", self.metric, METRICS)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        check_count(batch_size=self.batch_size, micro_batches=self.micro_batches, most=10**9)
        check_count(epochs=self.epochs, steps=self.steps, patience=self.patience, replan=self.replan)
        check_count(evaluate_every=self.evaluate_every, validation_users=self.validation_users)
        check_count(threads=self.threads, most=1024)
        if not 0 <= self.evaluation_growth < math.inf:
            raise ArgumentError(
                f"evaluation_growth is {self.evaluation_growth:g}; pass 0 or more, such as 0.1."
            )
        check_positive(seconds=self.seconds, checkpoint_seconds=self.checkpoint_seconds)
        if self.memory is not None:
            parse_bytes(self.memory)
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed is {self.seed}; pass an integer from 0 to 2^63 - 1.")

    @property
    def ending_epochs(self) -> int | None:
        """After how many epochs a run ends at the latest: what is asked, or 20 if nothing else ends it."""
        others = (self.steps, self.seconds, self.patience)
        return DEFAULT_EPOCHS if self.epochs is None and others == (None, None, None) else self.epochs


METRICS = ("ndcg@10", "hit_rate@10", "mrr", "val_loss")
# What may change when a run is resumed: when it ends, and how often it saves.
RESUMABLE = ("epochs", "steps", "seconds", "patience", "checkpoint_seconds")
_SECTIONS = {
    "model": ModelConfig,
    "objective": ObjectiveConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
}


# Which settings only drawn negatives have.
DRAWN_ONLY = ("num_negatives", "sharing", "sampler")
# Which settings of the optimiser are read only where another one has one of these values.
_READ_BY: tuple[tuple[set[str], str, tuple[str, ...]], ...] = (
    ({"momentum"}, "optimizer", ("momentum",)),
    ({"beta1", "beta2"}, "optimizer", ("adam", "adamw")),
)


class _WithOptions(Protocol):
    @property
    def options(self) -> type: ...


def _has(specification: _WithOptions, name: str) -> bool:
    return name in {item.name for item in fields(specification.options)}


def _readers() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """List settings that not all read: name, the setting that decides, and its values that read it."""
    for names, key, values in _READ_BY:
        yield from ((name, key, values) for name in names)
    drawing = tuple(name for name, each in OBJECTIVES.items() if each.draws)
    yield from ((name, "objective", drawing) for name in DRAWN_ONLY)
    registries: tuple[tuple[str, Mapping[str, _WithOptions]], ...] = (
        ("model", MODELS),
        ("objective", OBJECTIVES),
        ("sampler", SAMPLERS),
    )
    for key, registry in registries:
        for name in dict.fromkeys(item.name for each in registry.values() for item in fields(each.options)):
            yield name, key, tuple(which for which, each in registry.items() if _has(each, name))
            if key == "sampler":
                yield name, "objective", drawing


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run; saved as `run.toml` beside its results."""

    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()

    def to_dict(self) -> dict[str, dict[str, Value]]:
        """Return the sections without what is left open; TOML has no word for nothing."""
        return {
            name: {
                key: value
                for key, value in dataclasses.asdict(getattr(self, name)).items()
                if value is not None
            }
            for name in _SECTIONS
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, object], source: str) -> Self:
        """Check and take over sections; `source` is named in errors."""
        _refuse_unknown(document, _SECTIONS, source)
        return cls(
            **{
                name: _section(kind, document.get(name, {}), f"{source} [{name}]")
                for name, kind in _SECTIONS.items()
            }
        )

    def replaced(self, settings: Mapping[str, Value]) -> Self:
        """Change settings by their names alone: no two sections share one."""
        homes = {item.name: name for name, kind in _SECTIONS.items() for item in fields(kind)}
        try:
            _refuse_unknown(settings, homes, "settings")
            for key, value in settings.items():
                _check_type("settings", key, value, typing.get_type_hints(_SECTIONS[homes[key]])[key])
        except ConfigError as error:
            raise ArgumentError(str(error)) from error
        changed = {
            name: dataclasses.replace(
                getattr(self, name), **{key: value for key, value in settings.items() if homes[key] == name}
            )
            for name in _SECTIONS
        }
        return dataclasses.replace(self, **changed)

    @property
    def allocation(self) -> Allocation:
        """How a step is taken."""
        own: dict[str, Any] = {item.name: self[item.name] for item in fields(Allocation)}
        return Allocation(**own)

    def __getitem__(self, name: str) -> Value:
        """Return a setting by its name alone.

        >>> RunConfig()["dim"]
        64
        """
        parts = (self.model, self.objective, self.optimizer, self.training)
        value: Value = next(getattr(part, name) for part in parts if hasattr(part, name))
        return value

    def asked(self, settings: Mapping[str, Value]) -> Self:
        """Change settings that a person asked for; one that nothing would read is refused."""
        changed = self.replaced(settings)
        changed.refuse_unused(settings)
        return changed

    def refuse_unused(self, settings: Mapping[str, Value]) -> None:
        """Refuse a setting that was asked for and that nothing would read."""
        for name, key, readers in _readers():
            if name in settings and self[key] not in readers:
                raise ArgumentError(
                    f"{name} has no effect on the {key} {self[key]}. Leave it out, or pass "
                    f"{key} {' or '.join(readers)}."
                )

    def refuse_contradictions(
        self, *, undecided: Collection[str] = (), has_features: bool = False, has_plan: bool = True
    ) -> None:
        """Refuse settings that exclude each other, before anything is read or built.

        `undecided` are settings that a plan will choose, so what they are now says nothing.
        """
        objective, training = self.objective, self.training
        if "sharing" not in undecided:
            check_sharing(objective)
        if "objective" not in undecided:
            check_cuts(objective, training.micro_batches)
            check_table_updates(self, has_features=has_features)
        if self.optimizer.schedule in ENDING_SCHEDULES:
            if training.ending_epochs is None and training.steps is None:
                raise ArgumentError(
                    f"schedule {self.optimizer.schedule} falls to 0 at the end of training, but nothing says "
                    "when that is. Pass epochs or steps, or schedule constant or inverse-sqrt."
                )
            if training.steps is not None and training.steps < self.optimizer.warmup_steps:
                raise ArgumentError(
                    f"steps is {training.steps} with {self.optimizer.warmup_steps} warmup_steps. Train "
                    "longer, or warm up for fewer steps."
                )
        if training.replan is not None and not has_plan:
            raise ArgumentError(
                "replan changes a plan, and there is none. Pass --plan, or use budgetrec fit."
            )

    def write(self, path: Path, extra: Mapping[str, object] | None = None) -> None:
        """Write TOML; `extra` comes first, as keys outside the sections."""
        path.write_text(tomli_w.dumps({**(extra or {}), **self.to_dict()}), "utf-8")


def check_cuts(objective: ObjectiveConfig, micro_batches: int | None) -> None:
    """Refuse to cut a step whose loss is not the mean of its parts'."""
    if not objective.specification.separable and micro_batches not in (None, 1):
        raise ArgumentError(
            f"micro_batches is {micro_batches}, but the objective {objective.objective} looks at the whole "
            "batch at once and cannot be cut; leave it out."
        )


def check_table_updates(config: RunConfig, *, has_features: bool) -> None:
    """Refuse to update single rows where each step touches every item."""
    if config.optimizer.table_updates == "row-sparse":
        draws = config.objective.specification.draws
        if has_features or not draws:
            cause = "item features" if has_features else config.objective.objective
            raise ArgumentError(
                f"table_updates is row-sparse, but with {cause} each step touches every item. "
                "Pass dense or auto."
            )


def all_settings() -> list[tuple[str, dataclasses.Field[Any], Any]]:
    """List section, field and type of every setting; what only some objectives read comes last."""
    return [
        (name, item, typing.get_type_hints(kind)[item.name])
        for name, kind in _SECTIONS.items()
        for item in sorted(fields(kind), key=lambda item: item.name not in vars(kind)["__annotations__"])
    ]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or say in one sentence why not."""
    check_plain(path)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist. Pass a TOML file such as the run.toml of a run.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}. Correct it or leave it out.") from error


def _section(kind: type[Any], values: Any, source: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{source} is {values!r}, not a table. Write [section] and key = value lines.")
    types_of = typing.get_type_hints(kind)
    _refuse_unknown(values, types_of, source)
    for key, value in values.items():
        _check_type(source, key, value, types_of[key])
    try:
        return kind(**values)
    except ArgumentError as error:
        raise ConfigError(f"{source}: {error}") from error


def _check_type(source: str, key: str, value: Any, kind: Any) -> None:
    """Refuse a value of another type; a whole number may stand for a float."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    allowed = (*allowed, int) if float in allowed else allowed
    if type(value) not in allowed:
        names = " or ".join(each.__name__ for each in allowed if each is not type(None))
        raise ConfigError(f"{source} {key} is {value!r}. Pass {names}.")


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any], source: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known)}."
            raise ConfigError(f"{source} has unknown key {key!r}. {hint}")
