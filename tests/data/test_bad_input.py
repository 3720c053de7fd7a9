"""Bad input gets one sentence that says what to do, exit code 2, and nothing is left behind."""

import gzip
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import polars as pl
import pytest
import zstandard

from tests.conftest import frame_of, write_csv

GOOD = [(1, "a", 1), (1, "b", 2), (2, "a", 3)]


@pytest.fixture
def prepare_refused(refused, tmp_path):
    """Prepare a source that must be refused; return the sentence."""
    return lambda source, *options: refused("prepare", source, "-o", tmp_path / "dataset", *options)


def test_no_such_file(prepare_refused, tmp_path):
    """The path is repeated."""
    assert "there is no file" in prepare_refused(tmp_path / "nothing.csv")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_file(prepare_refused, tmp_path, content):
    """An empty file, or one of blank lines."""
    path = tmp_path / "e.csv"
    path.write_text(content)
    assert "is empty" in prepare_refused(path)


def test_empty_folder(prepare_refused, tmp_path):
    """A folder without files."""
    (tmp_path / "raw").mkdir()
    assert "folder without files" in prepare_refused(tmp_path / "raw")


def test_header_only(prepare_refused, tmp_path):
    """A header and no rows."""
    assert "header but no rows" in prepare_refused(write_csv(tmp_path / "e.csv", []))


def test_missing_column_names_those_found(prepare_refused, tmp_path):
    """What was found is listed, and the option to pass is named."""
    path = write_csv(tmp_path / "e.csv", GOOD, header="who,what,timestamp")
    sentence = prepare_refused(path)
    assert "found: who, what, timestamp" in sentence
    assert "--user-column" in sentence
    assert "'nope'" in prepare_refused(path, "--user-column", "nope")


def test_missing_time_column_offers_the_order_of_the_file(prepare_refused, tmp_path):
    """Files without times are common; the option for them is named."""
    path = write_csv(tmp_path / "e.csv", GOOD, header="user,item,position")
    assert "--file-order" in prepare_refused(path)


@pytest.mark.parametrize(("column", "row"), [("user", ",a,1"), ("item", "1,,1"), ("time", "1,a,")])
def test_nulls_are_counted_and_can_be_dropped(prepare_refused, budgetrec, tmp_path, column, row):
    """Rows without user, item or time are counted; --drop-nulls leaves them out and reports it."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    path.write_text(path.read_text() + row + "\n")
    sentence = prepare_refused(path)
    assert f"1 without {column}, of 4" in sentence
    assert "--drop-nulls" in sentence
    answer = budgetrec("prepare", path, "-o", tmp_path / "dataset", "--drop-nulls")
    assert answer.code == 0
    assert "rows with nothing missing" in answer.out


def test_unreadable_time_names_value_row_and_column(prepare_refused, tmp_path):
    """The first of them is shown."""
    path = write_csv(tmp_path / "e.csv", [*GOOD, (3, "c", "yesterday"), (3, "d", "soon")])
    sentence = prepare_refused(path)
    assert "times that cannot be read, 2 of 5" in sentence
    assert "row 4: 'yesterday' in column 'timestamp'" in sentence


def test_a_column_that_holds_no_times(prepare_refused, tmp_path):
    """A Parquet column of lists is not a time."""
    frame_of(GOOD).with_columns(timestamp=pl.lit([[1], [2], [3]]).explode().implode()).write_parquet(
        tmp_path / "e.parquet"
    )
    assert "is not a time" in prepare_refused(tmp_path / "e.parquet")


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)]
)
def test_truncated_compressed_file(prepare_refused, tmp_path, suffix, pack):
    """Half a file is never mistaken for a complete one."""
    path = tmp_path / f"e.csv{suffix}"
    rows = "".join(f"{u},{u * 7919 % 10007},{u}\n" for u in range(20_000))
    whole = pack(("user,item,timestamp\n" + rows).encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert "truncated or damaged" in prepare_refused(path)


@pytest.mark.parametrize("content", [b"PAR1" + b"x" * 100, b"no parquet at all"])
def test_broken_parquet(prepare_refused, tmp_path, content):
    """A Parquet file with a broken end, or none at all."""
    path = tmp_path / "e.parquet"
    path.write_bytes(content)
    assert "cannot be read as parquet" in prepare_refused(path)


def test_a_parquet_file_that_makes_polars_panic(refused, tmp_path):
    """A panic of polars' Rust code is no Exception in Python, and a sentence all the same."""
    path = Path(__file__).parent / "panics.parquet"  # the fuzzer found it: a page of no values for 40 rows
    assert "panics.parquet cannot be read as parquet: " in refused("prepare", path, "-o", tmp_path / "d")


@pytest.mark.parametrize(
    "name", ["../ratings.csv", "/etc/ratings.csv", "a/../../ratings.csv", "..\\ratings.csv"]
)
def test_zip_member_that_points_outside(prepare_refused, tmp_path, name):
    """The archive is refused as a whole and nothing of it is written anywhere."""
    path = tmp_path / "e.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ratings.csv", "user,item,timestamp\n1,1,1\n")
        archive.writestr(name, "user,item,timestamp\n1,1,1\n")
    assert "points outside its folder" in prepare_refused(path)


def test_tar_member_that_points_outside(prepare_refused, tmp_path):
    """The same for tar."""
    inner = tmp_path / "mv_0000001.txt"
    inner.write_text("1:\n1,1,2005-01-01\n")
    path = tmp_path / "e.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(inner, "../mv_0000001.txt")
    assert "points outside its folder" in prepare_refused(path)


def test_truncated_zip_and_tar(prepare_refused, tmp_path):
    """An archive whose download was not finished is refused."""
    path = write_csv(tmp_path / "ratings.csv", [(i, i, i) for i in range(5000)])
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        archive.write(path, "ratings.csv")
    with tarfile.open(tmp_path / "e.tar", "w") as tar:
        tar.add(path, "ratings.csv")
    for name in ("e.zip", "e.tar"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        assert "is not a complete" in prepare_refused(tmp_path / name)


def test_archive_without_interactions(prepare_refused, tmp_path):
    """What it holds is listed."""
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        archive.writestr("a/photo.png", "x")
        archive.writestr("a/b.csv", "x")
        archive.writestr("a/c.csv", "x")
    assert "a/b.csv, a/c.csv, a/photo.png" in prepare_refused(tmp_path / "e.zip")


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, b"user,item,timestamp\n\x00\x01\x02\n"])
def test_binary_file_called_csv(prepare_refused, tmp_path, content):
    """Binary content is detected before parsing."""
    path = tmp_path / "e.csv"
    path.write_bytes(content)
    assert "Pass" in prepare_refused(path)


def test_lines_with_too_many_fields(prepare_refused, tmp_path):
    """A line that does not fit its header is not cut to fit."""
    path = write_csv(tmp_path / "e.csv", [*GOOD, (1, "a", 1, "extra")])
    assert "cannot be read as csv" in prepare_refused(path)


def test_files_of_different_kinds(refused, tmp_path):
    """CSV and Parquet in one call."""
    write_csv(tmp_path / "a.csv", GOOD)
    frame_of(GOOD).write_parquet(tmp_path / "b.parquet")
    sentence = refused("prepare", tmp_path / "a.csv", tmp_path / "b.parquet", "-o", tmp_path / "dataset")
    assert "different kinds" in sentence


def test_output_exists(refused, budgetrec, tmp_path):
    """An existing folder is replaced only with --overwrite, and only if it is a dataset."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    assert budgetrec("prepare", path, "-o", tmp_path / "dataset").code == 0
    assert "--overwrite" in refused("prepare", path, "-o", tmp_path / "dataset")
    assert budgetrec("prepare", path, "-o", tmp_path / "dataset", "--overwrite").code == 0
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "letter.txt").write_text("dear")
    sentence = refused("prepare", path, "-o", tmp_path / "precious", "--overwrite")
    assert "holds other files" in sentence


def test_the_input_is_never_overwritten(refused, budgetrec, tmp_path):
    """A source inside the folder to be replaced is refused, and so is a folder with other files."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    assert budgetrec("prepare", path, "-o", tmp_path / "dataset").code == 0
    inside = write_csv(tmp_path / "dataset" / "raw.csv", GOOD)
    sentence = refused("prepare", inside, "-o", tmp_path / "dataset", "--overwrite")
    assert "holds other files, such as raw.csv" in sentence
    inside.rename(tmp_path / "dataset" / "raw.parquet")
    sentence = refused(
        "prepare", tmp_path / "dataset" / "raw.parquet", "-o", tmp_path / "dataset", "--overwrite"
    )
    assert "is inside the output folder" in sentence


def test_nothing_left_after_dropping_nulls(prepare_refused, tmp_path):
    """Every row lacks its user."""
    path = write_csv(tmp_path / "e.csv", [("", "x", 1), ("", "y", 2)])
    assert "none of the 2 rows" in prepare_refused(path, "--drop-nulls")


def test_parents_made_for_nothing_are_removed(refused, tmp_path):
    """`-o a/b/c` leaves no a/b behind when it fails."""
    path = write_csv(tmp_path / "e.csv", [(*row, 1) for row in GOOD], "user,item,timestamp,rating")
    refused("prepare", path, "-o", tmp_path / "a" / "b" / "c", "--rating-above", 9)


def test_a_folder_instead_of_a_file_name(refused, tmp_path):
    """A path that cannot be opened has a message of its own."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    assert "cannot" in refused("prepare", path, "-o", path / "dataset")
    assert "cannot be read" in refused("prepare", tmp_path / ("x" * 300), "-o", tmp_path / "dataset")


@pytest.mark.parametrize("command", [[], ["data"], ["reproduce"]])
def test_a_group_without_a_command_shows_its_help(budgetrec, command):
    """Help is not dressed up as an error."""
    answer = budgetrec(*command)
    assert answer.code == 2
    assert answer.err.startswith("Usage: budgetrec")


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (["--min-user", "100"], "users with 100 and items with 1 or more"),
        (["--min-item", "9", "--one-pass"], "items with 9 or more"),
        (["--rating-above", "5"], "rating above 5"),
    ],
)
def test_everything_filtered_away_names_the_step(prepare_refused, tmp_path, options, step):
    """The step that dropped the last rows is named."""
    path = write_csv(tmp_path / "e.csv", [(*row, 4) for row in GOOD], header="user,item,timestamp,rating")
    sentence = prepare_refused(path, *options)
    assert "nothing is left" in sentence
    assert step in sentence


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "excel"],
        ["--split", "random"],
        ["--split", "temporal", "--test-share", "1.5"],
        ["--test-share", "0.1"],
        ["--min-user", "0"],
        ["--min-user", "many"],
        ["--repeats", "last"],
        ["--rating-above", "inf"],
        ["--split", "temporal", "--seed", "-1"],
        ["--file-order", "--time-column", "timestamp"],
        ["--rating-column", "timestamp"],
    ],
)
def test_options_out_of_range(prepare_refused, tmp_path, options):
    """A wrong word or number is refused, and so is one that would do nothing."""
    prepare_refused(write_csv(tmp_path / "e.csv", GOOD), *options)


def _run_limited(arguments: list[str], limit_bytes: int) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "budgetrec", *arguments],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["plain", "compressed"])
def test_a_disk_that_fills(tmp_path, kind):
    """No room, while writing arrays or while unpacking: one sentence, and nothing half-written."""
    path = write_csv(tmp_path / "e.csv", [(u, i, i) for u in range(300) for i in range(300)])
    if kind == "compressed":
        packed = tmp_path / "e.csv.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = packed
    before = sorted(tmp_path.rglob("*"))
    done = _run_limited(["prepare", str(path), "-o", str(tmp_path / "dataset")], limit_bytes=100_000)
    assert done.returncode == 2, done.stderr
    assert "no room left" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_fills_with_demo_data(tmp_path):
    """The same while demo data are written."""
    arguments = ["data", "demo", "-o", str(tmp_path / "demo"), "--users", "2000"]
    done = _run_limited(arguments, limit_bytes=100_000)
    assert done.returncode == 2, done.stderr
    assert "no room left" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_in_the_middle(tmp_path, how):
    """Ctrl-C or SIGTERM while it reads: exit 2 and nothing left."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    slow = (
        "import sys, time; from budgetrec.cli import main; from budgetrec.data import prepare;"
        "prepare.read_events = lambda *given, **named: time.sleep(60); main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, "prepare", str(path), "-o", str(tmp_path / "dataset")],
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(lambda: any(p.name.startswith(".dataset.partial") for p in tmp_path.iterdir()))
    time.sleep(0.2)
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2, err
    assert "interrupted" in err
    assert [p.name for p in tmp_path.iterdir()] == ["e.csv"]


def test_what_is_no_plain_file_is_refused_at_once(refused, tmp_path):
    """A pipe would be waited for, a device read for ever, and the memory of a process cannot be read."""
    os.mkfifo(tmp_path / "pipe.csv")
    for path, told in (
        (tmp_path / "pipe.csv", "is a named pipe, not a file"),
        (Path("/dev/zero"), "is a device, not a file"),
        (Path("/proc/self/mem"), "cannot be read: Input/output error"),
    ):
        assert told in refused("prepare", path, "-o", tmp_path / "dataset")
    write_csv(tmp_path / "e.csv", GOOD)
    run = ("train", tmp_path, "-o", tmp_path / "run", "--config", tmp_path / "pipe.csv")
    assert "is a named pipe, not a file" in refused(*run)


def test_a_file_that_is_given_twice_is_refused(refused, tmp_path):
    """By the same name, through a link, or inside a folder that is given too."""
    (tmp_path / "raw").mkdir()
    path = write_csv(tmp_path / "raw" / "e.csv", GOOD)
    (tmp_path / "link.csv").symlink_to(path)
    for other in (path, tmp_path / "link.csv", tmp_path / "raw"):
        assert "is given twice" in refused("prepare", path, other, "-o", tmp_path / "dataset")


def test_one_column_is_not_two_things(prepare_refused, tmp_path):
    """Users read from the column of items would be a dataset of nothing."""
    path = write_csv(tmp_path / "e.csv", GOOD)
    told = prepare_refused(path, "--user-column", "item")
    assert "one column 'item' for both the user and the item" in told
    assert "found" not in told
    assert "both the item and the time" in prepare_refused(path, "--time-column", "item")


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (("--items", 99_999_999_999), "of probabilities, more than 4.0 GiB"),
        (("--users", 10**20), "of probabilities, more than 4.0 GiB"),
        (("--users", 10**7, "--items", 1000, "--rows", 10**9), "rows are too many"),
    ],
)
def test_demo_data_larger_than_memory_is_refused(refused, tmp_path, sizes, told):
    """At once, and before anything is allocated."""
    assert told in refused("data", "demo", "-o", tmp_path / "demo", *sizes)


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the command never began"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        pl.exceptions.PanicException("could not spawn threads: Resource temporarily unavailable"),
    ],
)
def test_too_little_memory_is_one_sentence_and_exit_2(budgetrec, monkeypatch, tmp_path, error):
    """Whoever gets no memory, Python, torch or polars, whose panics are no Exception: it is told as such."""

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("budgetrec.data.prepare.prepare", fail)
    answer = budgetrec("prepare", Path("x"), "-o", tmp_path / "d")
    assert answer.code == 2
    assert answer.err.startswith("budgetrec: there is not enough memory for this (")
    assert answer.err.count("\n") == 1


def test_a_fault_of_ours_is_one_sentence_and_exit_1(budgetrec, monkeypatch, tmp_path):
    """Even a bug shows no traceback unless asked to."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("budgetrec.data.prepare.prepare", fail)
    answer = budgetrec("prepare", Path("x"), "-o", tmp_path / "d")
    assert answer.code == 1
    assert "ZeroDivisionError: oops" in answer.err
    assert answer.err.count("\n") == 1
