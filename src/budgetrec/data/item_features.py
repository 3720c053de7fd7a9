"""Fixed features of items: numeric columns or one column of vectors, in the order of a dataset's items."""

from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.data.ids import find_labels
from budgetrec.data.scanning import POLARS_ERRORS
from budgetrec.data.store import Dataset
from budgetrec.errors import DataError, first_line
from budgetrec.files import check_plain

_ITEM_COLUMNS = ("item", "item_id", "movieId", "itemId", "id")


def read_item_features(path: Path | str, dataset: Dataset) -> Tensor:
    """Read the features (K, f) of the dataset's items.

    The file is Parquet or CSV with a column of item ids, and numeric columns or columns of vectors.
    """
    own = dataset.info.get("source", {}).get("columns", {}).get("item")
    items, features = read_features_file(path, item_column=own)
    order = find_labels(dataset.item_labels, items)
    if missing := order.null_count():
        first = dataset.item_labels.filter(order.is_null())[0]
        raise DataError(
            f"{path} has no row for {missing} of {dataset.num_items} items, such as {first}. "
            "Add them, or filter those items out when preparing."
        )
    return torch.from_numpy(features[order.to_numpy()])


def read_features_file(
    path: Path | str, *, item_column: str | None = None
) -> tuple[pl.Series, NDArray[np.float32]]:
    """Read the ids and features (rows, f) of all items in a file; `item_column` is tried first."""
    path = Path(path)
    check_plain(path)
    names = (*((item_column,) if item_column else ()), *_ITEM_COLUMNS)
    try:
        frame, column = _read(path, names)
        items, others = frame[column], frame.drop(column)
        if items.null_count() or items.n_unique() < len(items):
            raise DataError(
                f"{path} names an item twice or not at all in column {column!r}. Give each item one row."
            )
        return items, _numbers(others, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Pass a file of item features.") from None
    except (OSError, *POLARS_ERRORS) as error:
        raise DataError(
            f"{path} cannot be read: {first_line(error)}. Save item features as Parquet or CSV."
        ) from error


def _read(path: Path, names: tuple[str, ...]) -> tuple[pl.DataFrame, str]:
    kind = path.suffix.lower()
    if kind == ".parquet":
        frame = pl.read_parquet(path)
        return frame, _item_column(frame.columns, names, path)
    if kind == ".csv":
        column = _item_column(pl.read_csv(path, n_rows=0).columns, names, path)
        return pl.read_csv(path, schema_overrides={column: pl.String}), column  # 007 is not 7
    raise DataError(f"{path} is neither .parquet nor .csv. Save item features as one of them.")


def _item_column(columns: list[str], names: tuple[str, ...], path: Path) -> str:
    if found := next((name for name in names if name in columns), None):
        return found
    raise DataError(
        f"{path} has no column of items (found: {', '.join(columns)}). "
        f"Name it one of {', '.join(dict.fromkeys(names))}."
    )


def _numbers(frame: pl.DataFrame, path: Path) -> NDArray[np.float32]:
    """Join numbers and vectors side by side, in the order of the columns."""
    parts = []
    for name, kind in frame.schema.items():
        if kind.is_numeric() or kind == pl.Boolean:
            parts.append(frame[name].cast(pl.Float32).to_numpy()[:, None])
        elif isinstance(kind, pl.List | pl.Array) and kind.inner.is_numeric():
            column = frame[name].cast(pl.List(pl.Float32))
            if column.null_count() or column.list.len().n_unique() > 1:
                raise DataError(f"{path} has vectors of different lengths in {name!r}. Make them equal.")
            parts.append(column.explode().to_numpy().reshape(len(frame), -1))
        else:
            raise DataError(f"{path} has a column {name!r} of {kind}, which is not numeric. Remove it.")
    if not parts:
        raise DataError(
            f"{path} has no column besides the items. Add numeric columns or a column of vectors."
        )
    features = np.concatenate(parts, axis=1, dtype=np.float32)
    if not np.isfinite(features).all():
        raise DataError(f"{path} has features that are missing, NaN or infinite. Fill them in first.")
    return features
