"""Tables that a reader can sort: every cell has its text and the value it is sorted by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from budgetrec.report.words import as_text, label

# A longer table is shown by a sample: it is read in its file.
_MOST_ROWS, _SAMPLE_ROWS = 200, 20


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and a second line in small print."""

    text: str
    key: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A heading; numbers stand to the right."""

    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Rows under headings, and what to say below."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    num_rows: int = 0  # of which `rows` may be the first


def number_cell(name: str, value: Any) -> Cell:
    """Give a number with its text; nothing for none."""
    return Cell("", None) if value is None else Cell(as_text(name, value), value)


def frame_table(frame: pl.DataFrame, *, title: str = "", source: str = "") -> Table:
    """Give a frame as a table, a few rows of a long one; `source` says where all of them are."""
    columns = [Column(label(name), kind.is_numeric()) for name, kind in frame.schema.items()]
    shown = frame if len(frame) <= _MOST_ROWS else frame.head(_SAMPLE_ROWS)
    note = ""
    if len(frame) > len(shown):
        note = f"The first {len(shown):,} of {len(frame):,} rows" + (
            f"; all are in {source}." if source else "."
        )
    rows = [
        [
            _cell(name, value, column.numeric)
            for name, value, column in zip(frame.columns, row, columns, strict=True)
        ]
        for row in shown.iter_rows()
    ]
    return Table(columns, rows, title, note, len(frame))


def records_table(records: Iterable[dict[str, Any]], *, title: str = "") -> Table:
    """Give records as a table, a column for each key that any of them has."""
    records = list(records)
    names = list(dict.fromkeys(name for record in records for name in record))
    numeric = {
        name: all(_is_number(record[name]) for record in records if record.get(name) is not None)
        for name in names
    }
    rows = [[_cell(name, record.get(name), numeric[name]) for name in names] for record in records]
    return Table([Column(label(name), numeric[name]) for name in names], rows, title)


def setting_pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Give settings as names and texts, those of a table inside with its name before theirs."""
    pairs = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += [(f"{label(name)} {each}", text) for each, text in setting_pairs(value)]
        else:
            pairs.append((label(name), as_text(name, value)))
    return pairs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(name: str, value: Any, numeric: bool) -> Cell:
    if value is None:
        return Cell("")
    if numeric:
        return number_cell(name, value)
    return Cell(value if isinstance(value, str) else as_text(name, value))
