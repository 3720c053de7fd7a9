"""Write whole files and folders or nothing: work under a temporary name, rename at the end.

Who writes holds a lock of the operating system, which ends with the process: so two processes never write
the same, and what a killed one left behind is known to be nobody's (decision 0052).
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from budgetrec.errors import DataError, TrainingError, first_line

if TYPE_CHECKING:
    import polars as pl

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PARTIAL = ".partial-"
_RANDOM = "[a-z0-9_]{8}"  # what the names of temporary folders end with
_LONGEST_NAME = 200  # bytes; a file system takes 255, and temporary names are longer
_claimed: ContextVar[frozenset[Path]] = ContextVar("claimed", default=frozenset())

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_plain(path: Path) -> None:
    """Refuse to read a pipe, a device or a socket, which may never end."""
    mode = path.stat().st_mode if path.exists() else 0
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise DataError(f"{path} is {name}, not a file. Save its content to a file and pass that.")


@contextmanager
def claim(target: Path) -> Iterator[None]:
    """Keep all others from writing `target` meanwhile, and take away what a killed process left of it.

    A claim inside a claim of the same target is granted, as when `fit` trains. Where no lock can be had (some
    network drives, folders that may not be written), nobody is refused and nothing is taken away.
    """
    target = Path(os.path.realpath(target))
    if target in _claimed.get():
        yield
        return
    made = _make_parents(target)
    lock = _beside(target, ".lock")
    try:
        handle = _lock(lock, wait=False)
    except BlockingIOError:
        raise DataError(
            f"{target} is being written by another process. Wait until it is done, or pass another name."
        ) from None
    token = _claimed.set(_claimed.get() | {target})
    try:
        if handle is not None:
            _sweep(target)
        yield
    finally:
        _claimed.reset(token)
        if handle is not None:
            lock.unlink(missing_ok=True)
            os.close(handle)
        for parent in made:
            with suppress(OSError):  # it holds something by now
                parent.rmdir()


def _make_parents(target: Path) -> list[Path]:
    """Make the folders above `target`; return those that were missing, the innermost first."""
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target} cannot be created: {error.strerror}. Pass another place.") from error
    return missing


def _beside(target: Path, ending: str) -> Path:
    """Return a hidden name beside `target` that belongs to it alone."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}{ending}")


def _lock(path: Path, *, wait: bool) -> int | None:
    """Open and lock a file that may have to be made; None where that cannot be done."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever held it has renamed or removed the file: try again


def _sweep(target: Path) -> None:
    """Take away what a killed writer of `target` left; an old folder that it had moved aside comes back."""
    left = re.compile(re.escape(_beside(target, _PARTIAL).name) + _RANDOM + "(-old)?")
    with suppress(OSError):
        for path in sorted(target.parent.iterdir()):
            if left.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                if path.name.endswith("-old") and not target.exists():
                    path.rename(target)
                else:
                    shutil.rmtree(path, ignore_errors=True)


def check_free(target: Path, *, overwrite: bool, files: Sequence[str]) -> None:
    """Refuse early to write where something already is.

    With `overwrite` a folder may be replaced if it is empty, or if it holds the first of `files`, which marks
    a folder of ours, and nothing but names that match one of them: a slip of the hand must not delete
    anything else.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise DataError(f"{target} exists already. Pass --overwrite to replace it, or another name.")
    if not target.is_dir() or target.is_symlink():
        raise DataError(f"{target} is not a folder, so it is not replaced. Pass another name.")
    if Path.cwd().is_relative_to(target.resolve()):
        raise DataError(f"{target} is the folder we are in, so it is not replaced. Pass another name.")
    names = sorted(path.name for path in target.iterdir())
    other = [name for name in names if not any(fnmatch(name, pattern) for pattern in files)]
    if names and (other or files[0] not in names):
        seen = other[0] if other else names[0]
        raise DataError(
            f"{target} holds other files, such as {seen}, so it is not replaced. Pass another name."
        )


@contextmanager
def new_folder(target: Path, *, overwrite: bool, files: Sequence[str]) -> Iterator[Path]:
    """Return a temporary folder beside `target` that takes its name if all goes well, or vanishes."""
    target = target.absolute()
    with claim(target):
        check_free(target, overwrite=overwrite, files=files)
        try:
            staging = Path(tempfile.mkdtemp(prefix=_beside(target, _PARTIAL).name, dir=target.parent))
        except OSError as error:
            raise DataError(f"{target} cannot be created: {error.strerror}. Pass another place.") from error
        old = staging.with_name(staging.name + "-old")
        try:
            yield staging
            staging.chmod(0o777 & ~umask())
            _replace(staging, target, old)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DataError(
                    f"there is no room left to write {target} ({os.strerror(error.errno or 0)}). "
                    "Free some space or pass another place."
                ) from error
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)


def write_parquet(frame: "pl.DataFrame", path: Path) -> None:
    """Write a frame through Python's own file, which tells a full disk by its error number."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    path.write_bytes(buffer.getbuffer())


def _replace(staging: Path, target: Path, old: Path) -> None:
    """Put the new folder in the place of the old one, which comes back if that fails half-way."""
    try:
        if target.exists():
            target.rename(old)
        staging.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def umask() -> int:
    """Return the rights that new files of this process lack."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then give it that name.

    Who comes second waits. What a killed writer left is written over by the next.
    """
    try:
        handle, partial = _open_partial(path)
        try:
            write(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.chmod(0o666 & ~umask())  # a temporary file is private, a result is not
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise cannot_be_written(path, error) from error


def _open_partial(path: Path) -> tuple[int, Path]:
    """Open the temporary file for `path`, locked; where there are no locks, one of a name of its own."""
    partial = _beside(path, f"{_PARTIAL}new")
    handle = _lock(partial, wait=True)
    if handle is None:
        handle, name = tempfile.mkstemp(prefix=_beside(path, _PARTIAL).name, dir=path.parent)
        return handle, Path(name)
    return handle, partial


def cannot_be_written(path: Path, error: Exception) -> TrainingError:
    """Say that there was no room for a file."""
    return TrainingError(
        f"{path} cannot be written: {first_line(error)}. Free some space or pass another place."
    )


def remove_partial(folder: Path) -> None:
    """Remove what a kill in the middle of `write_whole` left in a folder, and nothing that is in use."""
    for path in folder.glob(f".*{_PARTIAL}*"):
        with suppress(BlockingIOError):  # somebody writes it
            handle = _lock(path, wait=False)
            path.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)
