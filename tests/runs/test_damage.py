"""A run whose files were changed is refused in a sentence when it is opened or taken up."""

import json
import shutil

import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from budgetrec import Run, evaluate
from budgetrec.errors import BudgetrecError
from budgetrec.planner.following import resume
from budgetrec.runs.layout import BEST, LAST, METRICS_FILE


@pytest.fixture
def run(trained, tmp_path):
    """Return a copy of a run that may be spoiled; it stands at batch 2 of the 4 of its epoch."""
    return shutil.copytree(trained.table, tmp_path / "run")


def _change_state(path, changes):
    """Write a checkpoint again, with other things in the state that its header holds."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = json.loads(file.metadata()["budgetrec"]) | changes
    save_file(tensors, path, metadata={"budgetrec": json.dumps(state)})


def test_fewer_batches_than_were_done_are_refused_instead_of_running_for_ever(run):
    """With batch_size 64 an epoch has one batch, and the run has done two of it: no batch would ever come."""
    text = (run / "run.toml").read_text("utf-8")
    (run / "run.toml").write_text(text.replace("batch_size = 16\n", "batch_size = 64\n"), "utf-8")
    with pytest.raises(BudgetrecError, match="is at batch 2 of an epoch, which has 1: run"):
        resume(run, steps=9)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "6"},
        {"step": -1},
        {"examples": 1.5},
        {"loss_sum": "0"},
        {"best": []},
        {"batch": -1},
        {"seconds": float("nan")},
        {"next_evaluation": None},
        {"allocation": [1]},
        {"allocation": {"batch_size": "many"}},
        {"unknown": 1},
    ],
)
def test_progress_that_is_none_is_refused(run, changes):
    """Each entry of a checkpoint's state has its type and range."""
    _change_state(run / LAST, changes)
    with pytest.raises(BudgetrecError, match=r"last\.safetensors .*damaged"):
        resume(run, steps=9)


@pytest.mark.parametrize("state", [torch.zeros(5056, dtype=torch.uint8), torch.zeros(3)])
def test_a_state_of_no_generator_is_refused(run, state):
    """What torch cannot take as the state of a generator is told as such."""
    with safe_open(run / LAST, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(tensors | {"generator.negatives": state}, run / LAST, metadata=metadata)
    with pytest.raises(BudgetrecError, match="holds no state of the generator 'negatives': "):
        resume(run, steps=9)


@pytest.mark.parametrize("step", [None, "six", [], 1.5])
def test_weights_of_no_step_are_refused(run, step):
    """The best weights say of which step they are, as a whole number."""
    _change_state(run / BEST, {"step": step})
    with pytest.raises(BudgetrecError, match=r"best\.safetensors .*damaged"):
        Run.open(run)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda frame: frame.clear(), "no row of step 6 or before"),
        (lambda frame: frame.with_columns(step=pl.col("step") + 100), "no row of step 6 or before"),
        (lambda frame: frame.with_columns(pl.lit(None, pl.Float64).alias("ndcg@10")), "number 'ndcg@10'"),
        (lambda frame: frame.drop("mrr"), "number 'mrr'"),
        (lambda frame: frame.with_columns(peak_bytes=pl.lit("much")), "number 'peak_bytes'"),
        (lambda frame: frame.with_columns(step=pl.lit("x")), "no numeric 'step'"),
    ],
)
def test_a_run_does_not_go_on_from_metrics_that_are_none(run, change, told):
    """A run that is taken up needs the rows up to its step, whole."""
    path = run / METRICS_FILE
    change(pl.read_parquet(path)).write_parquet(path)
    with pytest.raises(BudgetrecError, match=told):
        resume(run, steps=9)


def test_an_evaluation_needs_no_peak(run):
    """Metrics without a column of peaks are shown without one."""
    path = run / METRICS_FILE
    pl.read_parquet(path).drop("peak_bytes").write_parquet(path)
    assert evaluate(run).training["peak_bytes"] is None
