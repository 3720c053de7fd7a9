"""A plan on paper: what was chosen, what it costs, and why."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w

from budgetrec.allocation import Allocation
from budgetrec.data.store import Dataset
from budgetrec.errors import PlanError
from budgetrec.files import write_whole
from budgetrec.models.registry import MODELS
from budgetrec.options import Value, has_type
from budgetrec.settings.sections import RunConfig, read_toml

if TYPE_CHECKING:
    from budgetrec.models.contract import SequenceModel
    from budgetrec.objectives.contract import Objective
    from budgetrec.planner.own_loop import PlannedBatches

PARTS = ("weights", "gradients", "optimizer_state", "encoder", "rows", "logits", "workspace")
NOISE = ("example", "shared_class", "target_class", "bias")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Another allocation that was looked at, and why it lost."""

    name: str
    batch_size: int
    num_negatives: int
    sharing: str
    objective: str
    predicted_bytes: int
    noise: float
    step_seconds: float
    score: float  # against the plan's, above 1 where it is worse
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train within a number of bytes.

    `num_groups` counts the independent sets of negatives of a step, `num_targets` its targets. `noise` is the
    squared error of a step's gradient by where it comes from, `gradient` the squared norm of the gradient
    itself, `because` holds one sentence for each choice, and `fixed` names what a person chose. `made_for`
    holds the other settings on which the bytes depend, such as `dim` and `max_length`; its "model" is the
    class of a model of your own, for which `batches`, `objective` and `validate` serve a loop of your own.
    `seconds_model` holds what steps of each family were measured to cost, `noise_model` the constants of the
    noise law and `overhead_bytes` what the process needs besides tensors, so that one can plan again without
    measuring them again.
    """

    allocation: Allocation
    num_groups: int
    num_targets: int
    optimizer: str
    goal: str
    rule: str
    budget_bytes: int
    margin: float
    step_seconds: float
    gradient: float
    predicted_bytes: int
    parts: Mapping[str, int]
    noise: Mapping[str, float]
    because: Mapping[str, str]
    assumptions: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    fixed: tuple[str, ...] = ()
    made_for: Mapping[str, Value] = field(default_factory=dict)
    overhead_bytes: int = 0
    seconds_model: tuple[Mapping[str, float | int | str | bool], ...] = ()
    noise_model: Mapping[str, object] = field(default_factory=dict)

    @property
    def total_noise(self) -> float:
        """All parts of the noise together."""
        return float(sum(self.noise.values()))

    @property
    def settings(self) -> dict[str, Value]:
        """The settings of a run that follows the plan, by name."""
        return {**self.made_for, **self.allocation.settings}

    @property
    def own_model(self) -> str | None:
        """The class of the model that the plan is for, if that is one of your own."""
        name = self.made_for.get("model")
        return None if name is None or name in MODELS else str(name)

    def batches(self, dataset: Dataset) -> "PlannedBatches":
        """Return the training part in batches of the planned size, for a loop of your own.

        From here on the process hands freed tensors back to the system at once, as training by us does.
        """
        from budgetrec.planner.own_loop import own_batches

        return own_batches(self, dataset)

    def objective(self, dataset: Dataset) -> "Objective":
        """Return the planned objective, which takes hidden states, targets, `model.item_vectors` and mask."""
        from budgetrec.planner.own_loop import own_objective

        return own_objective(self, dataset)

    def validate(self, model: "SequenceModel", dataset: Dataset) -> dict[str, float]:
        """Return `val_loss`, `ndcg@10`, `hit_rate@10` and `mrr` of a model of your own, within the bytes."""
        from budgetrec.planner.own_loop import own_validation

        return own_validation(self, model, dataset)

    def configure(self, config: RunConfig) -> RunConfig:
        """Return the settings of a run that follows the plan; what the plan leaves open is as in `config`."""
        if self.own_model is not None:
            raise PlanError(
                f"the plan is for {self.own_model}, a model of your own, which budgetrec does not train; "
                "take plan.batches and plan.objective into your own loop, or plan for one of "
                f"{', '.join(MODELS)}."
            )
        return config.replaced({"memory": str(self.budget_bytes), **self.settings})

    def to_dict(self) -> dict[str, object]:
        """Return what TOML holds, which has no word for None."""
        document = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("allocation", "parts", "candidates")
        }
        chosen = dataclasses.asdict(self.allocation)
        document |= {name: value for name, value in chosen.items() if value is not None}
        document["predicted_bytes"] = {"total": self.predicted_bytes, "parts": dict(self.parts)}
        document["noise"] = {"total": self.total_noise, **self.noise}
        for name in ("because", "assumptions", "made_for", "noise_model"):
            document[name] = dict(getattr(self, name))
        document["seconds_model"] = [dict(each) for each in self.seconds_model]
        document["fixed"] = list(self.fixed)
        document["candidates"] = [dataclasses.asdict(each) for each in self.candidates]
        return document

    def to_json(self) -> dict[str, object]:
        """Return the same with every key, also of what is None."""
        return {"micro_batches": self.allocation.micro_batches, **self.to_dict()}

    @classmethod
    def from_dict(cls, document: Mapping[str, object], source: str) -> Self:
        """Build a plan from what `to_dict` returned; `source` is named in errors."""
        try:
            values: dict[str, Any] = dict(document)
            memory, noise = values.pop("predicted_bytes"), dict(values.pop("noise"))
            noise.pop("total")
            values |= {"predicted_bytes": memory["total"], "parts": memory["parts"], "noise": noise}
            values["candidates"] = tuple(Candidate(**each) for each in values["candidates"])
            values["fixed"] = tuple(values["fixed"])
            values["seconds_model"] = tuple(dict(each) for each in values["seconds_model"])
            chosen = {item.name: values.pop(item.name, None) for item in dataclasses.fields(Allocation)}
            plan = cls(allocation=Allocation(**chosen), **values)
            _check_types(plan)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"{source} is not a plan, or is damaged: {error}. Plan again.") from error
        return plan

    def write(self, path: Path) -> None:
        """Write TOML, whole or not at all."""
        write_whole(path, lambda partial: partial.write_text(tomli_w.dumps(self.to_dict()), "utf-8"))

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read what `write` wrote, or the plan.toml in a folder."""
        path = Path(path)
        path = path / "plan.toml" if path.is_dir() else path
        return cls.from_dict(read_toml(path), str(path))


def _check_types(plan: Plan) -> None:
    for name, kind in typing.get_type_hints(Plan).items():
        if not has_type(getattr(plan, name), kind):
            raise TypeError(f"{name} is {getattr(plan, name)!r}")
    for name, known in (("parts", PARTS), ("noise", NOISE)):
        if set(getattr(plan, name)) != set(known):
            raise ValueError(f"{name} has {', '.join(getattr(plan, name))}")
