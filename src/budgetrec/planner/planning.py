"""Plan how to train within a number of bytes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.models import SequenceModel
from budgetrec.models.own_model import complete, left_as_it_was, width_of
from budgetrec.planner.choosing import Planned, contenders, made_for, make_plan
from budgetrec.planner.measurements import assume, measure, measured_before
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import PlanOptions, Request, make_request
from budgetrec.settings.sections import RunConfig

_DEFAULT = PlanOptions()


def plan(
    dataset: Dataset | Path | str | None = None,
    *,
    memory: str | int,
    config: RunConfig | None = None,
    options: PlanOptions = _DEFAULT,
    model: nn.Module | None = None,
    features: Tensor | None = None,
    num_items: int | None = None,
    mean_length: float | None = None,
    measurements: Plan | Path | str | None = None,
    report: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """Plan how to train within `memory` bytes, such as "2GiB".

    `config` holds the settings of the run, and `options` what is wanted from the plan and which parts of
    the allocation are fixed. `model` is a model of your own that follows `SequenceModel`: the plan is then
    for a training loop of your own. It is trained for a short while, and is at the end as it was. Without a
    dataset, `num_items` and `mean_length` say what it is like, and the plan says what it assumed.
    `measurements` is an earlier plan for the same model and data, whose seconds and noise are taken over:
    with the same request it gives the same plan. `report` is called with the name of each stage.
    """
    return plan_with_search(
        make_request(memory, config, options),
        dataset,
        model=model,
        features=features,
        num_items=num_items,
        mean_length=mean_length,
        measurements=measurements,
        report=report,
    ).plan


def plan_with_search(
    request: Request,
    dataset: Dataset | Path | str | None,
    *,
    model: nn.Module | None = None,
    features: Tensor | None = None,
    num_items: int | None = None,
    mean_length: float | None = None,
    measurements: Plan | Path | str | None = None,
    report: Callable[[str], None] = lambda stage: None,
) -> Planned:
    """Plan as `plan` does, and keep what the plan was chosen from."""
    request.refuse_contradictions(has_features=features is not None)
    if dataset is None:
        if model is not None:
            raise ArgumentError("a model of your own is measured on its data. Pass a dataset.")
        if measurements is not None:
            raise ArgumentError("measurements are of a dataset, and there is none. Pass one.")
        return make_plan(request, assume(request, num_items, mean_length, report))
    if num_items is not None or mean_length is not None:
        raise ArgumentError("num_items and mean_length are for planning without a dataset. Leave them out.")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if request.config.training.device == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            "device is cuda, but torch sees no GPU here, so nothing can be measured. Pass --device cpu, or "
            f"plan without data: --num-items {dataset.num_items} --mean-length 40."
        )
    if model is None:
        return _plan_measured(request, dataset, features, None, measurements, report)
    if features is not None:
        raise ArgumentError("a model of your own reads item features itself. Leave features out.")
    with left_as_it_was(model):
        ready = complete(model, num_items=dataset.num_items, max_length=request.config.model.max_length)
        request = request.for_own_model(
            type(model).__name__,
            dim=width_of(ready),
            max_length=min(ready.max_length, request.config.model.max_length),
        )
        return _plan_measured(request, dataset, None, ready, measurements, report)


def _plan_measured(
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    model: SequenceModel | None,
    measurements: Plan | Path | str | None,
    report: Callable[[str], None],
) -> Planned:
    """Plan by what is measured now, or by what was measured for an earlier plan."""
    if measurements is not None:
        known = measurements if isinstance(measurements, Plan) else Plan.read(measurements)
        _refuse_other_measurements(known, request, dataset)
        return make_plan(
            request, measured_before(known, request, dataset, features, model=model, report=report)
        )
    measured = measure(
        request,
        dataset,
        features,
        model=model,
        report=report,
        contenders=lambda measured: contenders(request, measured),
    )
    return make_plan(request, measured)


def _refuse_other_measurements(plan: Plan, request: Request, dataset: Dataset) -> None:
    """Refuse a plan that was measured for something else, or that does not keep what was measured."""
    if not plan.noise_model or not plan.seconds_model:
        raise PlanError(
            "this plan does not hold what was measured for it, as plans of version 0.1 do not. Plan again "
            "without --measurements."
        )
    asked = made_for(request, plan.allocation)
    for name, value in plan.made_for.items():
        if asked.get(name) != value:
            raise PlanError(
                f"this plan was measured for {name} {value}, and {asked.get(name)} is asked for. Pass "
                f"--{name.replace('_', '-')} {value}, or leave out --measurements."
            )
    num_items = plan.seconds_model[0]["num_items"]
    if num_items != dataset.num_items:
        raise PlanError(
            f"this plan was measured for {num_items:,} items, and the dataset has {dataset.num_items:,}. "
            "Leave out --measurements."
        )
