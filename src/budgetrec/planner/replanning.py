"""Plan again while a run trains: the noise is measured again, bytes and seconds are those of its plan."""

import dataclasses

from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.planner.bytes import ByteCounter, count_bytes
from budgetrec.planner.choosing import make_plan
from budgetrec.planner.measured_noise import MeasuredNoise, probe_noise
from budgetrec.planner.measurements import Measurements, data_of
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import PlanOptions, Request
from budgetrec.planner.seconds import seconds_of
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper
from budgetrec.training.changes import Change, Replan

_WORTH_A_CHANGE = 0.05  # of the time to the same loss; a smaller gain may be an error of measurement


def make_replan(plan: Plan, config: RunConfig, dataset: Dataset, features: Tensor | None) -> Replan:
    """Return what plans again for a run that follows `plan`, with the same objective and table updates."""
    fixed = {name: getattr(plan.allocation, name) for name in plan.fixed}
    request = Request(
        config=config,
        budget_bytes=plan.budget_bytes,
        options=PlanOptions(goal=plan.goal, rule=plan.rule, margin=plan.margin, **fixed),
    )
    known: list[Measurements] = []  # bytes are counted when they are first needed

    def replan(stepper: Stepper) -> Change:
        noise = probe_noise(stepper)
        if not known:
            known.append(measurements_of(plan, request, dataset, features, stepper.device.type, noise))
        return _compare(plan, request, dataclasses.replace(known[0], noise=noise), stepper)

    return replan


def measurements_of(
    plan: Plan,
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    device_type: str,
    noise: MeasuredNoise,
) -> Measurements:
    """Return what a plan was made from, with bytes and seconds as it keeps them and a noise of its own."""
    data = data_of(dataset, request, features)
    seconds = dict(seconds_of(row) for row in plan.seconds_model)
    kept = (plan.allocation.objective, plan.allocation.table_updates)
    families = [
        dataclasses.replace(family, micro_batches=request.options.micro_batches)
        for family in seconds
        if (family.objective, family.table_updates) == kept
    ]
    counter = ByteCounter(data=data, device_type=device_type, overhead=plan.overhead_bytes)
    return Measurements(
        data=data,
        counter=counter,
        families=tuple(families),
        memory=count_bytes(request, families, counter),
        seconds=seconds,
        noise=noise,
    )


def _compare(plan: Plan, request: Request, measured: Measurements, stepper: Stepper) -> Change:
    """Change the allocation if the best one now saves enough time."""
    planned = make_plan(request, measured)
    new, old, search = planned.plan.allocation, stepper.allocation, planned.search
    now = dataclasses.replace(old, micro_batches=None, table_updates=plan.allocation.table_updates)
    then = dataclasses.replace(now, sharing=new.sharing, lean=new.lean)
    before = float(search.score(now, old.batch_size, old.num_negatives))
    gain = 1 - float(search.score(then, new.batch_size, new.num_negatives)) / before
    if gain < _WORTH_A_CHANGE:
        return Change(sentence="planned again; the allocation stays.")
    later = f", and n = {new.batch_size:,} from the next epoch on" if new.batch_size != old.batch_size else ""
    changed = dataclasses.replace(then.at(new.batch_size, new.num_negatives), micro_batches=old.micro_batches)
    return Change(
        allocation=changed,
        sentence=f"planned again; k = {new.num_negatives:,} per {new.sharing}{later}: {gain:.0%} less time "
        f"to the same loss than n = {old.batch_size:,}, k = {old.num_negatives:,} per {old.sharing}.",
    )
