"""Train sequential recommenders inside a memory budget.

The names below are the whole public interface; each is imported when it is first used, so that
`import budgetrec` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from budgetrec._version import __version__
from budgetrec.errors import BudgetrecError
from budgetrec.lazy import attributes

if TYPE_CHECKING:
    from budgetrec import models, samplers
    from budgetrec.allocation import Allocation
    from budgetrec.data.batches import TrainingBatches
    from budgetrec.data.cleaning import Cleaning
    from budgetrec.data.columns import Columns
    from budgetrec.data.prepare import PrepareOptions, prepare
    from budgetrec.data.splits import LeaveOneOut, Temporal, TemporalUsers
    from budgetrec.data.store import Dataset
    from budgetrec.evaluation.compare import Comparison, compare
    from budgetrec.evaluation.evaluate import Evaluation, evaluate
    from budgetrec.fitting import Fitted, fit
    from budgetrec.objectives.modules import SampledSoftmax
    from budgetrec.planner.following import resume, train
    from budgetrec.planner.plan import Plan
    from budgetrec.planner.planning import plan
    from budgetrec.planner.request import PlanOptions
    from budgetrec.recommending import recommend
    from budgetrec.runs.run import Run
    from budgetrec.settings.sections import (
        ModelConfig,
        ObjectiveConfig,
        OptimizerConfig,
        RunConfig,
        TrainingConfig,
    )
    from budgetrec.training.tracking import Watcher

__all__ = [
    "Allocation",
    "BudgetrecError",
    "Cleaning",
    "Columns",
    "Comparison",
    "Dataset",
    "Evaluation",
    "Fitted",
    "LeaveOneOut",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Plan",
    "PlanOptions",
    "PrepareOptions",
    "Run",
    "RunConfig",
    "SampledSoftmax",
    "Temporal",
    "TemporalUsers",
    "TrainingBatches",
    "TrainingConfig",
    "Watcher",
    "__version__",
    "compare",
    "evaluate",
    "fit",
    "models",
    "plan",
    "prepare",
    "recommend",
    "resume",
    "samplers",
    "train",
]

_HOMES = {
    "Allocation": "budgetrec.allocation",
    "Cleaning": "budgetrec.data.cleaning",
    "Columns": "budgetrec.data.columns",
    "Comparison": "budgetrec.evaluation.compare",
    "Dataset": "budgetrec.data.store",
    "Evaluation": "budgetrec.evaluation.evaluate",
    "Fitted": "budgetrec.fitting",
    "LeaveOneOut": "budgetrec.data.splits",
    "ModelConfig": "budgetrec.settings.sections",
    "ObjectiveConfig": "budgetrec.settings.sections",
    "OptimizerConfig": "budgetrec.settings.sections",
    "Plan": "budgetrec.planner.plan",
    "PlanOptions": "budgetrec.planner.request",
    "PrepareOptions": "budgetrec.data.prepare",
    "Run": "budgetrec.runs.run",
    "RunConfig": "budgetrec.settings.sections",
    "SampledSoftmax": "budgetrec.objectives.modules",
    "Temporal": "budgetrec.data.splits",
    "TemporalUsers": "budgetrec.data.splits",
    "TrainingBatches": "budgetrec.data.batches",
    "TrainingConfig": "budgetrec.settings.sections",
    "Watcher": "budgetrec.training.tracking",
    "compare": "budgetrec.evaluation.compare",
    "evaluate": "budgetrec.evaluation.evaluate",
    "fit": "budgetrec.fitting",
    "plan": "budgetrec.planner.planning",
    "prepare": "budgetrec.data.prepare",
    "recommend": "budgetrec.recommending",
    "resume": "budgetrec.planner.following",
    "train": "budgetrec.planner.following",
}
_find = attributes(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name in ("models", "samplers"):  # modules; importing them sets the name here
        return import_module(f"budgetrec.{name}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted(__all__)
