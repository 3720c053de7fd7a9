"""A run on disk: what was asked, what was measured and the weights.

::

    run.toml                     the dataset and every setting
    metrics.parquet              one row an evaluation
    checkpoint/best.safetensors  the weights that did best on the validation part
    checkpoint/last.safetensors  everything needed to go on
    features.safetensors         item features, where they stand in for a table
    plan.toml                    the plan that it followed, if there was one
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
import torch
from torch import Tensor

from budgetrec._version import __version__
from budgetrec.data.store import Dataset
from budgetrec.errors import ConfigError, TrainingError
from budgetrec.files import write_parquet, write_whole
from budgetrec.models import SequenceModel
from budgetrec.runs.checkpoint import load_checkpoint, load_model_tensors, save_checkpoint
from budgetrec.settings.build import ScoringView, build_model, scoring_view
from budgetrec.settings.sections import RunConfig, read_toml

MARKER = "run.toml"
METRICS_FILE = "metrics.parquet"
BEST = "checkpoint/best.safetensors"
LAST = "checkpoint/last.safetensors"
FEATURES = "features.safetensors"
PLAN = "plan.toml"
# What such a folder holds, and may be replaced with it.
FILES = (
    MARKER,
    METRICS_FILE,
    "checkpoint",
    FEATURES,
    "tensorboard",
    "evaluation-*",
    "report.html",
    "environment.json",
    "recommendations.parquet",
    "plan.*",
    ".*.partial-*",
)


@dataclass(frozen=True)
class Run:
    """A trained model with everything that it came from."""

    folder: Path
    config: RunConfig
    dataset: Dataset
    metrics: pl.DataFrame
    network: SequenceModel  # as it was trained
    best_step: int | None  # of the weights that it holds
    features: Tensor | None

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.folder.resolve().name

    @property
    def model(self) -> SequenceModel | ScoringView:
        """The model as evaluation sees it: products of its states and vectors are the logits."""
        return scoring_view(self.network, self.config.objective)

    @classmethod
    def open(
        cls, folder: Path | str, *, dataset: Dataset | Path | str | None = None, weights: str | None = BEST
    ) -> Self:
        """Open a run; `dataset` says where the data is now if it has moved."""
        folder = Path(folder)
        if not (folder / MARKER).is_file():
            raise TrainingError(f"{folder} is not a run: it has no {MARKER}. Make one with budgetrec train.")
        document = read_toml(folder / MARKER)
        source = document.pop("dataset", None)
        if not isinstance(source, dict) or not {"path", "identity"} <= source.keys():
            raise ConfigError(f"{folder / MARKER} has no [dataset] with path and identity.")
        for name in ("budgetrec", "features"):
            document.pop(name, None)
        config = RunConfig.from_dict(document, str(folder / MARKER))
        if not isinstance(dataset, Dataset):
            dataset = _open_dataset(folder, Path(dataset or source["path"]))
        if dataset.identity != source["identity"]:
            raise TrainingError(
                f"{folder} was trained on another dataset than {dataset.folder} holds ({source['identity']}, "
                f"found {dataset.identity}): other data, filters or split. Prepare it as it was."
            )
        features = None
        if (folder / FEATURES).is_file():
            features = load_checkpoint(folder / FEATURES)[0]["features"]
        model = build_model(config.model, dataset.num_items, features=features, generator=torch.Generator())
        best_step = None
        if weights is not None:
            tensors, state = load_checkpoint(folder / weights)
            load_model_tensors(model, tensors, folder / weights)
            best_step = int(state["step"])
        try:
            metrics = pl.read_parquet(folder / METRICS_FILE)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise TrainingError(f"{folder / METRICS_FILE} cannot be read: {error}. Train again.") from error
        return cls(folder, config, dataset, metrics, model.eval(), best_step, features)


def write_run(folder: Path, config: RunConfig, dataset: Dataset, features: Tensor | None) -> None:
    """Write what decides the run; its marker last."""
    if features is not None and not (folder / FEATURES).is_file():
        save_checkpoint(folder / FEATURES, {"features": features}, {})
    if dataset.folder is None:
        raise TrainingError("the dataset is in memory only. Save it, and open it from its folder.")
    extra: dict[str, Any] = {
        "budgetrec": __version__,
        "dataset": {"path": str(dataset.folder.resolve()), "identity": dataset.identity},
    }
    if features is not None:
        extra["features"] = {"width": features.shape[1], "sha256": features_hash(features)}
    write_whole(folder / MARKER, lambda path: config.write(path, **extra))


def features_hash(features: Tensor) -> str:
    """Return a hash that tells features apart."""
    return hashlib.sha256(features.contiguous().numpy().tobytes()).hexdigest()


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame, whole or not at all."""
    write_whole(path, lambda partial: write_parquet(frame, partial))


def _open_dataset(folder: Path, path: Path) -> Dataset:
    if not path.exists():
        raise TrainingError(
            f"the dataset of {folder} is no longer at {path}. Say where it is now, "
            "as in: budgetrec evaluate RUN --dataset DIR, or budgetrec train DIR --resume RUN."
        )
    return Dataset.open(path)
