"""Tables that a reader can sort: every cell has its text and the value it is sorted by."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from budgetrec.display.tables import StudyTable
from budgetrec.display.words import as_text, label

# A longer table is shown by a sample: it is read in its file.
_MOST_ROWS, _SAMPLE_ROWS = 200, 20


@dataclass(frozen=True)
class Entry:
    """What is shown, what it is sorted by, a second line in small print, and whether it is the best."""

    text: str
    key: float | str | None = None
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A heading; numbers stand to the right."""

    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Rows under headings, and what to say below."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    title: str = ""
    note: str = ""
    num_rows: int = 0  # of which `rows` may be the first


def value_cell(name: str, value: object, *, numeric: bool = True) -> Entry:
    """Return a value as text, by which numbers are sorted too; nothing for None."""
    if value is None:
        return Entry("")
    return Entry(as_text(name, value), value if numeric and isinstance(value, int | float) else None)


def frame_table(frame: pl.DataFrame, *, title: str = "", source: str = "") -> Table:
    """Return a frame as a table, a few rows of a long one; `source` says where all of them are."""
    numeric = {name: kind.is_numeric() for name, kind in frame.schema.items()}
    shown = frame.head(_num_shown(len(frame))).iter_rows(named=True)
    return replace(_table(shown, numeric, title), note=_note(len(frame), source), num_rows=len(frame))


def records_table(records: Sequence[Mapping[str, object]], *, title: str = "") -> Table:
    """Return records as a table, a column for each key that any of them has."""
    names = dict.fromkeys(name for record in records for name in record)
    return _table(records, {name: is_numeric(records, name) for name in names}, title)


def is_numeric(records: Iterable[Mapping[str, object]], name: str) -> bool:
    """Say whether all that records have under a name are numbers."""
    values = [record[name] for record in records if record.get(name) is not None]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def written_table(table: StudyTable, *, title: str, source: str) -> Table:
    """Return a table as the study wrote it, bests in bold; numbers sort by what they begin with."""
    columns = [Column(name, place >= table.num_words) for place, name in enumerate(table.columns)]
    rows = [
        [
            Entry(text.words, leading_number(text.words) if column.numeric else None, best=text.bold)
            for text, column in zip(row, columns, strict=True)
        ]
        for row in table.rows[: _num_shown(len(table.rows))]
    ]
    return Table(columns, rows, title, _note(len(table.rows), source), len(table.rows))


def leading_number(text: str) -> float | None:
    """Return the number that a text begins with.

    >>> leading_number("1,024.5 ± 3"), leading_number("-2e-05 to 1"), leading_number("(32, 512)")
    (1024.5, -2e-05, None)
    """
    found = re.match(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", text)
    return float(found[0].replace(",", "")) if found else None


def setting_pairs(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return settings as names and texts; those of an inner table have its name before theirs."""
    pairs = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += [(f"{label(name)} {each}", text) for each, text in setting_pairs(value)]
        else:
            pairs.append((label(name), as_text(name, value)))
    return pairs


def _table(records: Iterable[Mapping[str, object]], numeric: Mapping[str, bool], title: str) -> Table:
    columns = [Column(label(name), each) for name, each in numeric.items()]
    rows = [
        [value_cell(name, record.get(name), numeric=each) for name, each in numeric.items()]
        for record in records
    ]
    return Table(columns, rows, title)


def _num_shown(num_rows: int) -> int:
    return num_rows if num_rows <= _MOST_ROWS else _SAMPLE_ROWS


def _note(num_rows: int, source: str) -> str:
    if _num_shown(num_rows) == num_rows:
        return ""
    where = f"; all are in {source}." if source else "."
    return f"The first {_num_shown(num_rows):,} of {num_rows:,} rows{where}"
