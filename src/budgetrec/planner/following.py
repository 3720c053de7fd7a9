"""Train by a plan, or without one."""

from pathlib import Path

import tomli_w
from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.options import Value
from budgetrec.planner.pace import PlannedPace
from budgetrec.planner.plan import Plan
from budgetrec.planner.replanning import make_replan
from budgetrec.runs.layout import PLAN
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from budgetrec.training import loop
from budgetrec.training.changes import Replan
from budgetrec.training.tracking import Watcher


def train(
    dataset: Dataset | Path | str,
    output: Path | str,
    config: RunConfig | None = None,
    *,
    features: Tensor | None = None,
    plan: Plan | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> Run:
    """Train a model on a prepared dataset and return the run, which is saved in the folder `output`.

    A `plan` decides the allocation and what its bytes hold for, such as the width of the model; `config`
    decides the rest. `features` (K, f) stand in for a trained table of item vectors. `watcher` is called at
    each step and evaluation.
    """
    settled = config or RunConfig()
    return follow(
        dataset,
        output,
        settled if plan is None else plan.configure(settled),
        plan,
        features=features,
        overwrite=overwrite,
        watcher=watcher,
    )


def follow(
    dataset: Dataset | Path | str,
    output: Path | str,
    config: RunConfig,
    plan: Plan | None,
    *,
    features: Tensor | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> Run:
    """Train with `config` as it is, and keep the plan that it came from."""
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    return loop.train(
        dataset,
        Path(output),
        config,
        features=features,
        documents={} if plan is None else {PLAN: tomli_w.dumps(plan.to_dict())},
        replan=_replan(plan, config, dataset, features),
        overwrite=overwrite,
        watcher=_at_planned_pace(plan, watcher),
    )


def resume(
    folder: Path | str,
    *,
    dataset: Dataset | Path | str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    checkpoint_seconds: float | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Continue a run that was interrupted or that ended, from its last checkpoint; it resumes bit for bit.

    `dataset` says where the data is now, if it has moved. The numbers say when the run stops and how often it
    saves; None leaves them as they are.
    """
    changes: dict[str, Value] = {
        "epochs": epochs,
        "steps": steps,
        "seconds": seconds,
        "patience": patience,
        "checkpoint_seconds": checkpoint_seconds,
    }
    run = Run.open(folder, dataset=dataset, weights=None)
    config = run.config.replaced({name: value for name, value in changes.items() if value is not None})
    plan = Plan.read(run.folder) if (run.folder / PLAN).is_file() else None
    replan = _replan(plan, config, run.dataset, run.features)
    return loop.resume(run, config, replan=replan, watcher=_at_planned_pace(plan, watcher))


def _at_planned_pace(plan: Plan | None, watcher: Watcher | None) -> Watcher | None:
    """Return a watcher that also compares steps with what was measured for a plan."""
    if plan is None or "not measured" in plan.assumptions.get("seconds", ""):
        return watcher
    return PlannedPace(watcher or Watcher(), plan.step_seconds)


def _replan(plan: Plan | None, config: RunConfig, dataset: Dataset, features: Tensor | None) -> Replan | None:
    if config.training.replan is None:
        return None
    if plan is None:
        raise ArgumentError("replan changes a plan, and there is none. Pass --plan, or use budgetrec fit.")
    return make_replan(plan, config, dataset, features)
