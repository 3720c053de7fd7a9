"""Plan how to train within a number of bytes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.models import SequenceModel
from budgetrec.planner.choosing import Planned, contenders, make_plan
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
    model: SequenceModel | None = None,
    features: Tensor | None = None,
    num_items: int | None = None,
    mean_length: float | None = None,
    measurements: Plan | Path | str | None = None,
    report: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """Plan how to train within `memory` bytes, such as "2GiB".

    `config` holds the settings of the run, and `options` what is wanted from the plan and which parts of
    the allocation are fixed. `model` is a model of your own that follows `SequenceModel`; it is trained for a
    short while. Without a dataset, `num_items` and `mean_length` say what it is like, and the plan says what
    it assumed. `measurements` is an earlier plan for the same model and data, whose seconds and noise are
    taken over: with the same request it gives the same plan. `report` is called with the name of each stage.
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
    model: SequenceModel | None = None,
    features: Tensor | None = None,
    num_items: int | None = None,
    mean_length: float | None = None,
    measurements: Plan | Path | str | None = None,
    report: Callable[[str], None] = lambda stage: None,
) -> Planned:
    """Plan as `plan` does, and keep what the plan was chosen from."""
    request.refuse_contradictions(has_features=features is not None)
    if dataset is None:
        if measurements is not None:
            raise ArgumentError("measurements are of a dataset, and there is none. Pass one.")
        return make_plan(request, assume(request, num_items, mean_length, report))
    if num_items is not None or mean_length is not None:
        raise ArgumentError("num_items and mean_length are for planning without a dataset. Leave them out.")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if measurements is not None:
        known = measurements if isinstance(measurements, Plan) else Plan.read(measurements)
        return make_plan(
            request, measured_before(known, request, dataset, features, model=model, report=report)
        )
    if request.config.training.device == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            "device is cuda, but torch sees no GPU here, so nothing can be measured. Pass --device cpu, or "
            f"plan without data: --num-items {dataset.num_items} --mean-length 40."
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
