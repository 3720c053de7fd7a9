"""Archives whose bytes have changed are told in one sentence, whatever their reader raises."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile

import pytest
import zstandard

from budgetrec.data.prepare import prepare
from budgetrec.errors import BudgetrecError

ROWS = "".join(f"{u},{u * 7919 % 97},{u}\n" for u in range(400))
TEXT = f"user,item,timestamp\n{ROWS}".encode()


def _zip(method: int) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("readme.md", "x" * 50)
        archive.writestr("ratings.csv", TEXT)
    return whole.getvalue()


def _tar(mode: str) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=mode) as archive:
        member = tarfile.TarInfo("ratings.csv")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return whole.getvalue()


ARCHIVES = {
    "stored.zip": _zip(zipfile.ZIP_STORED),
    "deflated.zip": _zip(zipfile.ZIP_DEFLATED),
    "bzip2.zip": _zip(zipfile.ZIP_BZIP2),
    "lzma.zip": _zip(zipfile.ZIP_LZMA),
    "plain.tar": _tar("w"),
    "bzip2.tar": bz2.compress(_tar("w")),
    "lzma.tar": lzma.compress(_tar("w")),
    "ratings.csv.gz": gzip.compress(TEXT, mtime=0),
    "ratings.csv.zst": zstandard.ZstdCompressor().compress(TEXT),
    "tar.tar.gz": gzip.compress(_tar("w"), mtime=0),
}


def _mutated(whole: bytes, chance: random.Random) -> bytes:
    """Change a few bytes, and sometimes cut, double or drop a piece; the headers are hit most."""
    data = bytearray(whole)
    for _ in range(chance.randint(1, 6)):
        near_an_end = chance.random() < 0.7
        width = min(len(data), 600 if near_an_end else len(data))
        place = chance.randrange(width)
        place = len(data) - 1 - place if chance.random() < 0.5 else place
        data[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.2:
        begin = chance.randrange(len(data))
        end = min(len(data), begin + chance.randint(1, 200))
        data[begin:end] = data[begin:end] * 2 if chance.random() < 0.5 else b""
    return bytes(data)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_mutated_archive_is_read_or_told_in_one_sentence(tmp_path, name):
    """Of 60 mutations of each kind, none ends in anything but a dataset or a sentence of ours.

    Before, 30 of 200 zip archives ended in an OSError. Nothing half-made is left behind.
    """
    chance = random.Random(name)  # noqa: S311 - repeatable, not secret
    path, output = tmp_path / name, tmp_path / "out" / "dataset"
    told = 0
    for _ in range(60):
        path.write_bytes(_mutated(ARCHIVES[name], chance))
        try:
            prepare(path, output, overwrite=True)
        except BudgetrecError as error:
            told += 1
            assert "\n" not in str(error)
            assert str(error).endswith(".")
        assert {left.name for left in output.parent.iterdir()} <= {"dataset"} if output.parent.exists() else 1
    assert told >= 10


def test_an_archive_that_unpacks_to_itself_ends(tmp_path):
    """Nine layers of gzip are one too many."""
    whole = TEXT
    for _ in range(9):
        whole = gzip.compress(whole)
    (tmp_path / "e.csv.gz").write_bytes(whole)
    with pytest.raises(BudgetrecError, match="packed more than 8 times over"):
        prepare(tmp_path / "e.csv.gz", tmp_path / "dataset")
