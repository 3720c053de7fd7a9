"""Generated data, small enough to plan for in seconds."""

import pytest

from budgetrec.data import demo
from budgetrec.data.prepare import prepare


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Prepare generated data: 300 users, 120 items."""
    folder = tmp_path_factory.mktemp("planning")
    truth = demo.make_truth(num_users=300, num_items=120, seed=0)
    demo.generate_events(truth, num_rows=6000, seed=1).write_parquet(folder / "events.parquet")
    return prepare(folder / "events.parquet", folder / "dataset")
