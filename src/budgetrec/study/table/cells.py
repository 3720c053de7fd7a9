"""One run of the main table: SASRec trained, its best and last weights ranked on the test part."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.store import Dataset
from budgetrec.errors import DataError, NotFiniteError, TrainingError
from budgetrec.ranking.metrics import ndcg
from budgetrec.ranking.ranks import rank_targets
from budgetrec.runs.layout import BEST, LAST, MARKER
from budgetrec.runs.run import Run
from budgetrec.study.engine.grid import RUNS, Outcome
from budgetrec.training.loop import resume, train

_CURVE = ("step", "examples", "targets", "logits", "val_loss", "ndcg@10")


def train_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Train into the study's folder, or go on with what a killed study left there; keep no weights."""
    dataset = Dataset.open(places["dataset"])
    if dataset.identity != settings["dataset"]:
        raise DataError(
            f"{places['dataset']} holds the dataset {dataset.identity}, not {settings['dataset']}. "
            "Start the study again."
        )
    place = folder / RUNS / places["run"]
    try:
        run = _train(dataset, place, settings["run"])
    except TrainingError as error:
        if not isinstance(error.__cause__, NotFiniteError):
            raise
        shutil.rmtree(place, ignore_errors=True)
        return Outcome(values={"diverged": str(error.__cause__)})
    scores = {
        name: _test_ndcg(Run.open(place, dataset=dataset, weights=weights), dataset)
        for name, weights in (("test_ndcg", BEST), ("test_ndcg_last", LAST))
    }
    metrics = run.metrics
    shutil.rmtree(place / "checkpoint")
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


def _train(dataset: Dataset, place: Path, settings: Mapping[str, Any]) -> Run:
    if (place / MARKER).is_file() and (place / LAST).is_file():
        return resume(place, dataset=dataset)
    return train(dataset, place, overwrite=True, threads=1, device="cpu", **settings)


def _test_ndcg(run: Run, dataset: Dataset) -> float:
    return float(ndcg(rank_targets(run.model, dataset, dataset.test()).ranks, 10).mean())
