"""Read files that anyone may have changed or removed: what cannot be read is reported in a sentence."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.scanning import POLARS_ERRORS
from budgetrec.errors import DataError, first_line
from budgetrec.files import check_plain


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or nothing where there is no such file."""
    check_plain(path)
    try:
        document = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Make it again, or remove it.") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} holds no JSON object. Make it again, or remove it.")
    return document


def read_frame(path: Path, num_rows: int | None = None) -> pl.DataFrame | None:
    """Read a Parquet file, or its first rows, or nothing where there is no such file."""
    if not path.exists():
        return None
    check_plain(path)
    try:
        with path.open("rb") as file:  # a path would be a pattern to polars: run[1] is a fine name
            return pl.read_parquet(file, n_rows=num_rows)
    except (OSError, *POLARS_ERRORS) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {first_line(error)}. Make it again, or remove it."
        ) from error


def number(document: Mapping[str, object], name: str, source: object) -> float | None:
    """Return a number of a document, or nothing where it has none of that name."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(
            f"{source} says {name} is {value!r}, which is not a number. Make it again, or remove it."
        )
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
