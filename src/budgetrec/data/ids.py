"""Ids of users and items: integers where that loses nothing, text otherwise (decision 0001)."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

# At most 18 digits, which fit int64, and no prefix that a number would lose.
PLAIN_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"
_CHUNK_BYTES = 1 << 17  # small enough for the processor's cache
_ZERO, _NINE, _PLUS, _MINUS, _BLANK, _TAB, _LINE_FEED, _QUOTE = b'09+- \t\n"'


def are_plain_numbers(labels: pl.Series) -> bool:
    """Return whether every label is the same as a number and as text.

    >>> are_plain_numbers(pl.Series(["7", "-12", "0"])), are_plain_numbers(pl.Series(["7", "007"]))
    (True, False)
    """
    if labels.dtype != pl.String:
        return labels.dtype.is_integer()
    return bool(labels.str.contains(PLAIN_NUMBER).all())


def find_labels(wanted: pl.Series, known: pl.Series) -> pl.Series:
    """Return the place of each wanted label among the known ones, null where it has none; 7 is "7" here.

    >>> find_labels(pl.Series(["7", "b"]), pl.Series([5, 7])).to_list()
    [1, None]
    """
    ours, theirs = (pl.DataFrame({"label": labels.cast(pl.String)}) for labels in (wanted, known))
    return ours.join(theirs.with_row_index("place"), on="label", how="left", maintain_order="left")["place"]


def as_label(column: pl.Expr, found: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    """Return a column of ids as int64 or as categories, whatever type the file has."""
    if found == wanted:
        return column
    if found.is_integer() and found != pl.UInt64:
        return column.cast(pl.Int64)
    text = column.cast(pl.String)
    if found.is_float():  # integers that a missing value turned into floats
        whole = column.cast(pl.Int64, strict=False).cast(pl.String)
        text = pl.coalesce(pl.when(column == column.round()).then(whole), text)
    return text.cast(wanted)


def holds_padded_numbers(files: list[Path], separator: str) -> bool:
    """Return whether any field starts with a zero and a digit, a plus, a space or tab, or a minus and a zero.

    Such a field may parse as an integer without being written like one: `007` is not 7. Fields that are not
    ids count too: ids are then read as text, which is slower and always right.
    """
    return any(_file_holds_padded_numbers(path, ord(separator)) for path in files)


def _file_holds_padded_numbers(path: Path, separator: int) -> bool:
    before = b"\n"  # the first line starts a field too
    signs = [sign for sign in (_PLUS, _BLANK, _TAB, _MINUS) if sign != separator]
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            text = np.frombuffer(before + chunk, np.uint8)
            ahead, first = text[:-2], text[1:-1]
            begins = (ahead == _LINE_FEED) | (ahead == separator)
            if _QUOTE in before + chunk:
                begins |= ahead == _QUOTE
            odd = first == _ZERO
            for sign in signs:
                if sign in before + chunk:
                    odd |= first == sign
            odd &= begins
            if odd.any() and _any_padded(text, np.flatnonzero(odd) + 1):
                return True
            before = text[-2:].tobytes()
    return False


def _any_padded(text: NDArray[np.uint8], places: NDArray[np.int64]) -> bool:
    """Check the fields at `places`, which start with a zero, a sign or a space."""
    first, second = text[places], text[places + 1]
    digit = (second >= _ZERO) & (second <= _NINE)
    padded = np.where(first == _ZERO, digit, (first != _MINUS) | (second == _ZERO))
    return bool(padded.any())
