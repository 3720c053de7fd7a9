"""Four small trained runs: two numbers of negatives, two seeds each."""

from types import SimpleNamespace

import pytest

from budgetrec import prepare
from budgetrec.data.demo import generate_events, make_truth
from budgetrec.planner.following import train
from budgetrec.settings.sections import RunConfig

SETTINGS = {"dim": 8, "num_heads": 1, "num_blocks": 1, "max_length": 20, "batch_size": 32, "epochs": 2}


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    """Return the dataset's folder and the folders of the runs by negatives and seed."""
    root = tmp_path_factory.mktemp("runs")
    truth = make_truth(num_users=120, num_items=80, seed=0)
    generate_events(truth, num_rows=120 * 25, seed=0).write_parquet(root / "events.parquet")
    prepare(root / "events.parquet", root / "dataset")
    folders = {}
    for negatives in (4, 16):
        for seed in (0, 1):
            folder = root / f"k{negatives}-seed{seed}"
            config = RunConfig().replaced({**SETTINGS, "num_negatives": negatives, "seed": seed})
            train(root / "dataset", folder, config)
            folders[negatives, seed] = folder
    return SimpleNamespace(dataset=root / "dataset", folders=folders, root=root)
