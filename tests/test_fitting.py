"""The main job, from a file and a number of bytes to a report."""

import json
import re

import polars as pl
import pytest

from budgetrec.cli import progress_lines
from budgetrec.data import demo
from budgetrec.evaluation.evaluate import evaluate
from budgetrec.fitting import fit
from budgetrec.planner.request import PlanOptions
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig

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
    from budgetrec.data.prepare import prepare

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
