"""Times in every usual writing sort in time."""

import polars as pl
import pytest

from budgetrec import prepare
from budgetrec.errors import DataError
from tests.conftest import sequences, write_csv


@pytest.mark.parametrize(
    ("early", "late", "first"),
    [
        (978300760, 978300761, "2000-12-31T22:12:40Z"),
        (978300760000, 978300760001, "2000-12-31T22:12:40Z"),
        ("978300760.25", "978300760.5", "2000-12-31T22:12:40Z"),
        ("978300760000.5", "978300760001.5", "2000-12-31T22:12:40Z"),
        ("2000-12-31", "2001-01-01", "2000-12-31T00:00:00Z"),
        ("2000-12-31 22:12:40", "2000-12-31 22:12:41", "2000-12-31T22:12:40Z"),
        ("2000-12-31T22:12:40.001", "2000-12-31T22:12:40.002", "2000-12-31T22:12:40Z"),
        ("2000-12-31T22:12:40Z", "2000-12-31T22:12:41Z", "2000-12-31T22:12:40Z"),
        ("2000-12-31 22:12:40 UTC", "2000-12-31 22:12:41 UTC", "2000-12-31T22:12:40Z"),
        # Later on the clock, earlier in time: the zone counts.
        ("2000-12-31T23:00:00+02:00", "2000-12-31T22:00:00+00:00", "2000-12-31T21:00:00Z"),
        ("2000-12-31T23:00:00+0200", "2000-12-31T22:00:00Z", "2000-12-31T21:00:00Z"),
    ],
)
def test_times_sort_in_every_writing(tmp_path, early, late, first):
    """Seconds, milliseconds, fractions, dates, and dates with zones."""
    path = write_csv(tmp_path / "e.csv", [("u", "b", late), ("u", "a", early)])
    dataset = prepare(path, tmp_path / "dataset")
    assert sequences(dataset) == {"u": ["a", "b"]}
    assert dataset.info["statistics"]["time"]["first"] == first


def test_a_column_may_mix_dates_with_and_without_a_time_of_day(tmp_path):
    """The first rows do not decide for the whole column."""
    rows = [("u", f"a{i}", "2000-01-01") for i in range(1500)]
    path = write_csv(tmp_path / "e.csv", [*rows, ("u", "z", "1999-12-31T10:00:00Z")])
    assert sequences(prepare(path, tmp_path / "dataset"))["u"][0] == "z"


def test_whole_seconds_may_be_followed_by_fractions(tmp_path):
    """A column that starts with integers may continue with other numbers."""
    rows = [("u", f"a{i}", 1000 + i) for i in range(1500)]
    path = write_csv(tmp_path / "e.csv", [*rows, ("u", "z", "999.5")])
    assert sequences(prepare(path, tmp_path / "dataset"))["u"][0] == "z"


@pytest.mark.parametrize(
    "dtype", [pl.Date, pl.Datetime("ms"), pl.Datetime("ns", "Europe/Rome"), pl.Int32, pl.Float64, pl.String]
)
def test_typed_columns_of_parquet_are_read(tmp_path, dtype):
    """Dates, zoned dates, numbers and text in Parquet."""
    days = pl.Series([11_001, 11_000], dtype=pl.Int32)
    if dtype == pl.String:
        times = days.cast(pl.Date).cast(pl.String)
    elif isinstance(dtype, pl.Datetime):
        times = days.cast(pl.Date).cast(pl.Datetime(dtype.time_unit))
        times = times.dt.replace_time_zone(dtype.time_zone) if dtype.time_zone else times
    else:
        times = days.cast(dtype)
    frame = pl.DataFrame({"user": ["u", "u"], "item": ["b", "a"], "timestamp": times})
    frame.write_parquet(tmp_path / "e.parquet")
    assert sequences(prepare(tmp_path / "e.parquet", tmp_path / "dataset")) == {"u": ["a", "b"]}


def test_equal_times_keep_the_order_of_the_source(tmp_path):
    """Ties are broken by the place in the source, whatever the items are called."""
    items = ["m", "c", "z", "a", "k"]
    path = write_csv(tmp_path / "e.csv", [("u", item, 5) for item in items])
    assert sequences(prepare(path, tmp_path / "dataset")) == {"u": items}


def test_not_a_number_is_a_missing_time(tmp_path):
    """NaN in a typed column counts as missing, not as unreadable."""
    frame = pl.DataFrame({"user": [1, 1], "item": [2, 3], "timestamp": [5.0, float("nan")]})
    frame.write_parquet(tmp_path / "e.parquet")
    with pytest.raises(DataError, match="1 without time"):
        prepare(tmp_path / "e.parquet", tmp_path / "dataset")
