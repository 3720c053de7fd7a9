"""Unpack .gz, .zst, .zip and .tar files into a workspace, and nowhere else.

A member of an archive is copied to a path that we choose, so it cannot write outside the workspace. An
archive with a member that points outside its folder is refused as a whole.
"""

import gzip
import lzma
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from budgetrec.errors import DataError
from budgetrec.files import NO_ROOM

Report = Callable[[str], None]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_COPY_BYTES = 1 << 20
_MOST_LAYERS = 8  # of archives inside archives; some unpack to themselves for ever
# What Python's readers of archives raise when bytes of one have changed, found by changing bytes.
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    MemoryError,
)
# Known files of interactions in archives with other files, the best first. The Netflix Prize comes in
# pieces without headers, which are joined.
_KNOWN_MEMBERS = (
    r"u\.data",
    r"ratings\.dat",
    r"ratings\.csv",
    r"training_set\.tar",
    r"loc-gowalla_totalCheckins\.txt",
)
_KNOWN_PIECES = (r"combined_data_\d+\.txt", r"mv_\d+\.txt")
_TABLE_SUFFIX = re.compile(r"\.(csv|tsv|txt|dat|data|inter|jsonl|ndjson|json|parquet|pq)")


def unwrap(path: Path, workspace: Path, report: Report) -> list[Path]:
    """Return the plain files inside `path`, unpacked into `workspace` if it is an archive.

    A plain file is returned as it is. The 17,770 files of a Netflix archive are joined into one.
    """
    for _ in range(_MOST_LAYERS):
        inner = _unwrap_once(path, workspace, report)
        if inner == path:
            return [path]
        path = inner
    raise DataError(
        f"{path} is packed more than {_MOST_LAYERS} times over. Unpack it and pass the file itself."
    )


def _unwrap_once(path: Path, workspace: Path, report: Report) -> Path:
    """Take one layer off a file; return the file itself if it has none."""
    with path.open("rb") as file:
        head = file.read(265)
    if head.startswith((_GZIP, _ZSTD)):
        plain = _new_file(workspace, path.stem)
        report(f"decompressing {path.name}")
        _decompress(path, plain, gzipped=head.startswith(_GZIP))
        return plain
    is_zip = head.startswith(_ZIP)
    if not is_zip and path.suffix != ".tar" and head[257:262] != b"ustar":
        return path
    report(f"unpacking {path.name}")
    return (_unwrap_zip if is_zip else _unwrap_tar)(path, workspace)


def choose_known(names: list[str]) -> list[str]:
    """Return those files of a published dataset that contain its interactions; none if it is not known.

    >>> choose_known(["ml-1m/README", "ml-1m/movies.dat", "ml-1m/ratings.dat"])
    ['ml-1m/ratings.dat']
    """
    for pattern in _KNOWN_MEMBERS + _KNOWN_PIECES:
        known = [name for name in names if re.fullmatch(rf"{pattern}(\.gz|\.zst)?", PurePosixPath(name).name)]
        if len(known) == 1 or (known and pattern in _KNOWN_PIECES):
            return known
    return []


def join_files(files: Iterable[Path], target: Path) -> Path:
    """Concatenate text files into `target`."""
    with target.open("wb") as out:
        _join((file.open("rb") for file in files), out)
    return target


def _join(sources: Iterable[IO[bytes]], out: IO[bytes]) -> None:
    last = b"\n"
    for source in sources:
        if last != b"\n":  # the previous file has no newline at its end
            out.write(b"\n")
        with source:
            while chunk := source.read(_COPY_BYTES):
                out.write(chunk)
                last = chunk[-1:]


@contextmanager
def _told_if_damaged(problem: str) -> Iterator[None]:
    """Turn whatever a damaged archive makes its reader raise into one sentence; a full disk is none."""
    try:
        yield
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{problem} ({reason}). Get the file again.") from error


def _decompress(path: Path, target: Path, *, gzipped: bool) -> None:
    with (
        _told_if_damaged(f"{path} is truncated or damaged"),
        path.open("rb") as raw,
        target.open("wb") as out,
    ):
        if gzipped:
            with gzip.open(raw) as source:
                shutil.copyfileobj(source, out, _COPY_BYTES)
        else:
            _copy_zstd(raw, out)


def _copy_zstd(raw: IO[bytes], out: IO[bytes]) -> None:
    """Decompress all frames. A stream that ends inside a frame is an error, not a short file."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    started = False
    while chunk := raw.read(_COPY_BYTES):
        while chunk:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            out.write(frame.decompress(chunk))
            started = True
            chunk = frame.unused_data if frame.eof else b""
    if started and not frame.eof:
        raise EOFError("the compressed stream ends early")


def _unwrap_zip(path: Path, workspace: Path) -> Path:
    try:
        with _told_if_damaged(f"{path} is not a complete zip archive"), zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            return _take_members(path, names, archive.open, workspace)
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or a compression Python lacks
        raise DataError(f"{path} cannot be unpacked ({error}). Unpack it yourself.") from error


def _unwrap_tar(path: Path, workspace: Path) -> Path:
    with _told_if_damaged(f"{path} is not a complete tar archive"), tarfile.open(path) as archive:
        members = {member.name: member for member in archive.getmembers() if member.isfile()}

        def open_member(name: str) -> IO[bytes]:
            source = archive.extractfile(members[name])
            if source is None:
                raise DataError(f"{path} has {name!r}, which is not a plain file. Unpack it yourself.")
            return source

        return _take_members(path, list(members), open_member, workspace)


def _take_members(
    path: Path, names: list[str], open_member: Callable[[str], IO[bytes]], workspace: Path
) -> Path:
    for name in names:
        if _points_outside(name):
            raise DataError(
                f"{path} has a member {name!r} that points outside its folder. "
                "The archive is unsafe: download it from its publisher."
            )
    wanted = _choose_members(path, names)
    target = _new_file(workspace, PurePosixPath(wanted[0]).name)
    with target.open("wb") as out:
        _join(map(open_member, wanted), out)
    return target


def _choose_members(path: Path, names: list[str]) -> list[str]:
    names = sorted(name for name in names if not name.startswith("__MACOSX/"))
    if known := choose_known(names):
        return known
    tables = [name for name in names if _TABLE_SUFFIX.fullmatch(PurePosixPath(name).suffix.lower())]
    if len(tables) == 1:
        return tables
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    raise DataError(
        f"{path} has {len(names)} files, none of which is a known file of interactions "
        f"(found: {shown or 'nothing'}). Unpack it and pass the file itself."
    )


def _points_outside(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return name.startswith(("/", "\\")) or ".." in parts or bool(re.match(r"[A-Za-z]:", name))


def _new_file(workspace: Path, name: str) -> Path:
    """Return an unused path in the workspace that keeps the file's name, which messages show."""
    folder = workspace / f"unpacked-{sum(1 for _ in workspace.iterdir())}"
    folder.mkdir()
    return folder / name
