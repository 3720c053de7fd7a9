"""The main job, from a file and a number of bytes to a report."""

import errno
import json
import os
import re
import threading
from contextlib import nullcontext

import polars as pl
import pytest

from budgetrec import fitting
from budgetrec.cli import progress_lines
from budgetrec.data import demo
from budgetrec.data.prepare import prepare
from budgetrec.errors import BudgetrecError, DataError, InterruptedRunError
from budgetrec.evaluation.evaluate import evaluate
from budgetrec.files import claim
from budgetrec.fitting import fit
from budgetrec.planner.planning import plan_with_search
from budgetrec.planner.request import PlanOptions, make_request
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from budgetrec.training import loop
from budgetrec.training.tracking import Stages, Watcher

SMALL = {"dim": 16, "max_length": 20, "num_heads": 1, "epochs": 2}
FLAGS = (
    "--dim",
    "16",
    "--max-length",
    "20",
    "--num-heads",
    "1",
    "--epochs",
    "2",
    "--warm-up-targets",
    "2000",
    "--no-lean",
)


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Write generated interactions: 200 users, 80 items; the test items of 50 users are repeats."""
    path = tmp_path_factory.mktemp("raw") / "events.csv"
    truth = demo.make_truth(num_users=200, num_items=80, seed=0)
    events = demo.generate_events(truth, num_rows=4000, seed=1)
    first = events.group_by("user", maintain_order=True).first().head(50)  # whose users end where they began
    later = first.with_columns(timestamp=pl.col("timestamp") + events["timestamp"].max() + 1)
    pl.concat([events, later]).write_csv(path)
    return path


def test_one_command_prepares_plans_trains_evaluates_and_reports(events, budgetrec, tmp_path, monkeypatch):
    """All files are there, the run can be opened, and the JSON says what was done; a log sees each stage."""
    monkeypatch.setattr(progress_lines, "QUIET_SECONDS", 0)
    answer = budgetrec("fit", events, "--memory", "400MiB", "-o", tmp_path / "run", "--json", *FLAGS)
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    for stage in ("ordering", "counting the bytes of a step", "warming up", "making the model", "training",
                  "ranking 200 items among 80", "writing the report"):  # fmt: skip
        assert re.search(rf"^\d:\d\d:\d\d {stage}", answer.err, re.MULTILINE), stage
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.toml", "plan.toml", "metrics.parquet", "report.html", "evaluation-test.json"} <= names
    run = Run.open(tmp_path / "run")
    assert run.config.training.batch_size == said["plan"]["batch_size"]
    assert said["training"]["training_bytes"] <= 400 * 2**20
    assert said["evaluation"]["ndcg@10"] == pytest.approx(evaluate(run).metrics["ndcg@10"])
    assert "The plan" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_a_prepared_folder_is_taken_as_it_is(events, tmp_path):
    """No second dataset is made, and settings that are fixed stay."""
    dataset = prepare(events, tmp_path / "dataset")
    fitted = fit(
        dataset.folder,
        tmp_path / "run",
        memory="400MiB",
        config=RunConfig().replaced(SMALL),
        planning=PlanOptions(
            warm_up_targets=2000, batch_size=16, num_negatives=20, sharing="sequence", lean=False
        ),
    )
    assert fitted.run.config.training.batch_size == 16
    assert fitted.run.config.objective.num_negatives == 20
    assert {path.name for path in tmp_path.iterdir()} == {"dataset", "run"}


def test_item_features_take_the_place_of_the_table(events, budgetrec, tmp_path):
    """They are read once the data is prepared, and planned with."""
    truth = demo.make_truth(num_users=200, num_items=80, seed=0)
    demo.item_features(truth, seed=0).write_parquet(tmp_path / "items.parquet")
    features = ("--item-features", tmp_path / "items.parquet")
    answer = budgetrec("fit", events, "--memory", "400MiB", "-o", tmp_path / "run", *features, *FLAGS)
    assert answer.code == 0, answer.err
    assert Run.open(tmp_path / "run").features is not None
    assert "50 of the 200 held-out items (25%) are ones that the user had before" in answer.out


def test_a_budget_that_nothing_fits_leaves_nothing_behind(events, refused, tmp_path):
    """The prepared dataset goes again, and the sentence says what takes the bytes."""
    told = refused("fit", events, "--memory", "2MiB", "-o", tmp_path / "run", *FLAGS)
    assert "nothing fits in 2 MiB" in told


@pytest.mark.parametrize("memory", ["0", "-1", "2 bananas", "1e30"])
def test_nonsense_budgets_are_refused_at_once(events, refused, tmp_path, memory):
    """Before anything is read."""
    refused("fit", events, f"--memory={memory}", "-o", tmp_path / "run")


FIXED = PlanOptions(warm_up_targets=1000, batch_size=16, num_negatives=20, sharing="sequence", lean=False)


def _fit(events, output, **changes):
    config = RunConfig().replaced({**SMALL, "threads": 1, **changes.pop("settings", {})})
    return fit(events, output, **{"memory": "400MiB", "config": config, "planning": FIXED, **changes})


@pytest.fixture(scope="module")
def planned(events, tmp_path_factory):
    """Plan once, as `_fit` asks for it."""
    dataset = prepare(events, tmp_path_factory.mktemp("planned") / "dataset")
    config = RunConfig().replaced({**SMALL, "threads": 1})
    return plan_with_search(make_request("400MiB", config, FIXED), dataset)


@pytest.fixture
def at_once(planned, monkeypatch):
    """Plan without measuring anything."""
    monkeypatch.setattr(fitting, "plan_with_search", lambda *given, **named: planned)


def _breaking_at(stage):
    """Return stages that are interrupted when one whose name begins so is told."""

    class Breaking(Stages):
        def __call__(self, name):
            if name.startswith(stage):
                raise KeyboardInterrupt

    return lambda: nullcontext(Breaking())


class _BreakingWatcher(Watcher):
    def step(self, *, step, **seen):
        if step == 3:
            raise KeyboardInterrupt


def _left(folder):
    return {path.name for path in folder.iterdir()}


def test_an_interrupted_fit_goes_on_in_the_same_words_in_each_of_its_stages(events, tmp_path):
    """Preparing, planning, training, evaluating, reporting: each time it says what is kept and how to go on.

    The last call ends with the report, of a run that was planned and trained once.
    """
    output = tmp_path / "run"
    stops = [
        ({"stages": _breaking_at("splitting")}, "while preparing; nothing was left behind", set()),
        ({"stages": _breaking_at("counting")}, "while planning; {}-dataset is prepared", {"run-dataset"}),
        ({"watcher": _BreakingWatcher()}, "at once; step 0 is saved", {"run-dataset", "run"}),
        (
            {"stages": _breaking_at("ranking")},
            "while evaluating; {} is trained and saved",
            {"run-dataset", "run"},
        ),
        (
            {"stages": _breaking_at("writing the")},
            "while reporting; {} is trained and evaluated",
            {"run-dataset", "run"},
        ),
    ]
    plans = []
    for changes, told, left in stops:
        with pytest.raises(InterruptedRunError) as caught:
            _fit(events, output, hear_plan=plans.append, **changes)
        again = f"{told.format(output)}. Continue with: the same call of budgetrec.fit"
        assert str(caught.value).startswith(f"interrupted {again}")
        assert _left(tmp_path) == left
    prepared = (tmp_path / "run-dataset").stat().st_ino
    fitted = _fit(events, output, hear_plan=plans.append)
    assert len(plans) == 1
    assert fitted.plan == plans[0]
    assert (tmp_path / "run-dataset").stat().st_ino == prepared
    assert fitted.run.metrics["step"].to_list() == [0, 13, 26]
    assert {"report.html", "evaluation-test.json"} <= _left(output)
    with pytest.raises(DataError, match="exists already"):  # it has ended
        _fit(events, output)


def test_a_fit_that_was_cut_off_goes_on_with_nothing_else(events, tmp_path, at_once):
    """Other settings, bytes, wishes, features or data are refused, and what is there stays."""
    output = tmp_path / "run"
    with pytest.raises(InterruptedRunError, match=r"Continue with: .*, without overwrite$"):
        _fit(events, output, watcher=_BreakingWatcher(), overwrite=True)
    other = tmp_path / "other.csv"
    other.write_text("\n".join(events.read_text().splitlines()[:-50]))
    for changes, told in (
        ({"settings": {"epochs": 3}}, "has epochs 2, not 3"),
        ({"settings": {"dim": 8}}, "has dim 16, not 8"),
        ({"memory": "500MiB"}, "has memory 419430400, not 524288000"),
        ({"planning": PlanOptions(goal="noise")}, "has goal time, not noise"),
        ({"planning": PlanOptions(warm_up_targets=1000, batch_size=8)}, "has batch_size 16, not 8"),
        ({"inputs": other}, "run-dataset exists already"),
    ):
        with pytest.raises(BudgetrecError, match=told):
            _fit(**{"events": events, "output": output, **_renamed(changes)})
    assert _left(tmp_path) == {"run", "run-dataset", "other.csv"}
    assert Run.open(output).metrics["step"].to_list() == [0]


def _renamed(changes):
    return {{"inputs": "events"}.get(name, name): value for name, value in changes.items()}


def test_a_fit_that_finds_no_room_leaves_nothing_that_it_made(events, tmp_path, monkeypatch, at_once):
    """The disk is full when the run is written: the dataset made for it goes too, an earlier one stays."""

    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(loop, "write_environment", full)
    with pytest.raises(DataError, match="no room left to write"):
        _fit(events, tmp_path / "run")
    assert _left(tmp_path) == set()
    prepare(events, tmp_path / "run-dataset")
    with pytest.raises(DataError, match="no room left to write"):
        _fit(events, tmp_path / "run")
    assert _left(tmp_path) == {"run-dataset"}


def test_a_second_fit_into_one_folder_is_refused_at_once(events, tmp_path):
    """Also while the first one only prepares or plans."""
    told = []

    def second():
        try:
            _fit(events, tmp_path / "run")
        except DataError as error:
            told.append(str(error))

    with claim(tmp_path / "run"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(told) == 1
    assert "is being written by another process" in told[0]
    assert _left(tmp_path) == set()


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupted_command_says_the_exact_command_that_goes_on(
    events, budgetrec, tmp_path, monkeypatch, begun
):
    """Its own words, quoted for a shell; --overwrite is left out once the run has begun."""

    def interrupted(*given, again, **named):
        raise InterruptedRunError("interrupted.", again(begun))

    monkeypatch.setattr(fitting, "fit", interrupted)
    answer = budgetrec("fit", events, "--memory", "1 GiB", "-o", tmp_path / "run", "--overwrite")
    assert answer.code == 2
    overwrite = "" if begun else " --overwrite"
    told = f"budgetrec fit {events} --memory '1 GiB' -o {tmp_path / 'run'}{overwrite}"
    assert answer.err == f"budgetrec: interrupted. Continue with: {told}\n"
