"""Open files of any known layout as one lazy table."""

import glob
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from budgetrec.data.formats import check_text, separator_of

Scan = Callable[[Mapping[str, pl.DataType]], pl.LazyFrame]

# What polars raises for what it cannot read; a panic of its Rust code is no Exception.
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_LAYOUTS = {  # the separator and the columns of files without a header
    # `::` is two separators with nothing in between, so every second column is empty.
    "ml-1m": (":", ["user", "", "item", "", "rating", "", "time"]),
    "ml-100k": ("\t", ["user", "item", "rating", "time"]),
    "gowalla": ("\t", ["user", "time", "", "", "item"]),
    "sasrec": (" ", ["user", "item"]),
}


@dataclass(frozen=True)
class Table:
    """A lazy table of interactions.

    `scan` takes the types to read columns as. `text` is whether any column can be read as text. `separator`
    is the character between the fields of a line, if there are lines of fields.
    """

    names: list[str]
    scan: Scan
    text: bool
    separator: str | None = None


def open_table(files: list[Path], layout: str, *, header: bool) -> Table:
    """Open plain files of one layout."""
    if layout == "parquet":
        lazy = pl.scan_parquet(files, glob=False)
        return Table(lazy.collect_schema().names(), lambda read_as: lazy, text=False)
    first_line = check_text(files[0])
    if layout == "jsonl":
        return _json_lines(files)
    if layout == "netflix":
        return Table(["user", "item", "time", "rating"], lambda read_as: _netflix(files, read_as), text=True)
    if layout in _LAYOUTS:
        return _columns(files, *_LAYOUTS[layout])
    separator = "\t" if layout == "tsv" else separator_of(first_line)
    if header:
        return _with_header(files, separator)
    names = [f"column_{i + 1}" for i in range(first_line.count(separator) + 1)]
    return _columns(files, separator, names, quote='"')


def _with_header(files: list[Path], separator: str) -> Table:
    def scan(read_as: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        return pl.scan_csv(
            files,
            separator=separator,
            schema_overrides=dict(read_as),
            infer_schema=False,
            null_values="",  # even if quoted
            glob=False,
        )

    return Table(scan({}).collect_schema().names(), scan, text=True, separator=separator)


def _columns(files: list[Path], separator: str, names: list[str], quote: str | None = None) -> Table:
    """Read files without a header; a column with an empty name is ignored."""
    filled = [name or f"unused_{i}" for i, name in enumerate(names)]

    def scan(read_as: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        schema = {name: read_as.get(name, pl.String()) for name in filled}
        return pl.scan_csv(
            files, has_header=False, separator=separator, schema=schema, quote_char=quote, glob=False
        )

    return Table([name for name in names if name], scan, text=True, separator=separator)


def _json_lines(files: list[Path]) -> Table:
    names = [glob.escape(str(path)) for path in files]  # polars expands stars and brackets here

    def scan(read_as: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        # Ids may be numbers in one line and text in the next; as text, both can be read.
        as_text = [name for name, kind in read_as.items() if isinstance(kind, pl.Categorical | pl.String)]
        text = dict.fromkeys(as_text, pl.String())
        return pl.scan_ndjson(names, schema_overrides=text, infer_schema_length=1000)

    return Table(scan({}).collect_schema().names(), scan, text=True)


def _netflix(files: list[Path], read_as: Mapping[str, pl.DataType]) -> pl.LazyFrame:
    """Read blocks of lines `user,rating,date`, each under a line `movie:`."""
    lines = pl.scan_csv(
        files,
        has_header=False,
        schema={"user": pl.String, "rating": read_as.get("rating", pl.String()), "time": pl.String},
        quote_char=None,
        missing_columns="insert",
        glob=False,
    )
    opens_block = pl.col("user").str.ends_with(":")
    return lines.with_columns(
        item=pl.when(opens_block).then(pl.col("user").str.head(-1)).forward_fill()
    ).filter(~opens_block)
