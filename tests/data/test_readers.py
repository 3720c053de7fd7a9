"""Each layout is read from a generated file in the exact form its publisher uses."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
import polars as pl
import pytest
import zstandard

from budgetrec import Cleaning, Columns, prepare
from budgetrec.data.ids import holds_padded_numbers
from tests.conftest import frame_of, sequences, write_csv

# User 7 sees 30, 10, 20 in time; user 3 sees 20, 30. The source is not in that order.
ROWS = [(7, 10, 200), (3, 20, 150), (7, 30, 100), (7, 20, 300), (3, 30, 250)]
EXPECTED = {3: [20, 30], 7: [30, 10, 20]}


def _prepared(source, tmp_path, **options):
    return prepare(source, tmp_path / "dataset", **options)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_plain_format_is_read_plain_and_compressed(tmp_path, kind, suffix):
    """CSV, TSV, JSON lines and Parquet yield the same sequences, compressed or not."""
    frame = frame_of(ROWS)
    writers = {
        "csv": lambda out: frame.write_csv(out),
        "tsv": lambda out: frame.write_csv(out, separator="\t"),
        "jsonl": lambda out: frame.write_ndjson(out),
        "parquet": lambda out: frame.write_parquet(out),
    }
    buffer = io.BytesIO()
    writers[kind](buffer)
    pack = {"": lambda b: b, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"events.{kind}{suffix}"
    path.write_bytes(pack(buffer.getvalue()))
    dataset = _prepared(path, tmp_path)
    assert sequences(dataset) == EXPECTED
    assert dataset.info["source"]["layout"] == kind


def test_movielens_100k_u_data_is_recognised(tmp_path):
    """u.data: tabs, no header, user item rating time."""
    path = tmp_path / "u.data"
    path.write_text("".join(f"{u}\t{i}\t3\t{t}\n" for u, i, t in ROWS))
    dataset = _prepared(path, tmp_path)
    assert sequences(dataset) == EXPECTED
    assert dataset.info["source"]["layout"] == "ml-100k"


def test_movielens_1m_ratings_dat_is_recognised(tmp_path):
    """ratings.dat: two colons between user, item, rating and time."""
    path = tmp_path / "ratings.dat"
    path.write_text("".join(f"{u}::{i}::5::{t}\n" for u, i, t in ROWS))
    dataset = _prepared(path, tmp_path)
    assert sequences(dataset) == EXPECTED
    assert dataset.info["source"]["layout"] == "ml-1m"


def test_movielens_20m_ratings_csv_is_recognised(tmp_path):
    """ratings.csv: a header of userId,movieId,rating,timestamp."""
    path = write_csv(
        tmp_path / "ratings.csv",
        [(u, i, "3.5", t) for u, i, t in ROWS],
        header="userId,movieId,rating,timestamp",
    )
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ("ml-100k/u.data", "{0}\t{1}\t3\t{2}\n"),
        ("ml-1m/ratings.dat", "{0}::{1}::3::{2}\n"),
        ("ml-20m/ratings.csv", "{0},{1},3.5,{2}\n"),
    ],
)
def test_official_zip_archives_are_read_without_unpacking(tmp_path, member, line):
    """Of an archive with more in it, only the interactions are taken."""
    path = tmp_path / "archive.zip"
    folder = member.split("/")[0]
    header = "userId,movieId,rating,timestamp\n" if member.endswith(".csv") else ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{folder}/README", "terms of use")
        archive.writestr(f"{folder}/movies.csv", "movieId,title\n1,x\n")
        archive.writestr(f"{folder}/u1.base", "1\t1\t1\t1\n")
        archive.writestr(member, header + "".join(line.format(*row) for row in ROWS))
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


def test_gowalla_is_read_as_snap_publishes_it(tmp_path):
    """Tabs, no header: user, time in UTC, latitude, longitude, place."""
    path = tmp_path / "loc-gowalla_totalCheckins.txt.gz"
    lines = [
        f"{u}\t2010-10-19T23:{t // 60:02d}:{t % 60:02d}Z\t30.2359091167\t-97.7951395833\t{i}\n"
        for u, i, t in ROWS
    ]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    dataset = _prepared(path, tmp_path)
    assert sequences(dataset) == EXPECTED
    assert dataset.info["source"]["layout"] == "gowalla"
    assert dataset.info["statistics"]["time"]["first"] == "2010-10-19T23:01:40Z"


NETFLIX = {
    10: [(7, 3, "2005-09-06")],
    20: [(3, 1, "2005-09-05"), (7, 4, "2005-09-07")],
    30: [(7, 5, "2005-09-01"), (3, 5, "2005-12-01")],
}


def _netflix_block(movie):
    return f"{movie}:\n" + "".join(f"{u},{r},{d}\n" for u, r, d in NETFLIX[movie])


def test_netflix_combined_files_are_read(tmp_path):
    """combined_data_*.txt: a line `movie:` opens a block of `user,rating,date`."""
    folder = tmp_path / "netflix"
    folder.mkdir()
    (folder / "combined_data_1.txt").write_text(_netflix_block(10) + _netflix_block(20))
    (folder / "combined_data_2.txt").write_text(_netflix_block(30))
    (folder / "probe.txt").write_text("1:\n30878\n")
    dataset = _prepared(folder, tmp_path)
    assert sequences(dataset) == EXPECTED
    assert dataset.info["source"]["layout"] == "netflix"


def test_netflix_folder_and_tar_of_movie_files_are_read(tmp_path):
    """mv_*.txt: a file a movie, in a folder, a tar, or a tar inside the prize's own archive."""
    folder = tmp_path / "training_set"
    folder.mkdir()
    for movie in NETFLIX:
        (folder / f"mv_{movie:07d}.txt").write_text(_netflix_block(movie))
    tar = tmp_path / "training_set.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(folder, "training_set")
    nested = tmp_path / "nf_prize_dataset.tar.gz"
    with tarfile.open(nested, "w:gz") as archive:
        archive.add(tar, "download/training_set.tar")
    for number, source in enumerate((folder, tar, nested)):
        dataset = prepare(source, tmp_path / f"dataset-{number}")
        assert sequences(dataset) == EXPECTED


def test_netflix_blocks_survive_many_rows(tmp_path):
    """Rows keep their movie when the file is larger than what is read at once."""
    random = np.random.default_rng(0)
    path = tmp_path / "combined_data_1.txt"
    movies = np.arange(1, 2001)
    with path.open("w") as file:
        for movie in movies:
            file.write(f"{movie}:\n")
            file.writelines(
                f"{movie * 10 + j},{random.integers(1, 6)},2005-01-{j + 1:02d}\n" for j in range(9)
            )
    dataset = _prepared(path, tmp_path)
    expected = {movie * 10 + j: [movie] for movie in movies.tolist() for j in range(9)}
    assert sequences(dataset) == expected


def test_sasrec_text_keeps_the_order_of_its_lines(tmp_path):
    """`user item` a line, in order, without times."""
    path = tmp_path / "ml-1m.txt"
    path.write_text("7 30\n3 20\n7 10\n3 30\n7 20\n")
    dataset = _prepared(path, tmp_path, file_order=True)
    assert sequences(dataset) == EXPECTED
    assert "time" not in dataset.info["statistics"]


def test_an_unpacked_dataset_is_read_by_its_interactions_alone(tmp_path):
    """A folder with ratings.csv.gz beside other tables."""
    folder = tmp_path / "ml-20m"
    folder.mkdir()
    rows = [(u, i, 3, t) for u, i, t in ROWS]
    plain = write_csv(folder / "ratings.csv", rows, "userId,movieId,rating,timestamp")
    (folder / "ratings.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    (folder / "movies.csv").write_text("movieId,title\n1,x\n")
    assert sequences(_prepared(folder, tmp_path)) == EXPECTED


def test_several_files_and_a_folder_are_one_source(tmp_path):
    """Files are read one after the other, a folder by name; ties keep that order."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write_csv(folder / "b.csv", [(1, "second", 5)])
    write_csv(folder / "a.csv", [(1, "first", 5)])
    assert sequences(_prepared(folder, tmp_path)) == {1: ["first", "second"]}
    files = [folder / "b.csv", folder / "a.csv"]
    assert sequences(_prepared(files, tmp_path, overwrite=True)) == {1: ["second", "first"]}


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("UserID,ItemID,Timestamp", ("UserID", "ItemID", "Timestamp")),
        (
            "user_id:token,item_id:token,timestamp:float",
            ("user_id:token", "item_id:token", "timestamp:float"),
        ),
        ("visitorid,itemid,event_time", ("visitorid", "itemid", "event_time")),
        ("customer-id,article id,t_dat", ("customer-id", "article id", "t_dat")),
    ],
)
def test_usual_column_names_are_guessed(tmp_path, header, roles):
    """Case, blanks, dashes and type endings do not matter."""
    dataset = _prepared(write_csv(tmp_path / "e.csv", ROWS, header=header), tmp_path)
    assert sequences(dataset) == EXPECTED
    assert tuple(dataset.info["source"]["columns"].values()) == roles


def test_columns_can_be_named(tmp_path):
    """Any names work when they are given."""
    path = write_csv(tmp_path / "e.csv", ROWS, header="who,what,when")
    columns = Columns(user="who", item="what", time="when")
    assert sequences(_prepared(path, tmp_path, columns=columns)) == EXPECTED


def test_a_file_without_header_has_numbered_columns(tmp_path):
    """Without a header the columns are column_1, column_2 and so on."""
    path = tmp_path / "e.csv"
    path.write_text("".join(f"{u},{i},{t}\n" for u, i, t in ROWS))
    columns = Columns(user="column_1", item="column_2", time="column_3")
    assert sequences(_prepared(path, tmp_path, columns=columns, header=False)) == EXPECTED


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_ids_of_any_kind_come_back_as_they_were(tmp_path, kind):
    """Text, leading zeros, and whole numbers beyond 64 bits stay what they are."""
    huge = "123456789012345678901234567890"
    rows = [("007", huge, 1), ("7", 'ärger, "quoted"', 2), ("007", "-5", 3)]
    frame = frame_of(rows)
    path = tmp_path / f"e.{kind}"
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[kind](path)
    assert sequences(_prepared(path, tmp_path)) == {"007": [huge, "-5"], "7": ['ärger, "quoted"']}


@pytest.mark.parametrize("odd", ["007", "+7", " 7", "-0", "1e3", "7x", str(10**19)])
@pytest.mark.parametrize("quote", ["", '"'])
def test_one_odd_id_after_thousands_of_numbers_is_kept_as_it_is(tmp_path, odd, quote):
    """Ids that look like numbers at first, and would parse as one later, are not changed by it."""
    rows = [(u, u % 10, u) for u in range(3000)]
    path = write_csv(tmp_path / "e.csv", [*rows, (f"{quote}{odd}{quote}", 3, 5000)])
    found = sequences(_prepared(path, tmp_path))
    assert found[odd] == [3]
    assert len(found) == 3001


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_whole_numbers_far_apart_are_numbered_too(tmp_path, kind):
    """Hashes of 18 digits do not make a table of as many rows."""
    rows = [(10**17 + 7, -(10**17), 1), (3, 10**17, 2), (3, 5, 3)]
    path = tmp_path / f"e.{kind}"
    getattr(frame_of(rows), f"write_{kind}")(path)
    assert sequences(_prepared(path, tmp_path)) == {3: [10**17, 5], 10**17 + 7: [-(10**17)]}


def test_unsigned_and_float_ids_of_parquet_are_read(tmp_path):
    """uint64 beyond int64, and whole numbers that a missing value once turned into floats."""
    frame = pl.DataFrame(
        {"user": pl.Series([2**64 - 1, 5], dtype=pl.UInt64), "item": [3.0, 4.0], "timestamp": [1, 2]}
    )
    frame.write_parquet(tmp_path / "e.parquet")
    assert sequences(_prepared(tmp_path / "e.parquet", tmp_path)) == {str(2**64 - 1): [3], "5": [4]}
    frame.with_columns(item=pl.Series([3.0, 4.5])).write_parquet(tmp_path / "f.parquet")
    dataset = _prepared(tmp_path / "f.parquet", tmp_path, overwrite=True)
    assert sequences(dataset) == {str(2**64 - 1): ["3"], "5": ["4.5"]}


def test_json_ids_may_be_numbers_here_and_text_there(tmp_path):
    """A service that writes 1 on one line and "b" on the next is still read."""
    path = tmp_path / "e.jsonl"
    records = [{"user": 1, "item": "a", "ts": 5}, {"user": "b", "item": 2, "ts": 6}]
    path.write_text("\n".join(json.dumps(record) for record in records))
    assert sequences(_prepared(path, tmp_path)) == {"1": ["a"], "b": ["2"]}


def test_separators_other_than_commas_are_seen(tmp_path):
    """Semicolons and bars are found in the header."""
    for separator in ";|":
        path = tmp_path / "e.csv"
        frame_of(ROWS).write_csv(path, separator=separator)
        assert sequences(_prepared(path, tmp_path, overwrite=True)) == EXPECTED


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    """Spreadsheets put one in front."""
    path = tmp_path / "e.csv"
    path.write_bytes(b"\xef\xbb\xbf" + write_csv(path, ROWS).read_bytes())
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


def test_windows_line_ends_are_read(tmp_path):
    """CRLF ends do not stick to the last column."""
    path = tmp_path / "e.csv"
    path.write_bytes(write_csv(path, ROWS).read_bytes().replace(b"\n", b"\r\n"))
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


def test_a_path_with_wildcards_in_it_is_one_file(tmp_path):
    """Brackets and stars in a name are letters like any other."""
    path = write_csv(tmp_path / "events[1]*.csv", ROWS)
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


def test_a_json_path_with_wildcards_in_it_is_one_file(tmp_path):
    """The same for JSON lines, where a pattern would read the neighbour."""
    frame_of(ROWS).write_ndjson(tmp_path / "log[2].jsonl")
    frame_of([(1, 1, 1)]).write_ndjson(tmp_path / "log2.jsonl")
    assert sequences(_prepared(tmp_path / "log[2].jsonl", tmp_path)) == EXPECTED


def test_json_ids_and_times_may_change_their_kind_late(tmp_path):
    """Text after a thousand numbers, and a date with a fraction after a thousand whole seconds."""
    records = [{"user": 1, "item": i, "ts": i} for i in range(1500)]
    records += [{"user": "b", "item": 10**25, "ts": 1500.5}]
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    assert sequences(_prepared(path, tmp_path))["b"] == [str(10**25)]


@pytest.mark.parametrize("odd", ["+7", " 7", "\t7", "007", '"007"'])
def test_an_odd_id_is_seen_wherever_it_lies(tmp_path, odd, monkeypatch):
    """The look at the bytes misses nothing at the border between two chunks."""
    monkeypatch.setattr("budgetrec.data.ids._CHUNK_BYTES", 16)
    for shift in range(20):
        path = tmp_path / "e.csv"
        path.write_text("a,b\n" + "x" * shift + f"\n{odd},1\n9,9\n")
        assert holds_padded_numbers([path], ",")
        path.write_text("a,b\n" + "x" * shift + "\n0,1\n-9,0.5\n")
        assert not holds_padded_numbers([path], ",")


def test_a_quoted_nothing_is_missing_and_blanks_around_times_are_not_part_of_them(tmp_path):
    """`""` is not a user; ` 3` is the time 3."""
    path = tmp_path / "e.csv"
    path.write_text('user,item,time\n"","x",1\n"u","b", 3 \n"u","a",2\n')
    assert sequences(_prepared(path, tmp_path, drop_nulls=True)) == {"u": ["a", "b"]}


def test_a_header_that_begins_like_a_zip_is_still_a_header(tmp_path):
    """PK is a usual name for a key."""
    path = write_csv(tmp_path / "e.csv", [(9, *row) for row in ROWS], header="PK,user,item,timestamp")
    assert sequences(_prepared(path, tmp_path)) == EXPECTED


def test_four_columns_without_header_need_not_be_movielens(tmp_path):
    """`header=False` names the columns by number, whatever they look like."""
    path = tmp_path / "e.tsv"
    path.write_text("".join(f"{t}\t{u}\t{i}\t5\n" for u, i, t in ROWS))
    columns = Columns(user="column_2", item="column_3", time="column_1")
    assert sequences(_prepared(path, tmp_path, columns=columns, header=False)) == EXPECTED


def test_users_are_numbered_by_label_numbers_first(tmp_path):
    """9 comes before 10, even if there was a label that is not a number at first."""
    rows = [("x", "a", 1, 0), ("10", "a", 2, 5), ("9", "b", 3, 5)]
    path = write_csv(tmp_path / "e.csv", rows, "user,item,time,rating")
    dataset = _prepared(path, tmp_path, cleaning=Cleaning(rating_above=1))
    assert dataset.user_labels.to_list() == [9, 10]


def test_ratings_are_read_only_when_they_are_asked_for(tmp_path):
    """`rating_above=3` keeps rows rated above 3 and needs the column; without it the column may be absent."""
    path = write_csv(tmp_path / "e.csv", [(1, "a", 1, 3.0), (1, "b", 2, 3.5)], "user,item,time,stars")
    dataset = _prepared(path, tmp_path, cleaning=Cleaning(rating_above=3))
    assert sequences(dataset) == {1: ["b"]}


def test_the_checksum_is_that_of_the_file(tmp_path):
    """dataset.json carries what sha256sum would print."""
    path = tmp_path / "e.csv"
    path.write_text("user,item,timestamp\n1,1,1\n")
    source = _prepared(path, tmp_path).info["source"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source["bytes"] == 26
