"""Mutants from hypothesis: any bytes, and changed documents, tables, archives and checkpoints."""

import copy
import io
import json
import struct
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from hypothesis import strategies as st
from polars.exceptions import PolarsError

Mutants = st.SearchStrategy[bytes]

_WORDS = (
    "",
    " ",
    "nan",
    "inf",
    "-1",
    "0",
    "1e400",
    "9" * 30,
    "\x00",
    "\n",
    '"',
    "'",
    ",",
    "é",
    "\ud83d",
    "a" * 5000,
)
_NUMBERS = (0, -1, 1, 2, 3, 2**31 - 1, 2**31, 2**62, -(2**63), 10**12, 0.5, -0.5, 1e308, 5e-324)
_ODD = (float("nan"), float("inf"), -float("inf"))
_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        (*_NUMBERS, *_ODD, True, False, "", "x", "a" * 300, "1", "auto", [], {}, [[]], ["x"], {"a": 1})
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=8),
)


def mutants(shape: str, content: bytes) -> Mutants:
    """Return mutants of a file's content: half of them keep its structure, the others are any bytes."""
    with_structure = _SHAPES.get(shape)
    return _bytes(content) if with_structure is None else st.one_of(with_structure(content), _bytes(content))


@st.composite
def _bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut, repeat, insert and overwrite bytes."""
    held = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(held)))
        stop = start + draw(st.sampled_from((0, 1, 2, 4, 8, 64, len(held))))
        match draw(st.sampled_from(("cut", "repeat", "insert", "overwrite", "flip"))):
            case "cut":
                del held[start:stop]
            case "repeat":
                held[start:start] = held[start:stop]
            case "insert":
                held[start:start] = draw(_pieces)
            case "overwrite":
                piece = draw(_pieces)
                held[start : start + len(piece)] = piece
            case "flip" if start < len(held):
                held[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(held)


_pieces = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"\x00" * 8, b"\xff" * 8, b"\xff\xfe", b"\n", b"\r\n", b"nan", b"PAR1", b"\x1f\x8b", b"PK\x03\x04"]
    ),
)


@st.composite
def _table(draw: st.DrawFn, content: bytes) -> bytes:
    """Change cells, lines and separators of a text table."""
    lines = content.decode().splitlines()
    for _ in range(draw(st.integers(1, 4))):
        if not lines:
            break
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("cell", "cell", "cell", "drop", "twice", "column", "separator"))):
            case "cell":
                lines[place] = _with_cell(lines[place], draw(st.integers(0, 5)), draw(_cells))
            case "drop":
                del lines[place]
            case "twice":
                lines[place:place] = [lines[place]] * draw(st.sampled_from((1, 3, 50)))
            case "column":
                word, number = draw(_cells), draw(st.integers(0, 5))
                lines = [lines[0], *(_with_cell(line, number, word) for line in lines[1:])]
            case "separator":
                old, new = (draw(st.sampled_from((",", "\t", ":", " ", ";", "|"))) for _ in range(2))
                lines = [line.replace(old, new) for line in lines]
    return draw(st.sampled_from(("\n", "\r\n", "\r"))).join(lines).encode("utf-8", "surrogatepass")


_cells = st.one_of(st.sampled_from(_WORDS), st.text(max_size=6), st.integers().map(str), st.floats().map(str))


def _with_cell(line: str, number: int, word: str) -> str:
    separator = max(",\t: ", key=line.count)
    cells = line.split(separator)
    cells[number % len(cells)] = word
    return separator.join(cells)


@st.composite
def _changed(draw: st.DrawFn, document: Any) -> Any:
    """Change, drop and add values anywhere in a document."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        holders = [holder for holder in _holders(document) if len(holder)]
        if not holders:
            break
        holder = draw(st.sampled_from(holders))
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder)))))
        match draw(st.sampled_from(("change", "change", "change", "drop", "add"))):
            case "change":
                holder[key] = draw(_VALUES)
            case "drop":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(("new", "", "seed", *map(str, holder))))] = draw(_VALUES)
    return document


def _holders(document: Any) -> list[Any]:
    if not isinstance(document, dict | list):
        return []
    inside = document.values() if isinstance(document, dict) else document
    return [document, *(holder for each in inside for holder in _holders(each))]


def _toml(content: bytes) -> Mutants:
    return _changed(tomllib.loads(content.decode())).map(_dump_toml)


def _dump_toml(document: Any) -> bytes:
    try:
        return tomli_w.dumps(document).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError):
        return b"= no toml"


def _json(content: bytes) -> Mutants:
    return _changed(json.loads(content)).map(lambda document: json.dumps(document).encode())


@st.composite
def _json_lines(draw: st.DrawFn, content: bytes) -> bytes:
    rows = [json.loads(line) for line in content.splitlines()]
    return "\n".join(json.dumps(row) for row in draw(_changed(rows))).encode()


@st.composite
def _parquet(draw: st.DrawFn, content: bytes) -> bytes:
    """Drop, rename, retype, empty and spoil columns."""
    frame = pl.read_parquet(io.BytesIO(content))
    for _ in range(draw(st.integers(1, 3))):
        if not frame.columns:
            break
        with suppress(*_CANNOT):
            frame = draw(_other_frame(frame))
    buffer = io.BytesIO()
    try:
        frame.write_parquet(
            buffer, compression=draw(st.sampled_from(("zstd", "uncompressed", "snappy", "gzip")))
        )
    except _CANNOT:
        return content
    return buffer.getvalue()


_CANNOT = (PolarsError, ValueError, TypeError, OverflowError)  # what makes no frame or array is no mutant


@st.composite
def _other_frame(draw: st.DrawFn, frame: pl.DataFrame) -> pl.DataFrame:
    name = draw(st.sampled_from(frame.columns))
    match draw(st.sampled_from(("drop", "rename", "retype", "spoil", "rows", "add"))):
        case "drop":
            return frame.drop(name)
        case "rename":
            return frame.rename({name: draw(st.text(max_size=4)) + "x" * frame.width})
        case "retype":
            return frame.with_columns(draw(st.sampled_from(_OTHER_COLUMNS))(name, frame.height))
        case "spoil":
            values = frame[name].to_list()
            if values:
                place = draw(st.integers(0, len(values) - 1))
                values[place] = draw(st.sampled_from((None, *_ODD, *_NUMBERS, "", "x")))
            return frame.with_columns(pl.Series(name, values, strict=False))
        case "rows":
            return draw(
                st.sampled_from((frame.clear(), frame.head(1), pl.concat([frame, frame]), frame[::-1]))
            )
    return frame.with_columns(pl.lit(draw(st.sampled_from((None, 1.5, "x")))).alias(f"{name}+"))


def _column(make: Callable[[int], Any], kind: Any = None) -> Callable[[str, int], pl.Series]:
    return lambda name, height: pl.Series(name, [make(place) for place in range(height)], kind)


_OTHER_COLUMNS = (
    _column(str),
    _column(float),
    _column(lambda place: None, pl.Null),
    _column(lambda place: None, pl.Int64),
    _column(lambda place: place % 2 == 0),
    _column(lambda place: [place]),
    _column(lambda place: {"a": place}),
    _column(lambda place: b"\xff" * place),
    _column(lambda place: date(1, 1, 1)),
    _column(lambda place: datetime(9999, 12, 31)),
    _column(lambda place: f"{place}", pl.Categorical),
    _column(lambda place: float("nan")),
    _column(lambda place: 2**64 - 1, pl.UInt64),
    _column(lambda place: 2**100, pl.Int128),
    _column(lambda place: place, pl.Duration),
    _column(lambda place: place, pl.Decimal(20, 2)),
    _column(lambda place: place, pl.Time),
)


@st.composite
def _npy(draw: st.DrawFn, content: bytes) -> bytes:
    """Change values, type and shape of an array."""
    array = np.load(io.BytesIO(content))
    for _ in range(draw(st.integers(1, 3))):
        with suppress(*_CANNOT):
            array = draw(_other_array(array))
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


@st.composite
def _other_array(draw: st.DrawFn, array: Any) -> Any:
    match draw(st.sampled_from(("value", "value", "type", "cut", "shape", "sort"))):
        case "value" if array.size and array.dtype.kind in "iu":
            limits, array = np.iinfo(array.dtype), array.ravel().copy()
            place = draw(st.integers(0, array.size - 1))
            array[place] = draw(st.integers(int(limits.min), int(limits.max)))
        case "type":
            array = array.astype(draw(st.sampled_from(("i1", "i4", "i8", "f4", "U3", "?", ">i8", "c8"))))
        case "cut":
            array = array[: draw(st.integers(0, len(array)))]
        case "shape":
            array = draw(st.sampled_from((array.reshape(-1, 1), array[None], array[:0], np.array(1))))
        case "sort":
            array = np.sort(array, axis=None)[::-1]
    return array


@st.composite
def _safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """Change the header, the state in it, and the numbers of a checkpoint."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    state = header.get("__metadata__", {}).get("budgetrec")
    match draw(st.sampled_from(("state", "state", "header", "numbers", "shape"))):
        case "state" if state is not None:
            header["__metadata__"]["budgetrec"] = json.dumps(draw(_changed(json.loads(state))))
        case "numbers":
            start = draw(st.integers(0, len(data)))
            data[start : start + 4] = draw(
                st.sampled_from((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff" * 4))
            )
        case "shape":
            named = [name for name in header if name != "__metadata__"]
            name = draw(st.sampled_from(named))
            entry, other = header[name], draw(st.sampled_from(named))
            if draw(st.booleans()):
                entry["shape"] = list(reversed(entry["shape"])) + draw(st.sampled_from(([], [1])))
            elif draw(st.booleans()):
                entry["dtype"] = draw(
                    st.sampled_from(("F32", "I32", "U8", "F16", "BF16", "I64", "BOOL", "F64"))
                )
            else:
                header[name], header[other] = header[other], entry
        case _:
            header = draw(_changed(header))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


@st.composite
def _zip(draw: st.DrawFn, content: bytes) -> bytes:
    """Pack other members, in other ways."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = (
        "../a.csv",
        "a/",
        "/a.csv",
        "ratings.csv",
        "é.csv",
        "a" * 300 + ".csv",
        "u.data",
        "a.csv.gz",
        "b.zip",
        "x.tar",
    )
    for _ in range(draw(st.integers(0, 2))):
        members[draw(st.sampled_from(names))] = draw(
            st.one_of(st.sampled_from(list(members.values())), st.binary())
        )
    how = draw(
        st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, held in members.items():
            archive.writestr(name, held)
    whole = buffer.getvalue()
    return draw(_bytes(whole)) if draw(st.booleans()) else whole


_SHAPES: dict[str, Callable[[bytes], Mutants]] = {
    "table": _table,
    "toml": _toml,
    "json": _json,
    "json lines": _json_lines,
    "parquet": _parquet,
    "npy": _npy,
    "safetensors": _safetensors,
    "zip": _zip,
}
