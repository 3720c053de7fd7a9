"""A cell that trains: a run in the study's folder, begun or resumed."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from budgetrec.data.store import Dataset
from budgetrec.errors import DataError, NotFiniteError, TrainingError
from budgetrec.runs.layout import LAST, MARKER
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from budgetrec.study.engine.grid import DIVERGED, RUNS, Cell, Outcome
from budgetrec.training.loop import resume, train


def training_cell(
    study: str, version: int, function: str, *, dataset: str, place: str, run: Mapping[str, Any]
) -> Cell:
    """Describe a cell that trains on the dataset of this identity in `place`; its run is named by its key."""
    cell = Cell(study=study, version=version, function=function, settings={"dataset": dataset, "run": run})
    return replace(cell, places={"dataset": place, "run": cell.key})


def train_run(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Run | Outcome:
    """Train, or resume what a killed study left; return the run, or the outcome of one that diverged."""
    dataset = Dataset.open(places["dataset"])
    if dataset.identity != settings["dataset"]:
        raise DataError(
            f"{places['dataset']} holds the dataset {dataset.identity}, not {settings['dataset']}. "
            "Start the study again."
        )
    place = folder / RUNS / places["run"]
    try:
        if (place / MARKER).is_file() and (place / LAST).is_file():
            begun = Run.open(place, dataset=dataset, weights=None)
            return resume(begun, begun.config)
        config = RunConfig().replaced({**settings["run"], "threads": 1, "device": "cpu"})
        return train(dataset, place, config, overwrite=True)
    except TrainingError as error:
        if not isinstance(error.__cause__, NotFiniteError):
            raise
        shutil.rmtree(place, ignore_errors=True)
        return Outcome(values={DIVERGED: str(error.__cause__)})
