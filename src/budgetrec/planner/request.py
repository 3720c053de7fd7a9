"""What a plan is asked for."""

import dataclasses
from dataclasses import dataclass
from typing import Self

from budgetrec.allocation import Allocation
from budgetrec.errors import ArgumentError
from budgetrec.options import Value, check_choice
from budgetrec.settings.sections import RunConfig
from budgetrec.units import parse_bytes

GOALS = ("time", "noise")
RULES = ("law", "paper")
# What says something of drawn negatives and nothing of a full softmax, and is no part of an allocation.
DRAWN_ONLY = ("sampler", "popularity_power", "correction")
PLANNED = tuple(item.name for item in dataclasses.fields(Allocation))  # what a person may fix


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is wanted from a plan; in the allocation, None leaves the choice to the plan.

    `goal` is "time" to the same loss or "noise"; `rule` is the "law" or the "paper"'s n = k; `margin` is the
    share of the bytes that stays free; a model trains on `warm_up_targets` targets before it is measured.
    With `drawn` only ways that draw negatives come into question.
    """

    goal: str = "time"
    rule: str = "law"
    margin: float = 0.1
    warm_up_targets: int = 200_000
    batch_size: int | None = None
    num_negatives: int | None = None
    sharing: str | None = None
    objective: str | None = None
    lean: bool | None = None
    micro_batches: int | None = None
    table_updates: str | None = None
    drawn: bool = False

    def __post_init__(self) -> None:
        check_choice("goal", self.goal, GOALS)
        check_choice("rule", self.rule, RULES)
        if self.rule == "paper" and {"batch_size", "num_negatives"} & self.fixed.keys():
            raise ArgumentError("the paper's rule chooses n and k. Leave out --rule, or n and k.")
        if not 0 <= self.warm_up_targets <= 10**12:
            raise ArgumentError(f"warm_up_targets is {self.warm_up_targets}; pass from 0 to 10^12.")
        if not 0 <= self.margin < 1:
            raise ArgumentError(f"margin is {self.margin}; pass a share of at least 0 and below 1.")

    @property
    def fixed(self) -> dict[str, Value]:
        """What a person has decided, by the names of settings."""
        values = {name: getattr(self, name) for name in PLANNED}
        return {name: value for name, value in values.items() if value not in (None, "auto")}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings, bytes and what is wanted from them; `config` holds what is fixed, too.

    `own_model` names the class of a model of one's own, trained in a loop of one's own.
    """

    config: RunConfig
    budget_bytes: int
    options: PlanOptions = PlanOptions()
    own_model: str | None = None

    def for_own_model(self, name: str, *, dim: int, max_length: int) -> Self:
        """Return the same for a model of one's own: its loop takes batches whole, and updates with torch."""
        wanted = self.options
        if wanted.micro_batches not in (None, 1) or wanted.table_updates == "row-sparse":
            raise ArgumentError(
                "a model of your own is trained in a loop of your own, without micro-batches and row-sparse "
                "updates; leave them out."
            )
        sampler = self.config.objective.sampler_specification
        if sampler is not None and sampler.adaptive:
            raise ArgumentError(
                f"the sampler {sampler.name} follows the model as it trains, which a loop of your own does "
                "not tell it; choose another sampler."
            )
        implied: dict[str, Value] = {"micro_batches": 1, "table_updates": "dense"}
        config = self.config.replaced({**implied, "dim": dim, "max_length": max_length})
        options = dataclasses.replace(wanted, micro_batches=1, table_updates="dense")
        return dataclasses.replace(self, config=config, options=options, own_model=name)

    @property
    def fixed(self) -> set[str]:
        """What a person has decided of the allocation."""
        implied = {"micro_batches", "table_updates"} if self.own_model else set()
        return set(self.options.fixed) - implied

    @property
    def limit(self) -> float:
        """The bytes that a plan may take by its own prediction."""
        return self.budget_bytes * (1 - self.options.margin)

    def refuse_contradictions(self, *, has_features: bool = False) -> None:
        """Refuse settings that exclude each other, whatever the plan will choose."""
        open_ = set(PLANNED) - self.options.fixed.keys()
        self.config.refuse_contradictions(undecided=open_, has_features=has_features)


def make_request(memory: str | int, config: RunConfig | None, options: PlanOptions) -> Request:
    """Put a request together; what is fixed of the allocation becomes part of the settings."""
    settled = (config or RunConfig()).replaced(options.fixed)
    return Request(config=settled, budget_bytes=parse_bytes(memory), options=options)
