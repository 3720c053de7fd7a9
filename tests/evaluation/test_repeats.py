"""Items that users have again: what is scored is what is recommended, and new items are told apart."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import budgetrec as library
from budgetrec.planner.following import train
from budgetrec.report import write_report
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from tests.conftest import write_csv
from tests.evaluation.conftest import SETTINGS
from tests.report.parsing import parse

NUM_USERS, NUM_ITEMS = 80, 30


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Train on visits to places: every other user ends at home, where everybody begins."""
    root = tmp_path_factory.mktemp("places")
    random = np.random.default_rng(0)
    rows = []
    for user in range(NUM_USERS):
        visits = random.permutation(NUM_ITEMS)[:8].tolist()
        if user % 2:
            visits[-2:] = [visits[2], visits[0]]
        rows += [(f"u{user}", f"i{item}", place) for place, item in enumerate(visits)]
    dataset = library.prepare(write_csv(root / "visits.csv", rows), root / "dataset")
    config = RunConfig().replaced({**SETTINGS, "num_negatives": 8, "learning_rate": 0.01})
    return SimpleNamespace(root=root, dataset=dataset, run=train(dataset, root / "run", config), rows=rows)


def test_prepare_counts_the_held_out_items_that_users_had_before(budgetrec, places, tmp_path):
    """40 of 80 in each part, in words, in JSON, and again by `data show`."""
    raw = places.root / "visits.csv"
    told = (
        "40 of 80 validation items (50.0%) and 40 of 80 test items (50.0%) are ones that the user had before"
    )
    assert told in budgetrec("prepare", raw, "-o", tmp_path / "words").out
    assert told in budgetrec("data", "show", tmp_path / "words").out
    found = json.loads(budgetrec("prepare", raw, "-o", tmp_path / "json", "--json").out)
    counted = {"targets": 80, "repeated": 40}
    assert found["repeated_targets"] == {"validation": counted, "test": counted}
    shown = json.loads(budgetrec("data", "show", tmp_path / "json", "--json").out)
    assert shown["summary"]["repeated_targets"] == found["repeated_targets"]


def test_counting_repeats_does_not_make_it_another_dataset(places):
    """The identity that runs are held to is that of the same data counted by an earlier version."""
    info = dict(places.dataset.info)
    del info["repeated_targets"]
    earlier = library.Dataset(**{**vars(places.dataset), "info": info})
    assert earlier.identity == places.dataset.identity


@pytest.mark.parametrize("keep_seen", [None, False, True])
def test_what_is_scored_is_what_is_recommended(places, keep_seen):
    """The rank of each held-out item is its place in the user's list; not in the list means the last rank."""
    run, dataset = places.run, places.dataset
    users = library.evaluate(run, keep_seen=keep_seen, cutoffs=[NUM_ITEMS]).per_user
    labels = dataset.item_labels.gather(np.asarray(dataset.items)).to_list()
    ends = dataset.test_targets.tolist()
    histories = [labels[begin:end] for begin, end in zip(dataset.offsets[:-1].tolist(), ends, strict=True)]
    lists = run.top_items(histories, top=NUM_ITEMS, keep_seen=keep_seen)
    for row, (item, rank) in enumerate(users.select("item", "rank").iter_rows()):
        place = lists.filter((pl.col("history") == row) & (pl.col("item") == item))["rank"].to_list()
        assert (place or [NUM_ITEMS]) == [rank]
    missed = users.filter("repeated")["rank"] == NUM_ITEMS
    assert missed.all() is (keep_seen is False)


def test_one_setting_is_meant_by_validation_evaluation_and_recommendation(places):
    """Half of the validation items are repeats, so all three keep what was seen; the run says so itself."""
    run = places.run
    assert "keep_seen = true" in (run.folder / "run.toml").read_text("utf-8")
    last = library.evaluate(run, part="validation", cutoffs=[10])
    row = run.metrics.filter(pl.col("step") == run.best_step).row(0, named=True)
    assert last.keep_seen is True
    assert last.metrics["ndcg@10"] == pytest.approx(row["ndcg@10"])
    assert (
        last.metrics["ndcg@10"] > library.evaluate(run, part="validation", keep_seen=False).metrics["ndcg@10"]
    )
    assert library.recommend(run, top=NUM_ITEMS).height == NUM_USERS * NUM_ITEMS
    assert library.recommend(run, top=NUM_ITEMS, keep_seen=False).height < NUM_USERS * NUM_ITEMS
    assert library.evaluate(run).keep_seen is True


def test_a_run_that_does_not_say_leaves_out_what_was_seen(places, tmp_path):
    """As budgetrec 0.1 did, whose run.toml has no such key."""
    folder = shutil.copytree(places.run.folder, tmp_path / "run")
    text = (folder / "run.toml").read_text("utf-8")
    (folder / "run.toml").write_text(text.replace("keep_seen = true\n", ""), "utf-8")
    assert Run.open(folder).keep_seen is False
    assert library.evaluate(folder).keep_seen is False


@pytest.mark.parametrize("flag", ["--keep-seen", "--no-keep-seen"])
def test_new_and_repeated_items_are_reported_apart(budgetrec, places, tmp_path, flag):
    """40 users each; the groups average to the whole; shell, JSON and page say what that means."""
    folder = shutil.copytree(places.run.folder, tmp_path / "run")
    answer = budgetrec("evaluate", folder, flag)
    assert answer.code == 0, answer.err
    found = json.loads((folder / "evaluation-test.json").read_text("utf-8"))
    new, repeated = found["groups"]["new"], found["groups"]["repeated"]
    assert (new["num_users"], repeated["num_users"]) == (40, 40)
    for name in ("ndcg@10", "hit_rate@20", "mrr", "test_loss"):
        assert (new[name] + repeated[name]) / 2 == pytest.approx(found[name])
        low, high = new["intervals"][name]
        assert low <= new[name] <= high
    users = pl.read_parquet(folder / "evaluation-test.parquet")
    assert users.filter("repeated")["ndcg@10"].mean() == pytest.approx(repeated["ndcg@10"])
    if flag == "--no-keep-seen":
        assert repeated["ndcg@10"] == 0
        meaning = "as they are never recommended they count as missed"
    else:
        meaning = "so the average does not tell how well new items are found"
    count = "40 of the 80 held-out items (50%) are ones that the user had before"
    values = f"{repeated['ndcg@10']:.4f} for these and {new['ndcg@10']:.4f} for new ones"
    page = " ".join(parse(write_report(folder).read_text("utf-8")).words.split())
    for shown in (answer.out, page):
        assert count in shown
        assert values in shown
        assert meaning in shown
    assert f"new {new['ndcg@10']:.4f}, repeated {repeated['ndcg@10']:.4f}" in page


def test_where_nothing_is_repeated_nothing_is_told_apart(runs):
    """No groups in the JSON; whatever was seen is left out."""
    found = library.evaluate(runs.folders[4, 0])
    assert found.groups == {}
    assert found.to_dict()["groups"] == {}
    assert found.keep_seen is False
