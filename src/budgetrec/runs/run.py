"""A trained run, opened from its folder; the dataset that it was trained on is opened when it is needed."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from torch import Tensor

from budgetrec._version import __version__
from budgetrec.data.ids import find_labels
from budgetrec.data.store import Dataset
from budgetrec.errors import DataError, TrainingError
from budgetrec.files import write_parquet, write_whole
from budgetrec.models import SequenceModel
from budgetrec.ranking.histories import Histories
from budgetrec.ranking.top import top_items
from budgetrec.ranking.view import ScoringView, scoring_view
from budgetrec.runs.checkpoint import load_checkpoint, load_model_tensors, save_checkpoint
from budgetrec.runs.documents import read_frame
from budgetrec.runs.layout import BEST, FEATURES, ITEMS, MARKER
from budgetrec.runs.record import read_metrics, read_settings
from budgetrec.settings.build import build_model
from budgetrec.settings.sections import RunConfig, TrainingConfig
from budgetrec.stepping.device import training_device


@dataclass(frozen=True)
class DatasetSource:
    """Which dataset a run was trained on, and where it should be."""

    run: Path
    path: Path
    identity: str

    def open(self) -> Dataset:
        """Open the dataset, or say how to tell where it is now."""
        if not os.access(self.path, os.R_OK):
            raise TrainingError(
                f"the dataset of {self.run} is no longer at {self.path}. Say where it is now with "
                "--dataset DIR, or, to resume: budgetrec train DIR --resume RUN."
            )
        return self.check(Dataset.open(self.path))

    def check(self, dataset: Dataset) -> Dataset:
        """Return the dataset if it is the one that the run was trained on."""
        if dataset.identity != self.identity:
            raise TrainingError(
                f"{self.run} was trained on a dataset other than {dataset.folder} ({self.identity}, "
                f"found {dataset.identity}): other data, filters or split. Prepare it as it was."
            )
        return dataset


@dataclass(frozen=True)
class Run:
    """A trained model that scores any history with nothing but its folder. Nothing here ever changes."""

    folder: Path
    config: RunConfig
    metrics: pl.DataFrame
    network: SequenceModel  # as it was trained
    best_step: int | None  # of the weights that it holds
    features: Tensor | None
    source: DatasetSource
    _opened: Dataset | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.folder.resolve().name

    @property
    def num_items(self) -> int:
        """How many items the catalogue has (K)."""
        return self.network.num_items

    @property
    def keep_seen(self) -> bool:
        """Whether items that a user has had are ranked and recommended, where a call does not say."""
        return bool(self.config.training.keep_seen)

    @property
    def model(self) -> SequenceModel | ScoringView:
        """The model as ranking sees it: products of its states and vectors are the logits."""
        return scoring_view(self.network, self.config.objective)

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset that it was trained on; an error says how to tell where it is, if it has moved."""
        return self.source.open() if self._opened is None else self._opened

    @cached_property
    def items(self) -> pl.DataFrame:
        """Row i: what the source calls item i (`item`), and how often it was trained on (`train_count`)."""
        frame = read_frame(self.folder / ITEMS)
        if frame is None:  # a run of budgetrec 0.1
            return pl.DataFrame({"item": self.dataset.item_labels, "train_count": self.dataset.train_counts})
        if frame.columns != ["item", "train_count"] or len(frame) != self.num_items:
            raise DataError(
                f"{self.folder / ITEMS} does not hold the {self.num_items:,} items of the run. Restore it."
            )
        return frame

    def top_items(
        self, histories: Sequence[Sequence[object]], *, top: int = 10, keep_seen: bool | None = None
    ) -> pl.DataFrame:
        """Return the `top` items that the run scores highest after each history, without its dataset.

        A history holds items as the source calls them, the earliest first. A row holds `history` (its place
        among those given), `rank`, `item` and `score`. Items of the history are left out, or not, as the run
        does it; `keep_seen` overrules that.
        """
        best = top_items(
            self.model,
            self._find(histories),
            num_items=self.num_items,
            top=top,
            keep_seen=self.keep_seen if keep_seen is None else keep_seen,
        )
        return best.to_frame("history", pl.Series(np.arange(len(histories))), self.items["item"])

    def _find(self, histories: Sequence[Sequence[object]]) -> Histories:
        """Find the items of histories by what the source calls them."""
        lengths = np.array([len(history) for history in histories], np.int64)
        if not lengths.all():
            place = int(np.argmin(lengths))
            raise DataError(f"history {place} has no items, so nothing can follow it. Leave it out.")
        wanted = pl.Series([str(item) for history in histories for item in history], dtype=pl.String)
        found = find_labels(wanted, self.items["item"])
        missing = wanted.filter(found.is_null())
        if len(missing):
            raise DataError(
                f"item {missing[0]} is not in the catalogue of {self.folder} ({len(missing)} of "
                f"{len(wanted)} are not). Pass items as the source names them."
            )
        ends = np.cumsum(lengths)
        return Histories(found.cast(pl.Int32).to_numpy(), ends - lengths, ends)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        dataset: Dataset | Path | str | None = None,
        weights: str | None = BEST,
        device: str = "cpu",
    ) -> Self:
        """Open a run; `dataset` says where the data is now if it has moved, `device` where it computes."""
        folder, place = Path(folder), training_device(TrainingConfig(device=device))
        if not (folder / MARKER).is_file():
            raise TrainingError(f"{folder} is not a run: it has no {MARKER}. Make one with budgetrec train.")
        settings = read_settings(folder)
        config = settings.config()
        source = DatasetSource(folder, settings.dataset_path, settings.dataset_identity)
        if isinstance(dataset, Dataset):
            dataset = source.check(dataset)
        elif dataset is not None or settings.num_items is None:
            source = source if dataset is None else replace(source, path=Path(dataset))
            dataset = source.open()
        num_items = settings.num_items if dataset is None else dataset.num_items
        assert num_items is not None  # noqa: S101 - else the dataset was opened
        features = None
        if (folder / FEATURES).is_file():
            features = _features(folder / FEATURES)
        model = build_model(config.model, num_items, features=features, generator=torch.Generator())
        best_step = None
        if weights is not None:
            tensors, state = load_checkpoint(folder / weights)
            load_model_tensors(model, tensors, folder / weights)
            best_step = _step(state, folder / weights)
        model = model.to(place).eval()
        return cls(folder, config, read_metrics(folder), model, best_step, features, source, dataset)


def _step(state: Mapping[str, Any], path: Path) -> int:
    if "step" not in state:
        raise TrainingError(f"{path} does not say of which step its weights are. Restore it, or train again.")
    return int(state["step"])


def _features(path: Path) -> Tensor:
    features = load_checkpoint(path)[0].get("features")
    if features is None:
        raise TrainingError(f"{path} holds no table of item features. Restore it, or train again.")
    return features


def write_run(folder: Path, config: RunConfig, dataset: Dataset, features: Tensor | None) -> None:
    """Write what decides the run and what it needs to stand alone; its marker last."""
    if dataset.folder is None:
        raise TrainingError("the dataset is in memory only. Save it, and open it from its folder.")
    if features is not None and not (folder / FEATURES).is_file():
        save_checkpoint(folder / FEATURES, {"features": features}, {})
    if not (folder / ITEMS).is_file():
        items = dataset.folder / ITEMS  # a dataset calls it the same; copying takes no memory
        write_whole(folder / ITEMS, lambda path: shutil.copyfile(items, path))
    extra: dict[str, object] = {
        "budgetrec": __version__,
        "dataset": {
            "path": str(dataset.folder.resolve()),
            "identity": dataset.identity,
            "num_items": dataset.num_items,
        },
    }
    if features is not None:
        extra["features"] = {"width": features.shape[1], "sha256": features_hash(features)}
    write_whole(folder / MARKER, lambda path: config.write(path, extra))


def features_hash(features: Tensor) -> str:
    """Return a hash that tells features apart."""
    return hashlib.sha256(features.contiguous().numpy().tobytes()).hexdigest()


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame, whole or not at all."""
    write_whole(path, lambda partial: write_parquet(frame, partial))
