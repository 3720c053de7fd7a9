"""Read a column of times in any format as integers that sort by time.

Numbers keep their unit, because only their order matters. Dates become microseconds since 1970 in UTC; a date
without a time zone is in UTC.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

# The longest and most precise first. Data warehouses export the word `UTC`.
_DATE_FORMATS = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f UTC",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M%#z",
    "%Y-%m-%d %H:%M%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d",
)
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class TimeParser:
    """A way to read a column: the type to read it as, and the expression that turns it into int64."""

    read_as: pl.DataType
    expression: pl.Expr
    unit: str | None  # None: inferred from the size of the numbers


def parsers_of_text(column: str) -> Iterator[TimeParser]:
    """Yield the ways to read a column of text, the fastest first."""
    yield TimeParser(pl.Int64(), pl.col(column).cast(pl.Int64, strict=False), None)
    yield TimeParser(pl.Float64(), _from_float(pl.col(column).cast(pl.Float64, strict=False)), None)
    for date_format in _DATE_FORMATS:
        yield TimeParser(pl.String(), _from_text(pl.col(column), date_format), "us")
    every = pl.coalesce(_from_text(pl.col(column), date_format) for date_format in _DATE_FORMATS)
    yield TimeParser(pl.String(), every, "us")


def parser_of_type(column: str, dtype: pl.DataType) -> TimeParser | None:
    """Return the way to read a typed column, or None if it is text or not a time."""
    values = pl.col(column)
    if dtype.is_integer():
        return TimeParser(dtype, values.cast(pl.Int64, strict=False), None)
    if dtype.is_float():
        return TimeParser(dtype, _from_float(values), None)
    if isinstance(dtype, pl.Datetime):
        return TimeParser(dtype, values.to_physical(), dtype.time_unit)
    if dtype == pl.Date:
        return TimeParser(dtype, values.to_physical().cast(pl.Int64) * 86_400, "s")
    return None


def unit_of(largest: int) -> str:
    """Infer the unit of Unix times from their size; small numbers are just positions.

    >>> [unit_of(x) for x in (57, 978_300_760, 978_300_760_000)]
    ['position', 's', 'ms']
    """
    for unit, limit in (("position", 10**8), ("s", 10**11), ("ms", 10**14), ("us", 10**17)):
        if abs(largest) < limit:
            return unit
    return "ns"


def as_date(time: int, unit: str) -> str | None:
    """Format a time as an ISO date in UTC; None for a position or a year beyond the calendar.

    >>> as_date(978_300_760, "s")
    '2000-12-31T22:12:40Z'
    """
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(unit)
    if per_second is None:
        return None
    try:
        date = datetime.fromtimestamp(0, UTC) + timedelta(seconds=time // per_second)
    except OverflowError:
        return None
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")


def _from_float(values: pl.Expr) -> pl.Expr:
    """Turn seconds into microseconds and milliseconds into nanoseconds; larger numbers become null."""
    scaled = values * _MICROSECONDS
    return pl.when(scaled.is_finite() & (scaled.abs() < 2.0**62)).then(scaled.round()).cast(pl.Int64)


def _from_text(values: pl.Expr, date_format: str) -> pl.Expr:
    parsed = values.str.to_datetime(date_format, time_unit="us", strict=False)
    return parsed.dt.timestamp("us")
