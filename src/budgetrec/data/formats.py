"""Recognise the format of a file, by its content first and its name second."""

import codecs
import re
from pathlib import Path

from budgetrec.errors import DataError

_PUBLISHED = ("ml-100k", "ml-1m", "ml-20m", "gowalla", "netflix", "sasrec")
FORMATS = ("auto", "csv", "tsv", "jsonl", "parquet", *_PUBLISHED)

_HEAD_BYTES = 1 << 16
_LAYOUTS = [
    # The publishers' layouts have no header, so their first line identifies them.
    ("netflix", re.compile(r"\d+:")),
    ("ml-1m", re.compile(r"[^:]+::[^:]+::[\d.]+::\d+")),
    ("gowalla", re.compile(r"\S+\t\d{4}-\d\d-\d\dT[\d:]+Z\t[-\d.eE]*\t[-\d.eE]*\t\S+")),
    ("ml-100k", re.compile(r"\d+\t\d+\t[\d.]+\t\d+")),
    ("sasrec", re.compile(r"\d+ \d+")),
]


def recognise(path: Path, *, header: bool) -> str:
    """Return the format of a plain file. Without `header` it is a plain CSV, not a publisher's layout."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        raise DataError(f"{path.name} is empty. Pass a file with one interaction per line.")
    if head.startswith(b"PAR1") or path.suffix.lower() in (".parquet", ".pq"):
        return "parquet"
    first_line = _first_line(path, head)
    for name, layout in _LAYOUTS:
        if header and layout.fullmatch(first_line):
            return name
    if first_line.startswith("{"):
        return "jsonl"
    return "tsv" if separator_of(first_line) == "\t" else "csv"


def check_text(path: Path) -> str:
    """Return the first line of a text file, or refuse a file that is not text."""
    with path.open("rb") as file:
        return _first_line(path, file.read(_HEAD_BYTES))


def separator_of(line: str) -> str:
    """Guess the separator of a header line: the most frequent of comma, tab, semicolon and bar."""
    return max(",\t;|", key=line.count)


def _first_line(path: Path, head: bytes) -> str:
    try:
        # The head may end inside a character, which an incremental decoder tolerates.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} is not UTF-8 text: byte {head[error.start]:#04x} at offset {error.start}. "
            "Pass a text file, or convert it to UTF-8."
        ) from error
    if "\0" in text:
        raise DataError(
            f"{path.name} is a binary file, not text: a zero byte at offset {head.index(0)}. "
            "Pass CSV, TSV, JSON lines or Parquet."
        )
    lines = text.removeprefix("\ufeff").lstrip("\r\n").splitlines()
    return lines[0].rstrip("\r") if lines else ""
