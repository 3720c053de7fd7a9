"""Train sequential recommenders inside a memory budget.

The names below are the whole public interface; each is imported when it is first used, so that
`import budgetrec` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from budgetrec._version import __version__
from budgetrec.errors import BudgetrecError

if TYPE_CHECKING:
    from budgetrec import models, samplers
    from budgetrec.data.batches import TrainingBatches
    from budgetrec.data.cleaning import Cleaning
    from budgetrec.data.columns import Columns
    from budgetrec.data.prepare import prepare
    from budgetrec.data.splits import LeaveOneOut, Temporal, TemporalUsers
    from budgetrec.data.store import Dataset
    from budgetrec.evaluation.compare import compare
    from budgetrec.evaluation.evaluate import evaluate
    from budgetrec.fitting import fit
    from budgetrec.objectives import SampledSoftmax
    from budgetrec.planner import Plan, plan
    from budgetrec.recommending import recommend
    from budgetrec.runs.run import Run
    from budgetrec.training.loop import resume, train

__all__ = [
    "BudgetrecError",
    "Cleaning",
    "Columns",
    "Dataset",
    "LeaveOneOut",
    "Plan",
    "Run",
    "SampledSoftmax",
    "Temporal",
    "TemporalUsers",
    "TrainingBatches",
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
    "Cleaning": "budgetrec.data.cleaning",
    "Columns": "budgetrec.data.columns",
    "Dataset": "budgetrec.data.store",
    "LeaveOneOut": "budgetrec.data.splits",
    "Plan": "budgetrec.planner",
    "Run": "budgetrec.runs.run",
    "SampledSoftmax": "budgetrec.objectives",
    "Temporal": "budgetrec.data.splits",
    "TemporalUsers": "budgetrec.data.splits",
    "TrainingBatches": "budgetrec.data.batches",
    "compare": "budgetrec.evaluation.compare",
    "evaluate": "budgetrec.evaluation.evaluate",
    "fit": "budgetrec.fitting",
    "plan": "budgetrec.planner",
    "prepare": "budgetrec.data.prepare",
    "recommend": "budgetrec.recommending",
    "resume": "budgetrec.training.loop",
    "train": "budgetrec.training.loop",
}


def __getattr__(name: str) -> object:
    if name in ("models", "samplers"):  # modules; importing them sets the name here
        return import_module(f"budgetrec.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'budgetrec' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
