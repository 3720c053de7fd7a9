"""From a request and measurements to a plan: search, choose, say why."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from budgetrec.allocation import Allocation
from budgetrec.errors import PlanError
from budgetrec.options import Value
from budgetrec.planner.bytes import refuse_if_nothing_fits
from budgetrec.planner.measurements import Measurements
from budgetrec.planner.noise_record import noise_record
from budgetrec.planner.plan import NOISE, Plan
from budgetrec.planner.reasons import give_reasons, paper_choice, runner_ups
from budgetrec.planner.request import Request
from budgetrec.planner.search import Choice, Search, count_groups
from budgetrec.planner.seconds import seconds_row

_MODEL = ("model", "dim", "num_blocks", "num_heads", "max_length", "tied")
_OF_OWN = ("dim", "max_length", "optimizer", "precision", "targets", "windows")
_GIVEN = (*_MODEL, "optimizer", "precision", "targets", "windows")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with what it was chosen from."""

    plan: Plan
    search: Search


def make_search(request: Request, measured: Measurements) -> Search:
    """Put together what is predicted of every candidate."""
    last_only = request.config.training.targets == "last"
    fixed = {"batch_size": request.options.batch_size, "num_negatives": request.options.num_negatives}
    sampler = request.config.objective.sampler_specification
    return Search(
        families=measured.families,
        left_out=measured.left_out,
        constants=measured.noise.constants,
        gradient=measured.noise.gradient,
        mean_targets=1.0 if last_only else measured.data.mean_targets,
        bytes={family: memory.total for family, memory in measured.memory.items()},
        seconds=measured.seconds,
        num_items=measured.data.num_items,
        max_batch_size=len(measured.data.lengths),
        goal=request.options.goal,
        limit=request.limit,
        fixed={name: value for name, value in fixed.items() if value is not None},
        share_from_batch=0.0 if sampler is None else sampler.share_from_batch,
    )


def make_plan(request: Request, measured: Measurements) -> Planned:
    """Choose the best allocation that fits, or the paper's, and say why."""
    search = make_search(request, measured)
    ranked = _rank(request, search)
    if not ranked:
        refuse_if_nothing_fits(request, measured.memory, measured.counter)
        raise PlanError(
            "nothing that was asked for fits together. Leave out --micro-batches or --batch-size."
        )
    return Planned(plan=_record(request, measured, search, ranked[0], ranked), search=search)


def contenders(request: Request, measured: Measurements) -> list[Allocation]:
    """Return what would be chosen, and the runner-up."""
    return [choice.allocation for choice in _rank(request, make_search(request, measured))[:2]]


def _rank(request: Request, search: Search) -> list[Choice]:
    """Return what comes into question, the choice first."""
    return _paper(search) if request.options.rule == "paper" else search.best_of_all()


def _paper(search: Search) -> list[Choice]:
    shared = [way for way in search.families if way.sharing == "batch" and way.draws]
    found = [choice for way in shared if (choice := paper_choice(search, way)) is not None]
    if not found:
        raise PlanError("the paper's rule shares one set of negatives. Leave out --sharing and --objective.")
    chosen = max(found, key=lambda choice: (choice.allocation.batch_size, -choice.score))
    found.sort(key=lambda choice: choice.score)
    return [chosen, *found, *search.best_of_all()]


def _record(
    request: Request, measured: Measurements, search: Search, chosen: Choice, ranked: list[Choice]
) -> Plan:
    allocation = chosen.allocation
    n, k = allocation.batch_size, allocation.num_negatives
    parts = measured.memory[allocation.family].parts(n, k, allocation.micro_batches)
    noise = search.noise(allocation, float(n), float(k))
    because = give_reasons(search, chosen, ranked, request.fixed)
    if request.own_model is not None:
        because["micro_batches"] = f"a loop of your own gives {request.own_model} whole batches."
    if request.options.rule == "paper":
        because["batch_size"] = because["num_negatives"] = (
            f"{n:,}: the paper's n = k, the largest that fits with one set of negatives for the batch."
        )
    num_groups = count_groups(allocation.sharing, np.array(float(n)), search.mean_targets)
    return Plan(
        allocation=allocation,
        num_groups=round(float(num_groups)) if allocation.draws else 0,
        num_targets=round(n * search.mean_targets),
        optimizer=request.config.optimizer.optimizer,
        goal=request.options.goal,
        rule=request.options.rule,
        budget_bytes=request.budget_bytes,
        margin=request.options.margin,
        step_seconds=chosen.seconds,
        gradient=search.gradient,
        predicted_bytes=sum(parts.values()),
        parts=parts,
        noise={name: float(getattr(noise, name)) for name in NOISE},
        because=because,
        assumptions={**measured.noise.assumptions, **measured.told},
        candidates=runner_ups(search, chosen, ranked),
        fixed=tuple(sorted(request.fixed)),
        made_for=made_for(request, allocation),
        overhead_bytes=measured.counter.overhead,
        seconds_model=tuple(seconds_row(family, each) for family, each in measured.seconds.items()),
        noise_model=noise_record(measured.noise.constants),
    )


def made_for(request: Request, allocation: Allocation) -> dict[str, Value]:
    """Return what a plan takes as it is, and what its bytes and its noise hold for."""
    config = request.config
    if request.own_model is not None:  # a loop of one's own has no other settings
        chosen = {item.name for item in dataclasses.fields(Allocation)}
        names = [item.name for item in dataclasses.fields(config.objective) if item.name not in chosen]
        own = {name: config[name] for name in (*_OF_OWN, *names)}
        return {**own, "model": request.own_model}
    found = {name: config[name] for name in (*_GIVEN, *(("sampler",) if allocation.draws else ()))}
    return {**found, "hidden_dim": config.model.hidden_dim or config.model.dim}
