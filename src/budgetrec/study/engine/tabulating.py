"""How findings become tables: means over seeds, the best of each group, and columns that write rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from budgetrec.display.tables import StudyTable, Text, best_of, spread

Row = Mapping[str, Any]
Column = str | Callable[[Row], str | Text]  # a template of a row such as "{mean:.3f}", or a function of it
BEST = "best"  # in a row: the measures by which it is the best of its group


def tabulate(
    frame: pl.DataFrame,
    columns: Mapping[str, Column],
    *,
    num_words: int,
    rows: Iterable[Row] | None = None,
) -> StudyTable:
    """Write each row of a frame, or `rows` made of it, in columns by their titles.

    >>> frame = pl.DataFrame({"name": ["a"], "low": [0.25], "high": [1.0]})
    >>> columns = {"who": "{name}", "from": "{low:.1f}", "width": lambda row: f"{row['high'] - row['low']}"}
    >>> print(tabulate(frame, columns, num_words=1).to_markdown())
    | who | from | width |
    |---|---:|---:|
    | a | 0.2 | 0.75 |
    <BLANKLINE>
    """
    given = frame.iter_rows(named=True) if rows is None else rows
    text = [tuple(_write(column, row) for column in columns.values()) for row in given]
    return StudyTable(tuple(columns), text, frame, num_words)


def _write(column: Column, row: Row) -> Text:
    words = column.format_map(row) if isinstance(column, str) else column(row)
    return words if isinstance(words, Text) else Text(words)


def with_spread(name: str, digits: int, spread_name: str = "deviation") -> Column:
    """Write a mean with its deviation, or another `spread_name`; bold where it is the best of its group."""
    return lambda row: Text(
        spread(row[name], row[f"{name}_{spread_name}"], digits), name in row.get(BEST, ())
    )


def known(template: str, name: str, otherwise: str = "") -> Column:
    """Write a template where the value of that name is known."""
    return lambda row: otherwise if row[name] is None else template.format_map(row)


def average_seeds(rows: pl.DataFrame, names: Sequence[str], measures: Sequence[str]) -> pl.DataFrame:
    """Return mean and deviation of each measure over the seeds of a configuration, and its learning rate."""
    return rows.group_by(names, maintain_order=True).agg(
        pl.col("learning_rate", "rate_at_end").first(),
        pl.len().alias("seeds"),
        *(
            expression
            for name in measures
            for expression in (pl.col(name).mean(), pl.col(name).std().alias(f"{name}_deviation"))
        ),
    )


def rows_with_best(frame: pl.DataFrame, group: Sequence[str], largest: Mapping[str, bool]) -> Iterator[Row]:
    """Yield rows group by group, each with the measures that it is the best by; `largest`: more is better."""
    for _, rows in frame.group_by(group, maintain_order=True):
        places = {name: best_of(rows[name].to_list(), largest=more) for name, more in largest.items()}
        for place, row in enumerate(rows.iter_rows(named=True)):
            yield {**row, BEST: {name for name in largest if places[name] == place}}
