"""Plan how to train within a number of bytes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.models.own_model import complete, left_as_it_was, width_of
from budgetrec.planner.choosing import Planned, make_plan
from budgetrec.planner.measurements import assume, measure
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import PlanOptions, Request
from budgetrec.settings.sections import RunConfig
from budgetrec.units import parse_bytes

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
    report: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """Plan how to train within `memory` bytes, such as "2GiB".

    `config` holds the settings of the run, and `options` what is wanted of the plan and what of the
    allocation is fixed. `model` is a model of your own that follows `SequenceModel`: the plan is then for a
    training loop of your own. It is trained for a short while, and is at the end as it was. Without a
    dataset, `num_items` and `mean_length` say what it is like, and the plan says what it assumed. `report` is
    called with the name of each stage.
    """
    return plan_with_search(
        make_request(memory, config, options),
        dataset,
        model=model,
        features=features,
        num_items=num_items,
        mean_length=mean_length,
        report=report,
    ).plan


def make_request(memory: str | int, config: RunConfig | None, options: PlanOptions) -> Request:
    """Put a request together; what is fixed of the allocation becomes part of the settings."""
    settled = (config or RunConfig()).replaced(options.fixed)
    return Request(config=settled, budget_bytes=parse_bytes(memory), options=options)


def plan_with_search(
    request: Request,
    dataset: Dataset | Path | str | None,
    *,
    model: nn.Module | None = None,
    features: Tensor | None = None,
    num_items: int | None = None,
    mean_length: float | None = None,
    report: Callable[[str], None] = lambda stage: None,
) -> Planned:
    """Plan as `plan` does, and keep what the plan was chosen from."""
    if dataset is None:
        if model is not None:
            raise ArgumentError("a model of your own is measured on its data. Pass a dataset.")
        return make_plan(request, assume(request, num_items, mean_length, report))
    if num_items is not None or mean_length is not None:
        raise ArgumentError("num_items and mean_length describe data that is not here. Leave them out.")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if request.config.training.device == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            "device is cuda, but torch sees no GPU here, so nothing can be measured. Pass --device cpu, or "
            f"plan without data: --num-items {dataset.num_items} --mean-length 40."
        )
    if model is None:
        return make_plan(request, measure(request, dataset, features, report=report))
    if features is not None:
        raise ArgumentError("a model of your own reads item features itself. Leave features out.")
    with left_as_it_was(model):
        ready = complete(model, num_items=dataset.num_items, max_length=request.config.model.max_length)
        request = request.for_own_model(
            type(model).__name__,
            dim=width_of(ready),
            max_length=min(ready.max_length, request.config.model.max_length),
        )
        return make_plan(request, measure(request, dataset, None, model=ready, report=report))
