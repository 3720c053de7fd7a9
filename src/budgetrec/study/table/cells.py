"""One run of the main table: SASRec trained, its best and last weights ranked on the test part."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.store import Dataset
from budgetrec.ranking.metrics import ndcg
from budgetrec.ranking.ranks import rank_targets
from budgetrec.runs.layout import BEST, LAST
from budgetrec.runs.run import Run
from budgetrec.study.engine.grid import Outcome
from budgetrec.study.engine.training import train_run

_CURVE = ("step", "examples", "targets", "logits", "val_loss", "ndcg@10")


def train_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Train into the study's folder, rank the test part, and keep no weights."""
    run = train_run(settings, places, folder)
    if isinstance(run, Outcome):
        return run
    scores = {
        name: _test_ndcg(Run.open(run.folder, dataset=run.dataset, weights=weights), run.dataset)
        for name, weights in (("test_ndcg", BEST), ("test_ndcg_last", LAST))
    }
    metrics = run.metrics
    shutil.rmtree(run.folder / "checkpoint")
    return Outcome(
        values={
            **scores,
            "best_step": run.best_step,
            "curve": metrics.select(_CURVE).to_dict(as_series=False),
        },
        measured={
            "seconds": metrics["seconds"].to_list(),
            "peak_bytes": int(metrics["peak_bytes"].cast(pl.Int64).max()),  # type: ignore[arg-type]
        },
    )


def _test_ndcg(run: Run, dataset: Dataset) -> float:
    return float(ndcg(rank_targets(run.model, dataset, dataset.test()).ranks, 10).mean())
