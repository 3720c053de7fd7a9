"""What version 0.1 wrote still opens, and gives the numbers that 0.1 recorded; see tests/golden/README.md."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgetrec.planner import measurements
from tests.golden.losses import losses
from tests.golden.make import (
    FOLLOWED,
    OVERHEAD_BYTES,
    PLANS,
    PROSE,
    RECOMMENDED,
    RESUMED_STEPS,
    RUNS,
    last_row,
)

GOLDEN = Path(__file__).parent / "golden"
DATASET = GOLDEN / "dataset"
VALUES = json.loads((GOLDEN / "values.json").read_text())
# Clocks, measured bytes, names of folders, and the words for an allocation that a plan looked at.
LEFT_OUT = {
    "run", "files", "name", "why", "seconds", "evaluation_seconds", "mean_loss_over_seconds",
    "examples_per_second", "peak_bytes", "training_bytes",
}  # fmt: skip


def differences(found: object, wanted: object, path: str = "") -> Iterator[str]:
    """Name what was recorded and is now missing, or is further off than one in a million."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key not in LEFT_OUT:
                yield from differences(found.get(key), value, f"{path}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for place, value in enumerate(wanted):
            yield from differences(found[place], value, f"{path}/{place}")
    elif isinstance(wanted, float) and isinstance(found, float):
        if not math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-6):
            yield f"{path}: {found}, not {wanted}"
    elif found != wanted:
        yield f"{path}: {found}, not {wanted}"


@pytest.fixture
def answered(budgetrec):
    """Run a command that must succeed, and return the JSON object that it prints."""

    def call(*arguments: object) -> object:
        answer = budgetrec(*arguments, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    return call


@pytest.fixture(params=RUNS)
def run(request, tmp_path) -> Path:
    """Copy a run of 0.1 to where it may be written to."""
    return Path(shutil.copytree(GOLDEN / "runs" / request.param, tmp_path / request.param))


def test_every_objective_gives_its_recorded_loss():
    """Loss and gradients of one batch in double precision, for every objective, sampler and correction."""
    assert not list(differences(losses(), VALUES["losses"]))


def test_a_dataset_opens(answered):
    """`data show` tells the statistics that `prepare` wrote."""
    wanted = json.loads((DATASET / "dataset.json").read_text())["statistics"]
    assert not list(differences(answered("data", "show", DATASET)["statistics"], wanted))


def test_a_run_evaluates_as_it_did(run, answered):
    """Every metric and interval of the test part is the recorded one."""
    found = answered("evaluate", run, "--dataset", DATASET)
    assert not list(differences(found, VALUES["evaluations"][run.name]))


def test_a_run_recommends_as_it_did(run, answered):
    """The best items of two users, and their scores."""
    found = answered("recommend", run, *RECOMMENDED.split(), "--dataset", DATASET)
    assert not list(differences(found, VALUES["recommendations"][run.name]))


def test_a_run_resumes_as_it_would_have(run, answered):
    """From the checkpoint of 0.1 a run continues to where 0.1 itself took it."""
    answered("train", DATASET, "--resume", run, "--steps", RESUMED_STEPS)
    assert not list(differences(last_row(run), VALUES["resumed"][run.name]))


def test_a_plan_is_followed_as_it_was(answered, tmp_path):
    """`train --plan` with a plan.toml of 0.1 gives the run that 0.1 gave, and keeps the plan with it."""
    answered(
        "train", DATASET, "-o", tmp_path / "run", "--plan", GOLDEN / "plan.toml", *FOLLOWED.split()
    )  # fmt: skip
    assert not list(differences(last_row(tmp_path / "run"), VALUES["planned"]))
    assert (tmp_path / "run" / "plan.toml").is_file()


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_without_data_is_the_recorded_one(name, answered, monkeypatch):
    """The same bytes and catalogue give the same choice, with the same noise, seconds and bytes."""
    monkeypatch.setattr(measurements, "measure_overhead", lambda: OVERHEAD_BYTES)
    found = answered("plan", *PLANS[name].split())
    wanted = json.loads((GOLDEN / "plans.json").read_text())[name]
    assert not list(differences(found, wanted))
    assert all(found[part] for part in PROSE)
