"""The best next items for users, from everything they have had."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from budgetrec.data.batches import windows_before
from budgetrec.data.features import read_features_file
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, DataError, NotFiniteError
from budgetrec.models.item_encoders import EncodedModel
from budgetrec.ranking.ranks import evaluating
from budgetrec.runs.run import Run

BLOCK_BYTES = 64 * 2**20
_BATCH_SIZE = 64


def recommend(
    run: Run | Path | str,
    users: Sequence[object] | None = None,
    *,
    top: int = 10,
    keep_seen: bool = False,
    new_items: Path | str | None = None,
    dataset: Dataset | Path | str | None = None,
) -> pl.DataFrame:
    """Return the `top` best items for each of the users (all, if none are named) with their scores.

    A row holds user, rank, item and score; ids are those of the source. The whole sequence of a user counts,
    the validation and test items included. What a user has had is left out, unless `keep_seen`; where fewer
    than `top` items are left, a user has fewer rows. `new_items` names a file with the features of items that
    the run was not trained on; they can be recommended by a run with item features.
    """
    opened = run if isinstance(run, Run) else Run.open(run, dataset=dataset)
    if top < 1:
        raise ArgumentError(f"top is {top}. Pass at least 1.")
    rows = _rows_of(opened.dataset, users)
    labels = opened.dataset.item_labels
    if new_items is not None:
        labels = _take_in(opened, new_items)
    items, scores = _best(opened, rows, min(top, len(labels)), keep_seen=keep_seen)
    found = items >= 0
    who, place = np.nonzero(found)
    return pl.DataFrame(
        {
            "user": opened.dataset.user_labels.gather(rows[who]),
            "rank": place + 1,
            "item": labels.gather(items[found]),
            "score": scores[found],
        }
    )


def _best(
    run: Run, users: NDArray[np.int64], top: int, *, keep_seen: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the best items (n, top) of each user and their scores; -1 where nothing is left."""
    dataset, model = run.dataset, run.model
    begins, ends = dataset.offsets[users], dataset.offsets[users + 1]
    items = np.full((len(users), top), -1, np.int64)
    scores = np.full((len(users), top), -np.inf, np.float32)
    with evaluating(model):
        table = model.item_table()
        batch_size = max(1, min(_BATCH_SIZE, BLOCK_BYTES // (4 * len(table))))
        for rows, ids, mask in windows_before(
            dataset, begins, ends, batch_size=batch_size, max_length=model.max_length
        ):
            logits = model.predict(ids.to(table.device), mask.to(table.device)) @ table.T
            if not bool(logits.isfinite().all()):
                raise NotFiniteError("the model gives scores that are NaN or infinite. Train it again.")
            if not keep_seen:
                for row, user in enumerate(rows):
                    seen = torch.from_numpy(dataset.items[begins[user] : ends[user]].astype(np.int64))
                    logits[row, seen.to(table.device)] = -torch.inf
            best = logits.topk(top, dim=1)
            items[rows] = best.indices.masked_fill(best.values == -torch.inf, -1).cpu().numpy()
            scores[rows] = best.values.float().cpu().numpy()
    return items, scores


def _rows_of(dataset: Dataset, users: Sequence[object] | None) -> NDArray[np.int64]:
    """Find users by what the source calls them."""
    if users is None:
        return np.arange(dataset.num_users)
    wanted = pl.DataFrame({"user": [str(user) for user in users]})
    known = pl.DataFrame({"user": dataset.user_labels.cast(pl.String), "row": np.arange(dataset.num_users)})
    found = wanted.join(known, on="user", how="left", maintain_order="left")
    missing = found.filter(pl.col("row").is_null())["user"]
    if len(missing):
        raise DataError(
            f"user {missing[0]} is not in the dataset ({len(missing)} of {len(wanted)} are not). "
            "Pass users as the source names them."
        )
    return found["row"].to_numpy()


def _take_in(run: Run, path: Path | str) -> pl.Series:
    """Extend the model by the items of a file that it does not know; give the labels of all."""
    labels, features = read_features_file(
        path, item_column=run.dataset.info.get("source", {}).get("columns", {}).get("item")
    )
    known = run.dataset.item_labels.cast(pl.String)
    new = ~labels.cast(pl.String).is_in(known.implode())
    if run.features is None or not isinstance(run.network, EncodedModel):
        raise ArgumentError(
            f"{run.folder} has a trained vector for each item and cannot score others. "
            "Train it with --item-features."
        )
    run.network.extend_items(torch.from_numpy(features[new.to_numpy()]))
    return pl.concat([known, labels.cast(pl.String).filter(new)])
