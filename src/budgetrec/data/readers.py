"""From files to `Events`: users and items as numbers, times as whole numbers, in the order of the source."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from budgetrec.data.archives import Report, choose_known, join_files, unwrap
from budgetrec.data.columns import Columns, choose_columns
from budgetrec.data.events import Events, encode
from budgetrec.data.formats import FORMATS, recognise
from budgetrec.data.ids import are_plain_numbers, as_label, holds_padded_numbers
from budgetrec.data.scanning import Table, open_table
from budgetrec.data.times import TimeParser, parser_of_type, parsers_of_text, unit_of
from budgetrec.errors import ArgumentError, DataError

_SAMPLE_ROWS = 1000


@dataclass(frozen=True)
class Read:
    """What came out of the files; `rows` counts what was read, before `drop_nulls`."""

    events: Events
    layout: str
    columns: dict[str, str]
    rows: int


def find_files(inputs: Sequence[Path]) -> list[Path]:
    """List the files behind files and folders, those of a folder sorted by name."""
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
        raise ArgumentError("no input was given. Pass a file or a folder.")
    for path in files:
        if not str(path).isprintable():  # a line feed, or bytes that are no text
            raise DataError(f"the file name {str(path)!r} cannot be read as text. Rename the file.")
    return files


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
    """Read files of any known layout; compressed ones are unpacked into `workspace`."""
    if layout not in FORMATS:
        raise ArgumentError(f"unknown format {layout!r}. Known are {', '.join(FORMATS)}.")
    plain, layout = _plain_files(files, layout, workspace, report, header=header)
    shown = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
    size = sum(path.stat().st_size for path in plain)
    report(f"reading {size / 2**20:,.0f} MiB")
    try:
        table = open_table(plain, "csv" if layout == "ml-20m" else layout, header=header)
        names = choose_columns(
            table.names, columns or Columns(), shown, with_time=not file_order, with_ratings=with_ratings
        )
        frame, unit = _collect(table, names, shown, plain)
    except PolarsError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"{shown} cannot be read as {layout}: {reason}. Check the file, or name its layout with --format."
        ) from error
    rows = frame.height
    if rows == 0:
        raise DataError(f"{shown} has a header but no rows. Pass a file with one interaction a line.")
    frame = _without_nulls(frame, shown, drop=drop_nulls)
    if frame.height == 0:
        raise DataError(f"none of the {rows:,} rows of {shown} has all it needs. Check the columns.")
    return Read(encode(frame, unit), layout, names, rows)


def _plain_files(
    files: list[Path], layout: str, workspace: Path, report: Report, *, header: bool
) -> tuple[list[Path], str]:
    plain = [inner for path in files for inner in unwrap(path, workspace, report)]
    if layout == "auto":
        # Of thousands of pieces of one dataset the first tells enough.
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
    """Read the columns, by guesses from the first rows; where those mislead, the safe way."""
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
    """Read ids as whole numbers, twice as fast as text; None if that would change any of them."""
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
        except PolarsError:
            return None
        return None if padded.result() or _misread_times(frame) else frame


def _collect_with_text_ids(
    table: Table, names: dict[str, str], parser: TimeParser | None, shown: Path | str
) -> tuple[pl.DataFrame, TimeParser | None]:
    """Read ids as they are written; where the sample misled about the times, look at all of them."""
    # Categories of their own, so that the numbers start at 0 whatever was read before.
    users, items = (pl.Categorical(pl.Categories.random()) for _ in range(2))
    try:
        frame = _select(table, names, parser, users, items).collect(engine="streaming")
        misread = _misread_times(frame)
    except PolarsError:
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
        raise DataError(f"column {column!r} of type {dtype} holds no times. Pass --time-column with another.")
    sample = sample.select(_stripped(column)).drop_nulls()
    parsers = list(parsers_of_text(column))
    for parser in parsers:
        if sample.select(parser.expression).to_series().null_count() == 0:
            return parser if table.text else _read_as_text(parser)
    return _read_as_text(parsers[-1])


def _parser_of_all(table: Table, column: str, shown: Path | str) -> TimeParser:
    """Find a way to read every value of the column, or say which value cannot be read."""
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
            return _read_as_text(parser) if typed is None else parser
        if fewest is None or count < fewest[0]:
            fewest = (count, int(misread.arg_max() or 0))
    count, row = fewest or (len(values), 0)
    raise DataError(
        f"{shown} has times that cannot be read, {count:,} of {len(values):,}, the first in row {row + 1:,}: "
        f"{values[row, 0]!r} in column {column!r}. Write Unix seconds or milliseconds, or ISO dates."
    )


def _stripped(column: str) -> pl.Expr:
    """Leave out blanks around a value; one of blanks alone is missing."""
    values = pl.col(column).str.strip_chars()
    return pl.when(values != "").then(values).alias(column)


def _read_as_text(parser: TimeParser) -> TimeParser:
    return TimeParser(pl.String(), parser.expression, parser.unit)


def _without_nulls(frame: pl.DataFrame, shown: Path | str, *, drop: bool) -> pl.DataFrame:
    roles = [name for name in frame.columns if name != "time_missing"]
    nulls = {role: frame[role].null_count() for role in roles}
    if not any(nulls.values()):
        return frame
    if not drop:
        counted = ", ".join(f"{count:,} without {role}" for role, count in nulls.items() if count)
        raise DataError(
            f"{shown} has rows with nothing in them where it matters: {counted}, of {frame.height:,}. "
            "Pass --drop-nulls to leave them out."
        )
    return frame.drop_nulls(roles)
