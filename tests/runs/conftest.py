"""A small trained run with a table of item vectors, and one with item features."""

import shutil
from types import SimpleNamespace

import pytest

from budgetrec.data import demo
from budgetrec.data.item_features import read_item_features
from budgetrec.data.prepare import prepare
from budgetrec.planner.following import train
from budgetrec.settings.sections import RunConfig

CONFIG = RunConfig().replaced({"dim": 8, "max_length": 6, "num_negatives": 8, "batch_size": 16, "steps": 6})


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
    """Return the dataset's folder and the folders of the two runs."""
    root = tmp_path_factory.mktemp("runs")
    truth = demo.make_truth(num_users=60, num_items=40, seed=0)
    demo.generate_events(truth, num_rows=900, seed=1).write_parquet(root / "events.parquet")
    demo.item_features(truth, seed=0).write_parquet(root / "features.parquet")
    dataset = prepare(root / "events.parquet", root / "dataset")
    train(dataset, root / "table", CONFIG)
    train(
        dataset,
        root / "features",
        CONFIG,
        features=read_item_features(root / "features.parquet", dataset),
    )
    return SimpleNamespace(dataset=root / "dataset", table=root / "table", features=root / "features")


@pytest.fixture(params=["table", "features"])
def moved(trained, request, tmp_path):
    """Copy a run to where its dataset is not: `run.toml` names a folder that does not exist."""
    folder = shutil.copytree(getattr(trained, request.param), tmp_path / "run")
    text = (folder / "run.toml").read_text("utf-8")
    (folder / "run.toml").write_text(text.replace(str(trained.dataset), str(tmp_path / "gone")), "utf-8")
    return folder
