"""Fixed features of items: numeric columns or one column of vectors, in the order of a dataset's items."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.errors import DataError

_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {".parquet": pl.read_parquet, ".csv": pl.read_csv}
_ITEM_COLUMNS = ("item", "item_id", "movieId", "itemId", "id")


def read_item_features(path: Path | str, dataset: Dataset) -> Tensor:
    """Read one row of features for each of the dataset's items, (K, f).

    The file is Parquet or CSV with a column of item ids and either one column of vectors or numeric columns.
    """
    items, features = read_features_file(path)
    order = pl.DataFrame({"item": dataset.item_labels.cast(pl.String)}).join(
        pl.DataFrame({"item": items.cast(pl.String), "row": np.arange(len(items))}),
        on="item",
        how="left",
        maintain_order="left",
    )["row"]
    missing = order.null_count()
    if missing:
        first = dataset.item_labels.filter(order.is_null())[0]
        raise DataError(
            f"{path} has no row for {missing} of {dataset.num_items} items, such as {first}. "
            "Add them, or filter those items when preparing."
        )
    return torch.from_numpy(features[order.to_numpy()])


def read_features_file(path: Path | str) -> tuple[pl.Series, NDArray[np.float32]]:
    """Read ids and features (rows, f) of whatever items a file has."""
    path = Path(path)
    if path.suffix not in _READERS:
        raise DataError(f"{path} is neither .parquet nor .csv. Save item features as one of them.")
    try:
        frame = _READERS[path.suffix](path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Pass a file of item features.") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}. Save item features as Parquet or CSV.") from error
    column = next((name for name in _ITEM_COLUMNS if name in frame.columns), None)
    if column is None:
        raise DataError(
            f"{path} has no column of items (found: {', '.join(frame.columns)}). "
            f"Name it one of {', '.join(_ITEM_COLUMNS)}."
        )
    items = frame[column]
    if items.null_count() or items.n_unique() < len(items):
        raise DataError(f"{path} names an item twice or not at all in column {column!r}. Give each one row.")
    return items, _numbers(frame.drop(column), path)


def _numbers(frame: pl.DataFrame, path: Path) -> NDArray[np.float32]:
    vectors = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List | pl.Array)]
    numeric = [name for name, kind in frame.schema.items() if kind.is_numeric() or kind == pl.Boolean]
    if len(vectors) > 1 or not (vectors or numeric):
        raise DataError(
            f"{path} has {len(vectors)} columns of vectors and {len(numeric)} of numbers. "
            "Give one column of vectors, or some of numbers."
        )
    if not vectors:
        features = frame.select(pl.col(numeric).cast(pl.Float32)).to_numpy()
    else:
        column = frame[vectors[0]].cast(pl.List(pl.Float32))
        widths = column.list.len()
        if widths.null_count() or widths.n_unique() > 1:
            raise DataError(f"{path} has vectors of different lengths in {vectors[0]!r}. Make them equal.")
        features = column.explode().to_numpy().reshape(len(frame), -1)
    if not np.isfinite(features).all():
        raise DataError(f"{path} has features that are missing, NaN or infinite. Fill them first.")
    return np.ascontiguousarray(features, dtype=np.float32)
