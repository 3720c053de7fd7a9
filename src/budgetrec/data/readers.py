"""Read files into `Events`: users, items and times as integers, in the order of the source."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from budgetrec.data.archives import Report, choose_known, join_files, unwrap
from budgetrec.data.columns import Columns, choose_columns
from budgetrec.data.events import Events, encode
from budgetrec.data.formats import FORMATS, recognise
from budgetrec.data.ids import are_plain_numbers, as_label, holds_padded_numbers
from budgetrec.data.scanning import POLARS_ERRORS, Table, open_table
from budgetrec.data.times import TimeParser, parser_of_type, parsers_of_text, unit_of
from budgetrec.errors import ArgumentError, DataError, first_line
from budgetrec.files import check_plain
from budgetrec.options import check_choice

_SAMPLE_ROWS = 1000


@dataclass(frozen=True)
class Read:
    """The events read from files; `rows` is their number before `drop_nulls`."""

    events: Events
    layout: str
    columns: dict[str, str]
    rows: int


def find_files(inputs: Sequence[Path]) -> list[Path]:
    """Return the given files and those in the given folders, sorted by name within a folder."""
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith((".", "_")))
            if not inside:
                raise DataError(f"{path} is a folder without files. Pass a file or a folder of files.")
            known = choose_known([p.name for p in inside])
            files += [path / name for name in known] or inside
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"there is no file {path}. Check the path.")
    if not files:
        raise ArgumentError("there is no input. Pass a file or a folder.")
    seen: dict[tuple[int, int], Path] = {}
    for path in files:
        if not str(path).isprintable():  # a line feed, or bytes that are not text
            raise DataError(f"the file name {str(path)!r} cannot be read as text. Rename the file.")
        about = _check_readable(path)
        first = seen.setdefault((about.st_dev, about.st_ino), path)
        if first is not path:
            also = "" if first == path else f", also as {first}"
            raise DataError(f"{path} is given twice{also}. Pass each file once.")
    return files


def _check_readable(path: Path) -> os.stat_result:
    """Refuse what is no plain file, or whose first byte cannot be read."""
    check_plain(path)
    try:
        with path.open("rb") as file:
            file.read(1)
            return os.fstat(file.fileno())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the file and its rights.") from error


def read_events(
    files: list[Path],
    *,
    workspace: Path,
    layout: str = "auto",
    columns: Columns | None = None,
    file_order: bool = False,
    header: bool = True,
    with_ratings: bool = False,
    drop_nulls: bool = False,
    report: Report = lambda stage: None,
) -> Read:
    """Read files of any known layout; archives are unpacked into `workspace`."""
    check_choice("format", layout, FORMATS)
    plain, layout = _plain_files(files, layout, workspace, report, header=header)
    shown = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
    report(f"reading {sum(path.stat().st_size for path in plain) / 2**20:,.0f} MiB")
    try:
        table = open_table(plain, "csv" if layout == "ml-20m" else layout, header=header)
        names = choose_columns(
            table.names, columns or Columns(), shown, with_time=not file_order, with_ratings=with_ratings
        )
        frame, unit = _collect(table, names, shown, plain)
    except POLARS_ERRORS as error:
        raise DataError(
            f"{shown} cannot be read as {layout}: {first_line(error)}. Check the file, or pass its layout "
            "with --format."
        ) from error
    rows = frame.height
    if rows == 0:
        raise DataError(f"{shown} has a header but no rows. Pass a file with one interaction per line.")
    frame = _without_nulls(frame, shown, drop=drop_nulls)
    if frame.height == 0:
        raise DataError(f"none of the {rows:,} rows of {shown} is complete. Check the columns.")
    return Read(encode(frame, unit), layout, names, rows)


def _plain_files(
    files: list[Path], layout: str, workspace: Path, report: Report, *, header: bool
) -> tuple[list[Path], str]:
    plain = [inner for path in files for inner in unwrap(path, workspace, report)]
    if layout == "auto":
        # If there are many pieces, they belong to one dataset, and the first is enough.
        sample = plain if len(plain) <= 100 else plain[:1]
        layouts = {recognise(path, header=header): path for path in sample}
        if len(layouts) > 1:
            seen = ", ".join(f"{path.name} is {name}" for name, path in layouts.items())
            raise DataError(f"the files are of different kinds ({seen}). Pass files of one kind.")
        layout = next(iter(layouts))
    if layout == "netflix" and len(plain) > 1:
        report(f"joining {len(plain):,} files")
        plain = [join_files(plain, workspace / "netflix.txt")]
    return plain, layout


def _collect(
    table: Table, names: dict[str, str], shown: Path | str, files: list[Path]
) -> tuple[pl.DataFrame, str]:
    """Read the columns with types guessed from the first rows or, if the guess is wrong, the safe way."""
    parser = _guess_parser(table, names["time"]) if "time" in names else None
    frame = _collect_with_whole_ids(table, names, parser, files)
    if frame is None:
        frame, parser = _collect_with_text_ids(table, names, parser, shown)
    if parser is None:
        return frame, "position"
    largest = frame["time"].max()
    return frame, parser.unit or unit_of(int(largest) if isinstance(largest, int) else 0)


def _collect_with_whole_ids(
    table: Table, names: dict[str, str], parser: TimeParser | None, files: list[Path]
) -> pl.DataFrame | None:
    """Read ids as integers, twice as fast as text; None if that would change any of them."""
    if table.separator is None:
        return None
    ids = [names["user"], names["item"]]
    sample = table.scan({}).head(_SAMPLE_ROWS).select(ids).collect()
    if not all(are_plain_numbers(sample[name].drop_nulls()) for name in ids):
        return None
    with ThreadPoolExecutor(1) as pool:
        padded = pool.submit(holds_padded_numbers, files, table.separator)
        try:
            frame = _select(table, names, parser, pl.Int64(), pl.Int64()).collect(engine="streaming")
        except POLARS_ERRORS:
            return None
        return None if padded.result() or _misread_times(frame) else frame


def _collect_with_text_ids(
    table: Table, names: dict[str, str], parser: TimeParser | None, shown: Path | str
) -> tuple[pl.DataFrame, TimeParser | None]:
    """Read ids as text; if the sample was misleading about the times, examine all of them."""
    # Separate categories, so that codes start at 0 whatever was read before.
    users, items = (pl.Categorical(pl.Categories.random()) for _ in range(2))
    try:
        frame = _select(table, names, parser, users, items).collect(engine="streaming")
        misread = _misread_times(frame)
    except POLARS_ERRORS:
        if parser is None or not table.text or isinstance(parser.read_as, pl.String):
            raise
        misread = True
    if misread:
        parser = _parser_of_all(table, names["time"], shown)
        frame = _select(table, names, parser, users, items).collect(engine="streaming")
    return frame, parser


def _misread_times(frame: pl.DataFrame) -> bool:
    return "time" in frame.columns and frame["time"].null_count() > int(frame["time_missing"].sum())


def _select(
    table: Table,
    names: dict[str, str],
    parser: TimeParser | None,
    user_type: pl.DataType,
    item_type: pl.DataType,
) -> pl.LazyFrame:
    read_as: dict[str, pl.DataType] = {names["user"]: user_type, names["item"]: item_type}
    if parser is not None:
        read_as[names["time"]] = parser.read_as
    if "rating" in names:
        read_as[names["rating"]] = pl.Float64()
    lazy = table.scan(read_as)
    types = lazy.collect_schema()
    if parser is not None and types[names["time"]] == pl.String:
        lazy = lazy.with_columns(_stripped(names["time"]))
    wanted = [
        as_label(pl.col(names["user"]), types[names["user"]], user_type).alias("user"),
        as_label(pl.col(names["item"]), types[names["item"]], item_type).alias("item"),
    ]
    if parser is not None:
        missing = pl.col(names["time"]).is_null()
        if types[names["time"]].is_float():
            missing |= pl.col(names["time"]).is_nan()
        wanted += [parser.expression.alias("time"), missing.alias("time_missing")]
    if "rating" in names:
        wanted.append(pl.col(names["rating"]).cast(pl.Float64).alias("rating"))
    return lazy.select(wanted)


def _guess_parser(table: Table, column: str) -> TimeParser:
    lazy = table.scan({})
    dtype = lazy.collect_schema()[column]
    parser = parser_of_type(column, dtype)
    if parser is not None:
        return parser
    sample = lazy.head(_SAMPLE_ROWS).select(column).collect().drop_nulls()
    if dtype != pl.String:
        raise DataError(f"column {column!r} of type {dtype} is not a time. Pass another --time-column.")
    sample = sample.select(_stripped(column)).drop_nulls()
    parsers = list(parsers_of_text(column))
    for parser in parsers:
        if sample.select(parser.expression).to_series().null_count() == 0:
            return parser if table.text else replace(parser, read_as=pl.String())
    return replace(parsers[-1], read_as=pl.String())


def _parser_of_all(table: Table, column: str, shown: Path | str) -> TimeParser:
    """Return a parser that reads every value of the column, or report the first unreadable value."""
    values = table.scan({column: pl.String()}).select(column).collect(engine="streaming")
    typed = parser_of_type(column, values.schema[column])
    if typed is None:
        values = values.select(_stripped(column))
    given = values.to_series().is_not_null()
    fewest: tuple[int, int] | None = None
    for parser in parsers_of_text(column) if typed is None else [typed]:
        misread = values.select(parser.expression).to_series().is_null() & given
        count = int(misread.sum())
        if count == 0:
            return replace(parser, read_as=pl.String()) if typed is None else parser
        if fewest is None or count < fewest[0]:
            fewest = (count, int(misread.arg_max() or 0))
    count, row = fewest or (len(values), 0)
    raise DataError(
        f"{shown} has times that cannot be read, {count:,} of {len(values):,}, the first in row {row + 1:,}: "
        f"{values[row, 0]!r} in column {column!r}. Write Unix seconds or milliseconds, or ISO dates."
    )


def _stripped(column: str) -> pl.Expr:
    """Strip spaces around a value; a blank value is missing."""
    values = pl.col(column).str.strip_chars()
    return pl.when(values != "").then(values).alias(column)


def _without_nulls(frame: pl.DataFrame, shown: Path | str, *, drop: bool) -> pl.DataFrame:
    roles = [name for name in frame.columns if name != "time_missing"]
    nulls = {role: frame[role].null_count() for role in roles}
    if not any(nulls.values()):
        return frame
    if not drop:
        counted = ", ".join(f"{count:,} without {role}" for role, count in nulls.items() if count)
        raise DataError(
            f"{shown} has incomplete rows: {counted}, of {frame.height:,}. Pass --drop-nulls to drop them."
        )
    return frame.drop_nulls(roles)
