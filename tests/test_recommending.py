"""Recommendations: the best items after all a user has had, by the names of the source."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from budgetrec.data import demo
from budgetrec.data.item_features import read_item_features
from budgetrec.data.prepare import prepare
from budgetrec.errors import ArgumentError, DataError
from budgetrec.evaluation.evaluate import evaluate
from budgetrec.planner.following import train
from budgetrec.recommending import recommend
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a table and a feature model on generated data."""
    folder = tmp_path_factory.mktemp("runs")
    truth = demo.make_truth(num_users=60, num_items=40, seed=0)
    demo.generate_events(truth, num_rows=900, seed=1).write_parquet(folder / "events.parquet")
    demo.item_features(truth, seed=0).write_parquet(folder / "items.parquet")
    dataset = prepare(folder / "events.parquet", folder / "dataset")
    config = RunConfig().replaced(
        {"dim": 8, "max_length": 6, "num_negatives": 8, "batch_size": 16, "steps": 6}
    )
    features = read_item_features(folder / "items.parquet", dataset)
    train(dataset, folder / "table", config)
    train(dataset, folder / "features", config, features=features)
    return folder


def test_lists_are_the_highest_scores_of_what_is_left(runs):
    """Against scores computed one user at a time: the order, the scores, and nothing that the user had."""
    run = Run.open(runs / "table")
    found = recommend(run, top=7)
    labels = run.dataset.item_labels.to_list()
    for user in range(0, 60, 13):
        begin, end = run.dataset.offsets[user : user + 2]
        items = run.dataset.items[begin:end].astype(np.int64)
        ids = torch.from_numpy(items[-6:])[None]
        with torch.no_grad():
            logits = (
                run.model.predict(ids, torch.ones_like(ids, dtype=torch.bool)) @ run.model.item_table().T
            )[0]
        logits[torch.from_numpy(items)] = -torch.inf
        best = logits.topk(7)
        own = found.filter(pl.col("user") == run.dataset.user_labels[user])
        assert own["item"].to_list() == [labels[i] for i in best.indices]
        assert own["rank"].to_list() == list(range(1, 8))
        np.testing.assert_allclose(own["score"].to_numpy(), best.values.numpy(), rtol=1e-5)


def test_nothing_seen_is_left_when_everything_was_had(runs):
    """A list is shorter where fewer items are left, and whole with `keep_seen`."""
    frame = recommend(runs / "table", top=40)
    lengths = frame.group_by("user").len()["len"]
    assert lengths.max() < 40
    assert recommend(runs / "table", top=99, keep_seen=True).height == 60 * 40


def test_users_are_named_as_the_source_names_them(runs):
    """Order and number of users are those asked for; an unknown one is told."""
    frame = recommend(runs / "table", ["user-7", "user-3"], top=2)
    assert frame["user"].to_list() == ["user-7", "user-7", "user-3", "user-3"]
    with pytest.raises(DataError, match="user nobody is not in the dataset"):
        recommend(runs / "table", ["user-7", "nobody"])
    with pytest.raises(ArgumentError, match="top is 0"):
        recommend(runs / "table", top=0)


def test_no_users_get_no_lists(runs):
    """An empty list of users gives the four columns and not one row; of histories likewise."""
    everyone = recommend(runs / "table")
    found = recommend(runs / "table", [])
    assert found.height == 0
    assert found.schema == everyone.schema
    run = Run.open(runs / "table")
    assert run.top_items([]).height == 0
    assert run.top_items([]).schema == run.top_items([run.items["item"][:2].to_list()]).schema


def test_an_item_that_nobody_trained_on_can_be_recommended(runs, tmp_path):
    """A new item with the features of a user's best item stands beside it in the list."""
    best = recommend(runs / "features", ["user-7"], top=1)["item"][0]
    items = pl.read_parquet(runs / "items.parquet")
    twin = items.filter(pl.col("item") == best).with_columns(item=pl.lit("brand-new"))
    pl.concat([items, twin]).write_parquet(tmp_path / "new.parquet")
    frame = recommend(runs / "features", ["user-7"], top=2, new_items=tmp_path / "new.parquet")
    assert set(frame["item"]) == {best, "brand-new"}
    assert frame["score"][0] == pytest.approx(frame["score"][1], abs=1e-5)
    with pytest.raises(ArgumentError, match="Train it with --item-features"):
        recommend(runs / "table", ["user-7"], new_items=tmp_path / "new.parquet")


def test_new_items_leave_the_run_as_it_was(runs, tmp_path):
    """The run lists and evaluates afterwards as before, and a second file gets scores of its own."""
    items = pl.read_parquet(runs / "items.parquet")
    for name, row in (("one", 0), ("other", 1)):
        twin = items[row : row + 1].with_columns(item=pl.lit(f"brand-new-{name}"))
        pl.concat([items, twin]).write_parquet(tmp_path / f"{name}.parquet")
    run = Run.open(runs / "features")
    lists, metrics = recommend(run, top=40, keep_seen=True), evaluate(run).metrics
    for name, row in (("one", 0), ("other", 1)):
        frame = recommend(run, top=41, keep_seen=True, new_items=tmp_path / f"{name}.parquet")
        scores = frame.filter(pl.col("item") == f"brand-new-{name}").select("user", "score")
        twins = frame.filter(pl.col("item") == items["item"][row]).select("user", "score")
        assert scores["user"].to_list() == twins["user"].to_list() == run.dataset.user_labels.to_list()
        np.testing.assert_allclose(scores["score"], twins["score"], atol=1e-5)
    assert recommend(run, top=40, keep_seen=True).equals(lists)
    assert evaluate(run).metrics == metrics
    assert run.network.num_items == 40


def test_the_module_does_not_hide_the_function():
    """`budgetrec.recommend` stays a function whatever was imported."""
    import budgetrec.recommending

    assert budgetrec.recommend is recommend


def test_threads_and_device_are_those_asked_for(budgetrec, refused, runs):
    """One thread is torch's one thread; a GPU that is not there is told; nonsense is refused."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        arguments = ("recommend", runs / "table", "--users", "user-7", "--json")
        answer = budgetrec(*arguments, "--threads", 1, "--device", "cpu")
        assert answer.code == 0, answer.err
        assert torch.get_num_threads() == 1
        assert "threads is 0" in refused(*arguments, "--threads", 0)
        assert "device is 'tpu'" in refused(*arguments, "--device", "tpu")
        if not torch.cuda.is_available():
            for command in (
                arguments,
                ("evaluate", runs / "table"),
                ("compare", runs / "table", runs / "features"),
            ):
                assert "torch sees no GPU here" in refused(*command, "--device", "cuda")
    finally:
        torch.set_num_threads(before)


def test_the_command_prints_and_writes(budgetrec, refused, runs, tmp_path):
    """Some users on the screen or as JSON, all into a file."""
    answer = budgetrec("recommend", runs / "table", "--users", "user-7, user-3", "--top", 2)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 5
    answer = budgetrec("recommend", runs / "table", "--users", "user-7", "--json")
    assert [row["rank"] for row in json.loads(answer.out)["rows"]] == list(range(1, 11))
    for name in ("all.parquet", "all.csv"):
        assert budgetrec("recommend", runs / "table", "-o", tmp_path / name).code == 0
    assert pl.read_parquet(tmp_path / "all.parquet").height == pl.read_csv(tmp_path / "all.csv").height
    assert "exists already" in refused("recommend", runs / "table", "-o", tmp_path / "all.csv")
    assert "Pass --output FILE" in refused("recommend", runs / "table")
    assert "neither .parquet nor .csv" in refused("recommend", runs / "table", "-o", tmp_path / "all.xlsx")
    assert "is not a run" in refused("recommend", tmp_path, "--users", "a")
