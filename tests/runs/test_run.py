"""A run stands alone: it opens and scores without its dataset, and never changes."""

import dataclasses
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import tomli_w

from budgetrec import Dataset, Run, evaluate, recommend
from budgetrec.errors import ArgumentError, DataError, TrainingError
from budgetrec.settings.sections import read_toml


def _histories(dataset):
    labels = dataset.item_labels.to_list()
    bounds = dataset.offsets.tolist()
    return [[labels[item] for item in dataset.items[begin:end]] for begin, end in pairwise(bounds)]


def test_a_run_scores_histories_without_its_dataset(trained, moved):
    """The lists are those that `recommend` gives the users of the dataset, to the bit."""
    run = Run.open(moved)
    dataset = Dataset.open(trained.dataset)
    found = run.top_items(_histories(dataset), top=7)
    expected = recommend(moved, top=7, dataset=trained.dataset)
    assert found.columns == ["history", "rank", "item", "score"]
    assert dataset.user_labels.gather(found["history"]).equals(expected["user"])
    assert found.drop("history").equals(expected.drop("user"))
    assert found["item"].dtype == dataset.item_labels.dtype


def test_a_history_need_not_be_one_that_was_trained_on(trained, moved):
    """One item is enough; what was had is left out, unless `keep_seen` asks for the whole catalogue."""
    run = Run.open(moved)
    first = run.items["item"][0]
    assert first not in run.top_items([[first]], top=99)["item"].to_list()
    both = run.top_items([[first], [first, first]], top=99, keep_seen=True)
    assert both["history"].to_list() == [0] * 40 + [1] * 40
    assert set(both["item"]) == set(run.items["item"])


def test_histories_that_cannot_be_scored_are_told(moved):
    """An unknown item, an empty history and a list of nothing each get a sentence."""
    run = Run.open(moved)
    first = run.items["item"][0]
    with pytest.raises(DataError, match=r"item nothing is not in the catalogue of .* \(1 of 2 are not\)"):
        run.top_items([[first, "nothing"]])
    with pytest.raises(DataError, match="history 1 has no items"):
        run.top_items([[first], []])
    with pytest.raises(ArgumentError, match="top is 0"):
        run.top_items([[first]], top=0)
    assert run.top_items([]).is_empty()


def test_items_and_counts_are_those_of_the_dataset(trained, moved):
    """By the names of the source, in the order of the model's table."""
    run, dataset = Run.open(moved), Dataset.open(trained.dataset)
    assert run.num_items == dataset.num_items
    assert run.items["item"].equals(dataset.item_labels)
    assert run.items["train_count"].to_list() == dataset.train_counts.tolist()


def test_opening_reads_neither_the_dataset_nor_the_item_names(trained):
    """Both wait until they are asked for, and are then read once."""
    run = Run.open(trained.table)
    assert not {"dataset", "items"} & vars(run).keys()
    assert run.dataset is run.dataset
    assert "items" not in vars(run)


def test_a_missing_dataset_is_told_when_it_is_needed(trained, moved, refused, tmp_path):
    """One sentence says how to tell where it is now; then the same commands work."""
    with pytest.raises(TrainingError, match=r"no longer at .*gone.*--dataset DIR"):
        _ = Run.open(moved).dataset
    for command in (["recommend", moved, "--users", "user-7"], ["evaluate", moved]):
        assert "Say where it is now with --dataset DIR" in refused(*command)
    assert recommend(moved, ["user-7"], dataset=trained.dataset).height == 10
    assert evaluate(moved, dataset=trained.dataset).num_users == 60


def test_a_run_of_an_older_budgetrec_opens_through_its_dataset(trained, moved):
    """Without `items.parquet` and a number of items the dataset says both, and is asked for."""
    (moved / "items.parquet").unlink()
    document = read_toml(moved / "run.toml")
    del document["dataset"]["num_items"]
    (moved / "run.toml").write_text(tomli_w.dumps(document), "utf-8")
    with pytest.raises(TrainingError, match="no longer at"):
        Run.open(moved)
    run = Run.open(moved, dataset=trained.dataset)
    assert run.items.equals(Run.open(trained.table).items)


def test_items_that_are_not_the_run_s_are_refused(moved):
    """A file with fewer rows than the model has items gets a sentence."""
    pl.DataFrame({"item": ["a"], "train_count": [1]}).write_parquet(moved / "items.parquet")
    with pytest.raises(DataError, match="does not hold the 40 items of the run"):
        _ = Run.open(moved).items


def test_nothing_of_a_run_can_be_set(trained):
    """A run is a frozen record."""
    run = Run.open(trained.table)
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.best_step = 3
    assert np.isfinite(run.metrics["val_loss"].to_numpy()).all()
