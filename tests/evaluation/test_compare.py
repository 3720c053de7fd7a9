"""`budgetrec compare`: paired over users, paired over seeds, and figures."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from scipy import stats

import budgetrec as library
from budgetrec.planner.following import train
from budgetrec.settings.sections import RunConfig
from tests.evaluation.conftest import SETTINGS


@pytest.fixture(scope="module")
def comparison(runs):
    """Compare k = 4 and k = 16, two seeds each."""
    return library.compare([runs.folders[key] for key in ((4, 0), (16, 0), (4, 1), (16, 1))])


def test_runs_are_rows_with_what_differs(comparison, runs):
    """The settings column names what differs between the runs, and nothing else."""
    assert comparison.runs["run"].to_list() == ["k4-seed0", "k16-seed0", "k4-seed1", "k16-seed1"]
    assert comparison.runs["settings"].to_list() == ["num_negatives=4", "num_negatives=16"] * 2
    assert comparison.runs["seed"].to_list() == [0, 0, 1, 1]
    alone = library.evaluate(runs.folders[16, 0])
    assert comparison.runs["ndcg@10"][1] == alone.metrics["ndcg@10"]
    assert comparison.runs["mean_loss_over_steps"][1] == pytest.approx(alone.training["mean_loss_over_steps"])


def test_seconds_end_where_the_fastest_run_ends(comparison, runs):
    """All runs took the same steps, so the horizon in seconds is the fastest run's last."""
    ends = [pl.read_parquet(folder / "metrics.parquet")["seconds"][-1] for folder in runs.folders.values()]
    assert comparison.horizons["seconds"] == min(ends)
    assert comparison.horizons["steps"] == comparison.runs["steps"][0]


def test_differences_over_users_are_those_of_the_per_user_values(comparison, runs):
    """Mean and p-value are of the paired t-test that scipy makes of the saved values."""
    first = library.evaluate(runs.folders[4, 0]).per_user
    other = library.evaluate(runs.folders[16, 1]).per_user
    row = comparison.users.row(
        by_predicate=(pl.col("run") == "k16-seed1") & (pl.col("metric") == "mrr"), named=True
    )
    assert row["difference"] == pytest.approx(other["mrr"].mean() - first["mrr"].mean())
    assert row["p_value"] == pytest.approx(stats.ttest_rel(other["mrr"], first["mrr"]).pvalue)
    assert row["low"] <= row["difference"] <= row["high"]
    assert row["users"] == 120


def test_runs_that_differ_in_their_seed_are_tested_over_seeds(comparison):
    """Two groups of two seeds: the difference is paired by seed and has Student's interval."""
    rows = comparison.seeds.filter(pl.col("metric") == "test_loss")
    assert rows["group"].to_list() == ["k4-seed0", "k16-seed0"]
    assert rows["seeds"].to_list() == [2, 2]
    losses = comparison.runs["test_loss"].to_numpy()
    differences = np.array([losses[1] - losses[0], losses[3] - losses[2]])
    assert rows["difference"][0] is None
    assert rows["difference"][1] == pytest.approx(differences.mean())
    half = 12.7062 * differences.std(ddof=1) / np.sqrt(2)
    assert rows["difference_high"][1] == pytest.approx(differences.mean() + half, rel=1e-4)
    assert rows["pairs"][1] == 2
    assert "mean_loss_over_seconds" in comparison.seeds["metric"].to_list()


def test_without_repeated_settings_there_is_nothing_to_say_about_seeds(runs):
    """Two runs of two settings: no table over seeds."""
    assert library.compare([runs.folders[4, 0], runs.folders[16, 1]], part="validation").seeds.is_empty()


def test_the_folder_holds_tables_and_curves(runs, budgetrec, tmp_path):
    """JSON, CSV, Markdown, SVG and a page without the network; the words printed are in the Markdown."""
    folders = list(runs.folders.values())
    answer = budgetrec("compare", *folders, "-o", tmp_path / "out", "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(result["files"])
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["runs"] == result["runs"]
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "| k16-seed1 | ndcg@10 |" in text
    assert "ties count against the model" in text
    svg = (tmp_path / "out" / "curves.svg").read_text()
    assert all(
        word in svg for word in ("validation loss", "validation NDCG@10", "training seconds", "k16-seed1")
    )
    assert 'src="http' not in (tmp_path / "out" / "curves.html").read_text()
    assert pl.read_csv(tmp_path / "out" / "runs.csv")["ndcg@10"].to_list() == pytest.approx(
        [row["ndcg@10"] for row in result["runs"]]
    )
    answer = budgetrec("compare", *folders[:2])
    assert "Against k4-seed0, paired over 120 users" in answer.out
    assert "Over seeds" in answer.out


def test_runs_of_the_same_name_are_told_apart_by_their_paths(runs, tmp_path):
    """Two folders called `run` are named with the folders that hold them."""
    copies = [
        shutil.copytree(runs.folders[negatives, 0], tmp_path / f"k{negatives}" / "run")
        for negatives in (4, 16)
    ]
    assert library.compare(copies).runs["run"].to_list() == [str(copy) for copy in copies]


def test_what_cannot_be_compared_is_refused(runs, refused, tmp_path):
    """One run, the same run twice, runs of other data, a taken folder: each in one sentence."""
    first, second = runs.folders[4, 0], runs.folders[16, 0]
    assert "two runs or more" in refused("compare", first)
    assert "was passed twice" in refused("compare", first, first)
    (tmp_path / "taken").mkdir()
    assert "exists already" in refused("compare", first, second, "-o", tmp_path / "taken")


def test_runs_of_different_datasets_are_refused(runs, refused, tmp_path):
    """Their users cannot be paired, and the sentence names both runs."""
    cleaning = library.Cleaning(min_user=20)
    library.prepare(runs.root / "events.parquet", tmp_path / "other", cleaning=cleaning)
    train(tmp_path / "other", tmp_path / "run", RunConfig().replaced({**SETTINGS, "epochs": 1}))
    sentence = refused("compare", runs.folders[4, 0], tmp_path / "run")
    assert "were trained on different datasets" in sentence
    assert "k4-seed0" in sentence
