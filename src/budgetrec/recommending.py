"""The best next items for the users of a run's dataset, from everything they have had."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.ids import find_labels
from budgetrec.data.item_features import read_features_file
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, DataError
from budgetrec.models.item_encoders import EncodedModel
from budgetrec.ranking.histories import Histories, NextItemModel
from budgetrec.ranking.top import top_items
from budgetrec.ranking.view import scoring_view
from budgetrec.runs.run import Run


def recommend(
    run: Run | Path | str,
    users: Sequence[object] | None = None,
    *,
    top: int = 10,
    keep_seen: bool | None = None,
    new_items: Path | str | None = None,
    dataset: Dataset | Path | str | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> pl.DataFrame:
    """Return the `top` best items for each of the users (all, if none are named) with their scores.

    A row holds user, rank, item and score; ids are those of the source. The whole sequence of a user counts,
    the validation and test items included. What a user has had is left out, or not, as it was when the run
    was validated; `keep_seen` overrules that. Where fewer than `top` items are left, a user has fewer rows.
    Among equal scores the order means nothing. `new_items` names a file with the features of items that the
    run was not trained on; a run with item features can recommend them. `dataset` says where the data is now
    if it has moved. A run that is opened here computes on `device`, one of auto, cpu and cuda. `progress`
    hears how many users are done.
    """
    if top < 1:
        raise ArgumentError(f"top is {top}. Pass at least 1.")
    opened = run if isinstance(run, Run) else Run.open(run, dataset=dataset, device=device)
    data = opened.dataset
    rows = _rows_of(data, users)
    model, labels = (opened.model, data.item_labels) if new_items is None else _extended(opened, new_items)
    histories = Histories(data.items, data.offsets[rows], data.offsets[rows + 1])
    keep = opened.keep_seen if keep_seen is None else keep_seen
    best = top_items(model, histories, num_items=len(labels), top=top, keep_seen=keep, progress=progress)
    return best.to_frame("user", data.user_labels.gather(rows), labels)


def _rows_of(dataset: Dataset, users: Sequence[object] | None) -> NDArray[np.int64]:
    """Find users by what the source calls them."""
    if users is None:
        return np.arange(dataset.num_users)
    wanted = pl.Series([str(user) for user in users], dtype=pl.String)
    found = find_labels(wanted, dataset.user_labels)
    missing = wanted.filter(found.is_null())
    if len(missing):
        raise DataError(
            f"user {missing[0]} is not in the dataset ({len(missing)} of {len(wanted)} are not). "
            "Pass users as the source names them."
        )
    return found.cast(pl.Int64).to_numpy()


def _extended(run: Run, path: Path | str) -> tuple[NextItemModel, pl.Series]:
    """Return a model that knows the items of a file too, and the labels of all; the run stays as it is."""
    if run.features is None or not isinstance(run.network, EncodedModel):
        raise ArgumentError(
            f"{run.folder} has a trained vector for each item and cannot score others. "
            "Train it with --item-features."
        )
    labels, features = read_features_file(
        path, item_column=run.dataset.info.get("source", {}).get("columns", {}).get("item")
    )
    known = run.dataset.item_labels.cast(pl.String)
    new = ~labels.cast(pl.String).is_in(known.implode())
    network = _sharing_tensors(run.network)
    network.extend_items(torch.from_numpy(features[new.to_numpy()]))
    return scoring_view(network, run.config.objective), pl.concat([known, labels.cast(pl.String).filter(new)])


def _sharing_tensors(network: EncodedModel) -> EncodedModel:
    """Return a copy of a model that shares its tensors: extending it puts longer ones in their place."""
    shared: dict[int, Tensor] = {id(each): each for each in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, shared)
