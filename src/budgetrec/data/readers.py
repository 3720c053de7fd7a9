"""From files to `Events`: users and items as numbers, times as whole numbers, in the order of the source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from budgetrec.data.archives import Report, join_files, unwrap
from budgetrec.data.formats import FORMATS, recognise
from budgetrec.data.tables import Table, open_table
from budgetrec.data.times import TimeParser, parser_of_type, parsers_of_text, unit_of
from budgetrec.errors import ArgumentError, DataError

_Number = TypeVar("_Number", np.int32, np.int64, np.float64)
_SAMPLE_ROWS = 1000
_COUNT_ROWS = 1 << 20
# The usual names, compared without case, blanks, dashes, underscores and RecBole's `:type` endings.
_USUAL_NAMES = {
    "user": "user userid uid customer customerid visitorid member memberid reviewerid account accountid "
    "session sessionid",
    "item": "item itemid iid movie movieid product productid article articleid track trackid song songid "
    "asin parentasin sku location locationid venue venueid business businessid book bookid",
    "time": "timestamp time ts datetime date eventtime createdat unixreviewtime reviewtime tdat",
    "rating": "rating stars score overall",
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns to read; None guesses from the usual names."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None


@dataclass
class Events:
    """Interactions in the order of the source. Labels are what the source calls a user or an item."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    times: NDArray[np.int64] | None  # None: the order of the source is the order in time
    ratings: NDArray[np.float64] | None
    user_labels: pl.Series
    item_labels: pl.Series
    time_unit: str

    def __len__(self) -> int:
        return len(self.users)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Keep only these rows."""
        self.users = self.users[rows]
        self.items = self.items[rows]
        self.times = None if self.times is None else self.times[rows]
        self.ratings = None if self.ratings is None else self.ratings[rows]


def count_codes(codes: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    """Count how often each of the numbers below `size` comes; in blocks, as numpy would copy all to int64.

    >>> count_codes(np.array([0, 2, 2], np.int32), 4)
    array([1, 0, 2, 0])
    """
    counts = np.zeros(size, np.int64)
    for begin in range(0, len(codes), _COUNT_ROWS):
        counts += np.bincount(codes[begin : begin + _COUNT_ROWS], minlength=size)
    return counts


@dataclass(frozen=True)
class Read:
    """What came out of the files, and how many rows fell to `drop_nulls`."""

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
            files += _choose_files(inside)
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"there is no file {path}. Check the path.")
    if not files:
        raise ArgumentError("no input was given. Pass a file or a folder.")
    return files


def _choose_files(inside: list[Path]) -> list[Path]:
    """Of an unpacked dataset's folder take the interactions, of any other folder take all files."""
    for name in ("u.data", "ratings.dat", "ratings.csv"):
        for path in inside:
            if path.name == name:
                return [path]
    for prefix in ("combined_data_", "mv_"):
        pieces = [path for path in inside if path.name.startswith(prefix)]
        if pieces:
            return pieces
    return inside


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
    plain, layout = _plain_files(files, layout, workspace, report)
    shown = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
    size = sum(path.stat().st_size for path in plain)
    report(f"reading {size / 2**20:,.0f} MiB")
    try:
        table = open_table(plain, "csv" if layout == "ml-20m" else layout, header=header)
        names = _choose_columns(
            table.names, columns or Columns(), shown, with_time=not file_order, with_ratings=with_ratings
        )
        frame, unit = _collect(table, names, shown)
    except PolarsError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"{shown} cannot be read as {layout}: {reason}. Check the file, or name its layout with --format."
        ) from error
    rows = frame.height
    if rows == 0:
        raise DataError(f"{shown} has a header but no rows. Pass a file with one interaction a line.")
    frame = _without_nulls(frame, shown, drop=drop_nulls)
    return Read(_encode(frame, unit), layout, names, rows)


def _plain_files(files: list[Path], layout: str, workspace: Path, report: Report) -> tuple[list[Path], str]:
    plain = [inner for path in files for inner in unwrap(path, workspace, report)]
    if layout == "auto":
        # Of thousands of pieces of one dataset the first tells enough.
        layouts = {recognise(path): path for path in (plain if len(plain) <= 100 else plain[:1])}
        if len(layouts) > 1:
            seen = ", ".join(f"{path.name} is {name}" for name, path in layouts.items())
            raise DataError(f"the files are of different kinds ({seen}). Pass files of one kind.")
        layout = next(iter(layouts))
    if layout == "netflix" and len(plain) > 1:
        report(f"joining {len(plain):,} files")
        plain = [join_files(plain, workspace / "netflix.txt")]
    return plain, layout


def _choose_columns(
    found: list[str], asked: Columns, shown: Path | str, *, with_time: bool, with_ratings: bool
) -> dict[str, str]:
    normal = {_normalise(name): name for name in reversed(found)}
    chosen = {}
    for role in ("user", "item", "time", "rating"):
        if (role == "time" and not with_time) or (role == "rating" and not with_ratings):
            continue
        name = getattr(asked, role)
        if name is not None and name not in found:
            raise DataError(
                f"{shown} has no column {name!r} (found: {', '.join(found)}). "
                f"Pass --{role}-column with one of those."
            )
        if name is None:
            name = next((normal[usual] for usual in _USUAL_NAMES[role].split() if usual in normal), None)
        if name is None:
            hint = ", or --file-order if the rows are in order already" if role == "time" else ""
            raise DataError(
                f"{shown} has no column that looks like the {role} (found: {', '.join(found)}). "
                f"Pass --{role}-column NAME{hint}."
            )
        chosen[role] = name
    return chosen


def _normalise(name: str) -> str:
    return "".join(c for c in name.split(":")[0].lower() if c.isalnum())


def _collect(table: Table, names: dict[str, str], shown: Path | str) -> tuple[pl.DataFrame, str]:
    """Read the columns; where the sample misled about the times, look at all of them."""
    if "time" not in names:
        return _select(table, names, None).collect(engine="streaming"), "position"
    parser = _guess_parser(table, names["time"])
    try:
        frame = _select(table, names, parser).collect(engine="streaming")
        misread = frame["time"].null_count() - int(frame["time_missing"].sum())
    except PolarsError:
        if not table.text or isinstance(parser.read_as, pl.String):
            raise
        misread = 1
    if misread:
        parser = _parser_of_all(table, names["time"], shown)
        frame = _select(table, names, parser).collect(engine="streaming")
    largest = frame["time"].max()
    unit = parser.unit or unit_of(int(largest) if isinstance(largest, int) else 0)
    return frame, unit


def _select(table: Table, names: dict[str, str], parser: TimeParser | None) -> pl.LazyFrame:
    # Categories of their own, so that the numbers start at 0 whatever was read before.
    users, items = (pl.Categorical(pl.Categories.random()) for _ in range(2))
    read_as: dict[str, pl.DataType] = {names["user"]: users, names["item"]: items}
    if parser is not None:
        read_as[names["time"]] = parser.read_as
    if "rating" in names:
        read_as[names["rating"]] = pl.Float64()
    lazy = table.scan(read_as)
    types = lazy.collect_schema()
    wanted = [
        _as_label(pl.col(names["user"]), types[names["user"]], users).alias("user"),
        _as_label(pl.col(names["item"]), types[names["item"]], items).alias("item"),
    ]
    if parser is not None:
        wanted += [
            parser.expression.alias("time"),
            pl.col(names["time"]).is_null().alias("time_missing"),
        ]
    if "rating" in names:
        wanted.append(pl.col(names["rating"]).cast(pl.Float64).alias("rating"))
    return lazy.select(wanted)


def _as_label(column: pl.Expr, found: pl.DataType, wanted: pl.Categorical) -> pl.Expr:
    if found == wanted:
        return column
    if found.is_float():  # whole numbers that a missing value turned into floats
        column = column.cast(pl.Int64)
    return column.cast(pl.String).cast(wanted)


def _guess_parser(table: Table, column: str) -> TimeParser:
    lazy = table.scan({})
    dtype = lazy.collect_schema()[column]
    parser = parser_of_type(column, dtype)
    if parser is not None:
        return parser
    sample = lazy.head(_SAMPLE_ROWS).select(column).collect().drop_nulls()
    if dtype != pl.String:
        raise DataError(f"column {column!r} of type {dtype} holds no times. Pass --time-column with another.")
    parsers = list(parsers_of_text(column))
    for parser in parsers:
        if sample.select(parser.expression).to_series().null_count() == 0:
            return parser if table.text else _read_as_text(parser)
    return _read_as_text(parsers[-1])


def _parser_of_all(table: Table, column: str, shown: Path | str) -> TimeParser:
    """Find a way to read every value of the column, or say which value cannot be read."""
    values = table.scan({column: pl.String()}).select(column).collect(engine="streaming")
    given = values.to_series().is_not_null()
    fewest: tuple[int, int] | None = None
    for parser in parsers_of_text(column):
        if values.schema[column] != pl.String:
            break
        misread = values.select(parser.expression).to_series().is_null() & given
        count = int(misread.sum())
        if count == 0:
            return _read_as_text(parser)
        if fewest is None or count < fewest[0]:
            fewest = (count, int(misread.arg_max() or 0))
    count, row = fewest or (len(values), 0)
    raise DataError(
        f"{shown} has {count:,} times that cannot be read, the first in row {row + 1:,}: "
        f"{values[row, 0]!r} in column {column!r}. Write Unix seconds or milliseconds, or ISO dates."
    )


def _read_as_text(parser: TimeParser) -> TimeParser:
    return TimeParser(parser.name, pl.String(), parser.expression, parser.unit)


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


def _encode(frame: pl.DataFrame, time_unit: str) -> Events:
    return Events(
        users=_array(frame["user"].to_physical(), np.int32),
        items=_array(frame["item"].to_physical(), np.int32),
        times=_array(frame["time"], np.int64) if "time" in frame.columns else None,
        ratings=_array(frame["rating"], np.float64) if "rating" in frame.columns else None,
        user_labels=_labels(frame["user"]),
        item_labels=_labels(frame["item"]),
        time_unit=time_unit,
    )


def _array(column: pl.Series, dtype: type[_Number]) -> NDArray[_Number]:
    """Copy a column, chunk by chunk, into an array that can be written to."""
    array = np.empty(len(column), dtype)
    begin = 0
    for chunk in column.get_chunks():
        array[begin : begin + len(chunk)] = chunk.to_numpy()
        begin += len(chunk)
    return array


def _labels(column: pl.Series) -> pl.Series:
    """List the labels of all codes; codes that only dropped rows had are listed too."""
    count = int(column.to_physical().max() or 0) + 1  # type: ignore[arg-type]
    codes = pl.Series(np.arange(count, dtype=np.uint32))
    return codes.cat.to(column.dtype).cast(pl.String).alias("label")
