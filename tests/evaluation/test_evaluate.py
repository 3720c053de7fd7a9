"""`budgetrec evaluate` and its Python twin, on runs that were really trained."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import budgetrec as library
from budgetrec.display.words import as_bytes
from budgetrec.ranking.validation import validate
from budgetrec.report import write_report
from budgetrec.runs.run import Run
from budgetrec.units import format_bytes
from tests.report.parsing import parse


@pytest.fixture
def run_folder(runs, tmp_path):
    """Return a copy of a run that a test may write into."""
    return shutil.copytree(runs.folders[4, 0], tmp_path / "run")


def test_json_has_the_promised_keys(run_folder, budgetrec):
    """Every metric at every cut-off, the losses, the areas and the speed, with intervals for the averages."""
    answer = budgetrec("evaluate", run_folder, "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    measures = ("ndcg", "hit_rate", "recall", "mrr", "map", "precision", "surprisal")
    for name in [f"{name}@{k}" for name in measures for k in (5, 10, 20)] + ["mrr", "test_loss"]:
        low, high = result["intervals"][name]
        assert low <= result[name] <= high, name
    for name in ("coverage@10", "val_loss", "aul_steps", "mean_loss_over_steps", "mean_loss_over_examples",
                 "mean_loss_over_seconds", "peak_bytes", "examples_per_second", "steps"):  # fmt: skip
        assert result[name] > 0, name
    assert result["recall@10"] == result["hit_rate@10"]
    assert result["map@10"] == result["mrr@10"]
    assert result["ties"] == "pessimistic"
    assert result["keep_seen"] is False
    assert result["num_users"] == 120


def test_per_user_values_average_to_the_summary(run_folder, budgetrec, runs):
    """The table has a row for each user by name, and its columns average to the saved figures."""
    assert budgetrec("evaluate", run_folder).code == 0
    users = pl.read_parquet(run_folder / "evaluation-test.parquet")
    summary = json.loads((run_folder / "evaluation-test.json").read_text())
    dataset = Run.open(run_folder).dataset
    assert users["user"].to_list() == dataset.user_labels.to_list()
    assert (
        users["item"].to_list() == dataset.item_labels.gather(dataset.items[dataset.test_targets]).to_list()
    )
    assert users.columns[:5] == ["user", "item", "rank", "loss", "repeated"]
    for name in users.columns[5:]:
        assert users[name].mean() == pytest.approx(summary[name]), name
    assert users["loss"].mean() == pytest.approx(summary["test_loss"])
    assert users["ndcg@10"].to_numpy() == pytest.approx(
        np.where(users["rank"] <= 10, 1 / np.log2(users["rank"].to_numpy() + 1), 0)
    )
    assert not list(run_folder.glob(".*"))  # nothing half-written


def test_the_table_says_how_it_was_measured(run_folder, budgetrec):
    """Intervals, ties and seen items are told, and where the per-user values went."""
    answer = budgetrec(
        "evaluate", run_folder, "--cutoffs", "3,7", "--keep-seen", "-o", run_folder / "u.parquet"
    )
    assert answer.code == 0, answer.err
    assert "95% interval" in answer.out
    assert "@3" in answer.out
    assert "items of the history kept" in answer.out
    assert "ties count against the model" in answer.out
    assert "mean loss over seconds" in answer.out
    assert "ndcg@7" in pl.read_parquet(run_folder / "u.parquet").columns
    assert not (run_folder / "evaluation-test.parquet").exists()


def test_what_training_adds_and_the_process_are_two_words_everywhere(run_folder, budgetrec):
    """Shell, JSON and page call the budget's number "training adds" and the other "process"; no peaks."""
    rows = Run.open(run_folder).metrics
    added, process = (rows[name].max() for name in ("training_bytes", "peak_bytes"))
    assert added < process
    answer = budgetrec("evaluate", run_folder)
    shown = [line.split(maxsplit=2) for line in answer.out.splitlines()]
    assert ["training", "adds", format_bytes(added)] in shown
    assert ["process", *format_bytes(process).split()] in shown
    found = json.loads(budgetrec("evaluate", run_folder, "--json").out)
    assert (found["training_bytes"], found["peak_bytes"]) == (added, process)
    page = " ".join(parse(write_report(run_folder).read_text("utf-8")).words.split())
    assert f"training adds {as_bytes(added)}" in page
    for text in (answer.out, page):
        assert "peak" not in text


def test_validation_agrees_with_what_training_wrote_down(run_folder):
    """The best row of the run is what evaluating its best weights on the validation part gives."""
    run = Run.open(run_folder)
    evaluation = library.evaluate(run, part="validation", cutoffs=[10])
    best = run.metrics.sort("ndcg@10", descending=True, maintain_order=True).row(0, named=True)
    assert evaluation.metrics["ndcg@10"] == pytest.approx(best["ndcg@10"])
    assert evaluation.metrics["val_loss"] == pytest.approx(best["val_loss"])
    assert evaluation.to_dict()["val_loss"] == evaluation.metrics["val_loss"]
    light = validate(run.model, run.dataset, run.dataset.validation())
    assert light == {name: pytest.approx(evaluation.metrics[name]) for name in light}


def test_the_twin_gives_the_same_numbers_for_the_same_seed(run_folder, budgetrec):
    """Command and function agree to the bit; another seed moves the intervals, not the averages."""
    result = json.loads(budgetrec("evaluate", run_folder, "--json", "--seed", "5").out)
    files = result.pop("files")
    assert len(files) == 2
    assert library.evaluate(run_folder, seed=5).to_dict() == result
    other = library.evaluate(run_folder, seed=6)
    assert other.metrics == pytest.approx({name: result[name] for name in other.metrics})
    assert other.to_dict()["intervals"] != result["intervals"]


def test_a_moved_dataset_is_found_where_it_is_said_to_be(run_folder, budgetrec, runs, tmp_path):
    """`--dataset` replaces the place that the run wrote down."""
    moved = shutil.copytree(runs.dataset, tmp_path / "moved")
    text = (run_folder / "run.toml").read_text().replace(str(runs.dataset), str(tmp_path / "gone"))
    (run_folder / "run.toml").write_text(text)
    assert budgetrec("evaluate", run_folder).code == 2
    assert budgetrec("evaluate", run_folder, "--dataset", moved).code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--part", "training"], "part is 'training'. Pass test or validation."),
        (["--cutoffs", "5,ten"], "--cutoffs is '5,ten'. Pass whole numbers"),
        (["--cutoffs", "0"], "cutoffs are [0]"),
        (["--cutoffs", f"5,{10**20}"], f"cutoffs are [5, {10**20}], and the catalogue has"),
        (["--output", "/nowhere/at/all.parquet"], "is not a folder"),
        (["--seed", "-1"], "seed is -1"),
    ],
)
def test_what_cannot_be_done_is_told(run_folder, refused, arguments, sentence):
    """One sentence, exit 2, nothing written."""
    assert sentence in refused("evaluate", run_folder, *arguments)


def test_a_folder_that_is_no_run_is_refused(tmp_path, refused):
    """The sentence says what is missing."""
    (tmp_path / "empty").mkdir()
    assert "is not a run" in refused("evaluate", tmp_path / "empty")
