"""A run on disk: what was asked, what was measured and the weights.

::

    run.toml                     the dataset and every setting
    metrics.parquet              one row an evaluation
    checkpoint/best.safetensors  the weights that did best on the validation part
    checkpoint/last.safetensors  everything needed to go on
    features.safetensors         item features, where they stand in for a table
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
import torch
from torch import Tensor

from budgetrec._version import __version__
from budgetrec.build import ScoringView, build_model, scoring_view
from budgetrec.checkpoint import load_checkpoint, load_model_tensors, save_checkpoint, write_whole
from budgetrec.config import RunConfig, read_toml
from budgetrec.data.store import Dataset
from budgetrec.errors import ConfigError, TrainingError
from budgetrec.files import write_parquet
from budgetrec.models import SequenceModel

MARKER = "run.toml"
METRICS_FILE = "metrics.parquet"
BEST = "checkpoint/best.safetensors"
LAST = "checkpoint/last.safetensors"
FEATURES = "features.safetensors"
# What such a folder holds, and may be replaced with it.
FILES = (MARKER, METRICS_FILE, "checkpoint", FEATURES, "tensorboard", "evaluation-*", "report.html", "plan.*")


@dataclass(frozen=True)
class Run:
    """A trained model with everything that it came from."""

    folder: Path
    config: RunConfig
    dataset: Dataset
    metrics: pl.DataFrame
    network: SequenceModel  # as it was trained
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
        if not isinstance(source, dict) or not {"path", "users", "items", "interactions"} <= source.keys():
            raise ConfigError(f"{folder / MARKER} has no [dataset] with path, users, items and interactions.")
        document.pop("budgetrec", None)
        config = RunConfig.from_dict(document, str(folder / MARKER))
        if not isinstance(dataset, Dataset):
            dataset = Dataset.open(dataset or source["path"])
        seen = _sizes(dataset)
        if any(source[name] != count for name, count in seen.items()):
            raise TrainingError(
                f"{folder} was trained on {source['users']} users, {source['items']} items and "
                f"{source['interactions']} interactions, but {source['path']} now holds {seen['users']}, "
                f"{seen['items']} and {seen['interactions']}. Prepare the dataset as it was."
            )
        features = None
        if (folder / FEATURES).is_file():
            features = load_checkpoint(folder / FEATURES)[0]["features"]
        model = build_model(config.model, dataset.num_items, features=features, generator=torch.Generator())
        if weights is not None:
            load_model_tensors(model, load_checkpoint(folder / weights)[0], folder / weights)
        try:
            metrics = pl.read_parquet(folder / METRICS_FILE)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise TrainingError(f"{folder / METRICS_FILE} cannot be read: {error}. Train again.") from error
        return cls(folder, config, dataset, metrics, model.eval(), features)


def make_folder(folder: Path) -> None:
    """Make the folder of a run that begins, and take away what an old run left in it."""
    for path in [path for pattern in FILES for path in folder.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    (folder / "checkpoint").mkdir(parents=True)


def write_run(folder: Path, config: RunConfig, dataset: Dataset, features: Tensor | None) -> None:
    """Write what decides the run; its marker last."""
    if features is not None and not (folder / FEATURES).is_file():
        save_checkpoint(folder / FEATURES, {"features": features}, {})
    if dataset.folder is None:
        raise TrainingError("the dataset is in memory only. Save it, and open it from its folder.")
    source: dict[str, Any] = {"path": str(dataset.folder.resolve()), **_sizes(dataset)}
    write_whole(folder / MARKER, lambda path: config.write(path, budgetrec=__version__, dataset=source))


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame, whole or not at all."""
    write_whole(path, lambda partial: write_parquet(frame, partial))


def _sizes(dataset: Dataset) -> dict[str, int]:
    return {
        "users": dataset.num_users,
        "items": dataset.num_items,
        "interactions": len(dataset.items),
    }
