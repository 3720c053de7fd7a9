"""From a dataset and a number of bytes to a plan: count bytes, warm up, time steps, probe, search."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.memory import StepMemory, measure_overhead, steady_heap
from budgetrec.memory.budget import evaluation_block_bytes
from budgetrec.models import SequenceModel
from budgetrec.planner.assumed import RATES, RHO, assumed_lengths, assumed_noise, assumed_seconds
from budgetrec.planner.kinds import DRAWN_ONLY, PLANNED, Kind, given, possible_kinds
from budgetrec.planner.reasons import give_reasons, paper_choice, runner_ups
from budgetrec.planner.record import NOISE, Plan
from budgetrec.planner.search import GOALS, Choice, Search, uncut
from budgetrec.planner.seconds import StepSeconds, seconds_of, seconds_row, time_steps
from budgetrec.planner.suggestions import nothing_fits
from budgetrec.probe import NoiseProbe, measure_noise
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper
from budgetrec.theory.noise import NoiseConstants
from budgetrec.units import parse_bytes

RULES = ("law", "paper")
WARM_UP_SECONDS = 15.0
_ASSUMED_SEQUENCES = 2**14
_WARM_UP_TARGETS = 1_000_000
_WARM_UP_POINT = (1600, 256)  # targets and negatives of a step of the warm-up, where they fit


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a plan is asked for."""

    config: RunConfig
    budget_bytes: int
    goal: str = "time"
    rule: str = "law"
    margin: float = 0.1
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drawn: bool = False  # whether something was asked for that only drawn negatives have

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise ArgumentError(f"goal is {self.goal!r}; pass one of {', '.join(GOALS)}.")
        if self.rule not in RULES:
            raise ArgumentError(f"rule is {self.rule!r}; pass one of {', '.join(RULES)}.")
        if self.rule == "paper" and {"batch_size", "num_negatives"} & self.fixed.keys():
            raise ArgumentError("the paper's rule chooses n and k. Leave out --rule, or n and k.")
        if not 0 <= self.margin < 1:
            raise ArgumentError(f"margin is {self.margin}; pass a share of at least 0 and below 1.")

    @property
    def limit(self) -> float:
        """The bytes that a plan may take by its own prediction."""
        return self.budget_bytes * (1 - self.margin)


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a plan needs to know of the data: items, and targets (windows,) of each training window."""

    num_items: int
    lengths: NDArray[np.int64]
    features_width: int | None = None
    train_counts: NDArray[np.int64] | None = None  # how often each item occurs, where that is known

    @property
    def mean_targets(self) -> float:
        """Targets of a window on average."""
        return float(self.lengths.mean())


class Planner:
    """Bytes and seconds of every kind of step, found once; a plan for any noise.

    `report` hears what is being done.
    """

    def __init__(
        self,
        request: Request,
        data: Data,
        *,
        device_type: str,
        model: SequenceModel | None = None,
        report: Callable[[str], None] = lambda stage: None,
        overhead: int | None = None,
        measured: bool = True,
        kinds: list[Kind] | None = None,
    ) -> None:
        self.request, self.data, self.device_type = request, data, device_type
        self._model = model
        self._counted: dict[tuple[RunConfig, int], StepMemory] = {}
        if request.fixed.get("batch_size", 1) > len(data.lengths):
            raise PlanError(
                f"batch_size is {request.fixed['batch_size']:,}, and the data has {len(data.lengths):,} "
                "training sequences. Pass at most so many."
            )
        self.kinds = kinds or possible_kinds(
            request.config,
            request.fixed,
            num_items=data.num_items,
            has_features=data.features_width is not None,
            measured=measured,
            drawn=request.drawn,
        )
        if not self.kinds:
            raise PlanError("no way of training agrees with all that was fixed. Leave out --table-updates.")
        report("counting the bytes of a step")
        if overhead is None:
            overhead = measure_overhead() if device_type == "cpu" else 0
        self.overhead = overhead
        self.memory: dict[Kind, StepMemory] = {}
        for kind in self.kinds:
            counted = self._count(kind)
            first = next(iter(self.memory.values()), counted)
            self.memory[uncut(kind)] = counted.sharing_shapes(first)
        self.seconds: dict[Kind, StepSeconds] = {}
        self.left_out: list[Kind] = []
        self._refuse_if_nothing_fits()

    @classmethod
    def of_plan(cls, plan: Plan, config: RunConfig, data: Data, *, device_type: str) -> "Planner":
        """Make the planner of a plan again, to plan anew with the same objective and table updates."""
        request = Request(
            config=config,
            budget_bytes=plan.budget_bytes,
            goal=plan.goal,
            rule=plan.rule,
            margin=plan.margin,
            fixed={name: getattr(plan, name) for name in plan.fixed},
        )
        seconds = dict(seconds_of(row) for row in plan.seconds_model)
        chosen = (plan.objective, plan.table_updates)
        kinds = [
            dataclasses.replace(kind, micro_batches=request.fixed.get("micro_batches"))
            for kind in seconds
            if (kind.objective, kind.table_updates) == chosen
        ]
        planner = cls(request, data, device_type=device_type, overhead=plan.overhead_bytes, kinds=kinds)
        planner.seconds = seconds
        return planner

    def _count(self, kind: Kind, config: RunConfig | None = None) -> StepMemory:
        return self._dry_run(uncut(kind).configure(config or self.request.config))

    def _dry_run(self, config: RunConfig, budget: int | None = None) -> StepMemory:
        block_bytes = evaluation_block_bytes(budget or self.request.budget_bytes)
        known = self._counted.get((config, block_bytes))
        if known is not None:
            return known
        common: dict[str, Any] = {
            "lengths": self.data.lengths,
            "device_type": self.device_type,
            "overhead": self.overhead,
            "evaluation_block_bytes": block_bytes,
        }
        if self._model is not None:
            counted = StepMemory.of_model(self._model, config, **common)
        else:
            counted = StepMemory.dry_run(
                config,
                num_items=self.data.num_items,
                features_width=self.data.features_width,
                train_counts=self.data.train_counts,
                **common,
            )
        self._counted[config, block_bytes] = counted
        return counted

    def _refuse_if_nothing_fits(self) -> None:
        fixed = self.request.fixed
        n, k = fixed.get("batch_size", 1), fixed.get("num_negatives", 1)
        cut = fixed.get("micro_batches", n)

        def parts(kind: Kind, memory: StepMemory) -> dict[str, int]:
            return memory.parts(n, self.data.num_items if kind.full else k, cut)

        needs = {kind: sum(parts(kind, memory).values()) for kind, memory in self.memory.items()}
        smallest = min(needs, key=lambda kind: needs[kind])
        if needs[smallest] <= self.request.limit:
            return

        def least(config: RunConfig) -> dict[str, int]:
            """Count the smallest step with other settings."""
            kind, updates = smallest, config.optimizer.table_updates
            if updates != "auto":
                kind = dataclasses.replace(kind, table_updates=updates)
            if kind.table_updates == "row-sparse" and (kind.full or self.data.features_width is not None):
                raise PlanError("there is no table of which a step touches some rows only.")
            return parts(kind, self._count(kind, config))

        def enough() -> int:
            """Find bytes that would do; with more of them an evaluation takes more too."""
            budget, config = self.request.budget_bytes, uncut(smallest).configure(self.request.config)
            while True:
                needed = sum(parts(smallest, self._dry_run(config, budget)).values())
                if needed <= budget * (1 - self.request.margin):
                    return budget
                budget = math.ceil(needed / (1 - self.request.margin) / 2**20) * 2**20

        raise nothing_fits(
            self.request.config,
            num_items=self.data.num_items,
            batch_size=n,
            num_negatives=k,
            budget=self.request.budget_bytes,
            limit=self.request.limit,
            enough=enough(),
            least=least,
        )

    def fits(self, kind: Kind, n: int, k: int) -> bool:
        """Say whether a step fits into the bytes."""
        memory = self.memory[uncut(kind)]
        return (
            float(memory.total(n, self.data.num_items if kind.full else k, kind.micro_batches))
            <= self.request.limit
        )

    def leave_out(self, kinds: list[Kind]) -> None:
        """Forget kinds of which nothing fits."""
        self.left_out += kinds
        self.kinds = [kind for kind in self.kinds if uncut(kind) not in kinds]
        for kind in kinds:
            del self.memory[kind]

    def assume_seconds(self) -> None:
        """Take seconds from a machine's rates."""
        for kind in self.memory:
            self.seconds[kind] = assumed_seconds(
                kind,
                self.request.config,
                num_items=self.data.num_items,
                mean_targets=self.data.mean_targets,
                device_type=self.device_type,
            )

    def search(self, constants: NoiseConstants, gradient: float) -> Search:
        """Put together what is predicted of every candidate."""
        fixed = self.request.fixed
        return Search(
            kinds=tuple(self.kinds),
            left_out=tuple(self.left_out),
            constants=constants,
            gradient=gradient,
            mean_targets=1.0 if self.request.config.training.targets == "last" else self.data.mean_targets,
            bytes={kind: memory.total for kind, memory in self.memory.items()},
            seconds=self.seconds,
            num_items=self.data.num_items,
            max_batch_size=len(self.data.lengths),
            goal=self.request.goal,
            limit=self.request.limit,
            fixed={name: fixed[name] for name in ("batch_size", "num_negatives") if name in fixed},
        )

    def plan(self, constants: NoiseConstants, gradient: float, assumptions: Mapping[str, str]) -> "Planned":
        """Choose by the law's `constants` and the squared norm of the true gradient."""
        search = self.search(constants, gradient)
        if self.request.rule == "paper":
            chosen, ranked = self._paper(search)
        else:
            ranked = search.best_of_all()
            if not ranked:
                self._refuse_if_nothing_fits()
                raise PlanError(
                    "nothing that was asked for fits together. Leave out --micro-batches or --batch-size."
                )
            chosen = ranked[0]
        made = self._record(search, chosen, ranked, assumptions)
        return Planned(plan=made, search=search, planner=self)

    def gain(
        self,
        new: Plan,
        kind: Kind,
        batch_size: int,
        num_negatives: int,
        constants: NoiseConstants,
        gradient: float,
    ) -> float:
        """Say by what share a new plan's score is below that of another allocation, by these constants."""
        search = self.search(constants, gradient)
        chosen = dataclasses.replace(kind, sharing=new.sharing, lean=new.lean)
        before = float(search.score(kind, batch_size, num_negatives))
        return 1 - float(search.score(chosen, new.batch_size, new.num_negatives)) / before

    def _paper(self, search: Search) -> tuple[Choice, list[Choice]]:
        shared = [kind for kind in self.kinds if kind.sharing == "batch" and not kind.full]
        found = [choice for kind in shared if (choice := paper_choice(search, kind)) is not None]
        if not found:
            raise PlanError(
                "the paper's rule shares one set of negatives. Leave out --sharing and --objective."
            )
        chosen = max(found, key=lambda choice: (choice.batch_size, -choice.score))
        found.sort(key=lambda choice: choice.score)
        return chosen, [chosen, *found, *search.best_of_all()]

    def _record(
        self, search: Search, chosen: Choice, ranked: list[Choice], assumptions: Mapping[str, str]
    ) -> Plan:
        request, kind = self.request, chosen.kind
        n, k = chosen.batch_size, chosen.num_negatives
        parts = self.memory[uncut(kind)].parts(n, k, kind.micro_batches)
        noise = search.noise(kind, float(n), float(k))
        because = give_reasons(search, chosen, ranked, set(request.fixed))
        if request.rule == "paper":
            because["batch_size"] = because["num_negatives"] = (
                f"{n:,}: the paper's n = k, the largest that fits with one set of negatives for the batch."
            )
        return Plan(
            batch_size=n,
            num_negatives=k,
            num_groups=0 if kind.full else round(float(kind.num_groups(np.array(n), search.mean_targets))),
            num_targets=round(n * search.mean_targets),
            sharing=kind.sharing,
            objective=kind.objective,
            lean=kind.lean,
            micro_batches=kind.micro_batches,
            table_updates=kind.table_updates,
            optimizer=request.config.optimizer.optimizer,
            goal=request.goal,
            rule=request.rule,
            budget_bytes=request.budget_bytes,
            margin=request.margin,
            step_seconds=chosen.seconds,
            gradient=search.gradient,
            predicted_bytes=sum(parts.values()),
            parts=parts,
            noise={name: float(getattr(noise, name)) for name in NOISE},
            because=because,
            assumptions=dict(assumptions),
            candidates=runner_ups(search, chosen, ranked),
            fixed=tuple(sorted(request.fixed)),
            made_for=given(request.config, full=kind.full),
            overhead_bytes=self.overhead,
            seconds_model=tuple(seconds_row(kind, seconds) for kind, seconds in self.seconds.items()),
        )


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with what it was chosen from."""

    plan: Plan
    search: Search
    planner: Planner


def plan(dataset: Dataset | Path | str | None = None, *, memory: str | int, **wishes: Any) -> Plan:
    """Plan how to train within `memory` bytes, such as "2GiB"; `wishes` are those of `plan_with_search`."""
    return plan_with_search(dataset, memory=memory, **wishes).plan


def plan_with_search(
    dataset: Dataset | Path | str | None = None,
    *,
    memory: str | int,
    config: RunConfig | None = None,
    model: SequenceModel | None = None,
    features: Tensor | None = None,
    goal: str = "time",
    rule: str = "law",
    margin: float = 0.1,
    warm_up: float = WARM_UP_SECONDS,
    num_items: int | None = None,
    mean_length: float | None = None,
    report: Callable[[str], None] | None = None,
    **settings: Any,
) -> Planned:
    """Plan how to train within `memory` bytes, and keep what the plan was chosen from.

    Of `settings` (as in `budgetrec.train`; they win over `config`), batch_size, num_negatives, sharing,
    objective, lean, micro_batches and table_updates are fixed where they are given and planned where not.
    `model` is a model of your own that follows `SequenceModel`; it is trained for `warm_up` seconds. Without
    a dataset, `num_items` and `mean_length` say what it is like, and the plan says what it assumed.
    """
    tell = report or (lambda stage: None)
    chosen = (config or RunConfig()).replaced(settings)
    chosen.refuse_unused(settings)
    request = Request(
        config=chosen,
        budget_bytes=parse_bytes(memory),
        goal=goal,
        rule=rule,
        margin=margin,
        fixed={name: settings[name] for name in PLANNED if settings.get(name) not in (None, "auto")},
        drawn=any(settings.get(name) is not None for name in DRAWN_ONLY),
    )
    if dataset is None:
        return _plan_without_data(request, num_items, mean_length, tell)
    if num_items is not None or mean_length is not None:
        raise ArgumentError("num_items and mean_length describe data that is not here. Leave them out.")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if chosen.training.device == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            "device is cuda, but torch sees no GPU here, so nothing can be measured. Pass --device cpu, or "
            f"plan without data: --num-items {dataset.num_items} --mean-length 40."
        )
    return plan_measured(request, dataset, features, model=model, warm_up=warm_up, report=tell)


def _plan_without_data(
    request: Request, num_items: int | None, mean_length: float | None, report: Callable[[str], None]
) -> Planned:
    if num_items is None or mean_length is None:
        raise ArgumentError(
            "there is no dataset to plan for. Pass one, or describe it with --num-items and --mean-length."
        )
    if num_items < 2 or not 1 <= mean_length < math.inf:
        raise ArgumentError(f"num_items is {num_items} and mean_length {mean_length}; pass at least 2 and 1.")
    training, model = request.config.training, request.config.model
    device_type = "cuda" if training.device == "cuda" else "cpu"
    lengths = assumed_lengths(mean_length=mean_length, max_length=model.max_length, count=_ASSUMED_SEQUENCES)
    planner = Planner(
        request,
        Data(num_items=num_items, lengths=lengths),
        device_type=device_type,
        report=report,
        overhead=0 if device_type == "cuda" else None,
        measured=False,
    )
    planner.assume_seconds()
    constants, gradient = assumed_noise(dim=model.dim, mean_targets=planner.data.mean_targets)
    return planner.plan(
        constants,
        gradient,
        {
            "data": f"{num_items:,} items; lengths spread as an exponential of mean {mean_length:g}, cut at "
            f"{model.max_length}; at least {_ASSUMED_SEQUENCES:,} sequences",
            "noise": f"as in a SASRec after a few epochs on MovieLens-1M: rho {RHO:g}, width {model.dim}",
            "seconds": f"not measured: {RATES[device_type].words}",
        },
    )


def plan_measured(
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    *,
    model: SequenceModel | None = None,
    warm_up: float = WARM_UP_SECONDS,
    report: Callable[[str], None] = lambda stage: None,
) -> Planned:
    """Plan by what was measured on this machine."""
    config = request.config
    batches = TrainingBatches(
        dataset, batch_size=1, max_length=config.model.max_length, windows=config.training.windows
    )
    cuda = config.training.device != "cpu" and torch.cuda.is_available()
    data = Data(
        num_items=dataset.num_items,
        lengths=batches.lengths,
        features_width=None if features is None else features.shape[1],
        train_counts=np.asarray(dataset.train_counts),
    )
    planner = Planner(request, data, device_type="cuda" if cuda else "cpu", model=model, report=report)
    planner.leave_out(
        [
            kind
            for kind in planner.memory
            if not planner.fits(dataclasses.replace(kind, micro_batches=1), 1, 1)
        ]
    )
    steady_heap()  # as in training
    stepper = None
    ways = [*dict.fromkeys(kind.table_updates for kind in planner.memory)]
    for place, updates in enumerate(reversed(ways)):
        kinds = [kind for kind in planner.memory if kind.table_updates == updates]
        del stepper  # before another takes its memory
        stepper = _make_stepper(planner, kinds, dataset, features, model)
        if place == len(ways) - 1 or not planner.seconds:  # the noise is measured on the last one
            report(f"warming up for {warm_up:g} s")
            _warm_up(stepper, warm_up)
        for kind in kinds:
            report(f"timing steps: {kind.describe()}")
            planner.seconds[kind] = time_steps(
                stepper,
                kind,
                config,
                fits=lambda n, k, kind=kind: planner.fits(kind, n, k),  # type: ignore[misc]
                mean_targets=data.mean_targets,
            )
    assert stepper is not None  # noqa: S101 - the planner has refused what nothing fits
    constants, gradient, told = probe_noise(stepper, report=report)
    return planner.plan(constants, gradient, told)


def _make_stepper(
    planner: Planner,
    kinds: list[Kind],
    dataset: Dataset,
    features: Tensor | None,
    model: SequenceModel | None,
) -> Stepper:
    """Make what takes steps of these kinds, with an allocation to warm up with that fits."""
    kind = min(kinds, key=lambda each: (each.full, each.sharing != "sequence", each.lean))
    targets, k = _WARM_UP_POINT
    n = min(max(1, round(targets / planner.data.mean_targets)), len(planner.data.lengths))
    k = min(k, max(planner.data.num_items - 1, 1))
    while not planner.fits(kind, n, k) and (n, k) != (1, 1):
        n, k = max(1, n // 2), max(1, k // 2)
    return Stepper(dataset, kind.configure(planner.request.config, n, k), features, model=model)


def _warm_up(stepper: Stepper, seconds: float) -> None:
    """Train for a short while: what noise an untrained model has tells little of training."""
    end, seen = time.monotonic() + seconds, 0
    while True:
        for batch in stepper.batches.epoch(stepper.generators["order"]):
            if time.monotonic() > end or seen >= _WARM_UP_TARGETS:
                return
            seen += stepper.step(batch, stepper.config.optimizer.learning_rate).num_targets


def probe_noise(
    stepper: Stepper, *, report: Callable[[str], None] = lambda stage: None
) -> tuple[NoiseConstants, float, dict[str, str]]:
    """Measure the law's constants and the squared gradient; say what had to be assumed.

    The gradient's estimate may come out near 0 or below; a quarter of its upper end is then nearer.
    """
    config = stepper.config
    objective, training = config.objective, config.training
    if objective.cosine or objective.temperature != 1:
        mean_targets = stepper.batches.num_targets / stepper.batches.num_sequences
        constants, gradient = assumed_noise(dim=config.model.dim, mean_targets=mean_targets)
        return constants, gradient, {"noise": "not measured: the probe does not cover cosine or temperature"}
    probe = measure_noise(
        stepper.model,
        stepper.dataset,
        log_q=_proposal(stepper),
        max_length=config.model.max_length,
        windows=training.windows,
        last_only=training.targets == "last",
        generator=torch.Generator().manual_seed(training.seed),
        report=report,
    )
    told = {"noise": _what_was_probed(probe, stepper.steps)}
    if objective.objective in ("bce", "gbce"):
        told["objective"] = f"the law is of the sampled softmax; for {objective.objective} it is a guide"
    return probe.constants, max(probe.gradient.value, probe.gradient.high / 4), told


def _what_was_probed(probe: NoiseProbe, steps: int) -> str:
    worst = max((abs(each.relative_error) for each in probe.check), default=0.0)
    return (
        f"measured after {steps:,} steps on {probe.num_targets:,} targets; the law was off by at most "
        f"{worst:.0%} where it was checked"
    )


def _proposal(stepper: Stepper) -> Tensor | None:
    """Return log q of every item as the sampler draws, None where that is uniform or depends on the batch."""
    log_q = getattr(stepper.sampler, "log_q", None)
    if callable(log_q):
        log_q = log_q(torch.arange(stepper.dataset.num_items, device=stepper.device)).cpu()
    return log_q if isinstance(log_q, Tensor) else None
