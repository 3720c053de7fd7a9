"""What a plan is asked for."""

import dataclasses
from dataclasses import dataclass

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
    """What is wanted of a plan; of the allocation, None leaves the choice to the plan.

    `goal` is "time" to the same loss or "noise"; `rule` is the "law" or the "paper"'s n = k; `margin` is the
    share of the bytes that stays free; `warm_up` is how many seconds a model trains before it is measured.
    With `drawn` only ways that draw negatives come into question.
    """

    goal: str = "time"
    rule: str = "law"
    margin: float = 0.1
    warm_up: float = 15.0
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
        if not 0 <= self.margin < 1:
            raise ArgumentError(f"margin is {self.margin}; pass a share of at least 0 and below 1.")
        if not 0 <= self.warm_up <= 86_400:
            raise ArgumentError(f"warm_up is {self.warm_up}; pass from 0 seconds to a day of them, 86,400.")

    @property
    def fixed(self) -> dict[str, Value]:
        """What a person has decided, by the names of settings."""
        values = {name: getattr(self, name) for name in PLANNED}
        return {name: value for name, value in values.items() if value not in (None, "auto")}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings, bytes and what is wanted of them; `config` holds what is fixed, too."""

    config: RunConfig
    budget_bytes: int
    options: PlanOptions = PlanOptions()

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
