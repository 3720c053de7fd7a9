"""The public names are few, pinned, and cheap to import."""

import subprocess
import sys

import budgetrec


def test_public_names_are_pinned():
    """Adding or removing a public name is a decision, so it shows here."""
    assert sorted(budgetrec.__all__) == [
        "Allocation", "BudgetrecError", "Cleaning", "Columns", "Comparison", "Dataset", "Evaluation",
        "Fitted", "LeaveOneOut", "ModelConfig", "ObjectiveConfig", "OptimizerConfig", "Plan", "PlanOptions",
        "PrepareOptions", "Run", "RunConfig", "SampledSoftmax", "Temporal", "TemporalUsers",
        "TrainingBatches", "TrainingConfig", "Watcher", "__version__", "compare", "evaluate", "fit", "models",
        "plan", "prepare", "recommend", "resume", "samplers", "train",
    ]  # fmt: skip
    for name in budgetrec.__all__:
        assert getattr(budgetrec, name) is not None


def test_the_command_line_starts_without_torch():
    """`--help` and `prepare` need no torch, which takes a second to import."""
    code = "import budgetrec.cli, budgetrec.data.prepare, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
