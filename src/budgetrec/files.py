"""Write whole files and folders or nothing: work under a temporary name, rename at the end."""

import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import polars as pl

from budgetrec.errors import DataError, TrainingError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PARTIAL = ".partial-"


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
    check_free(target, overwrite=overwrite, files=files)
    target = target.absolute()
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.partial-", dir=target.parent))
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
        shutil.rmtree(old, ignore_errors=True)
        if not target.exists():
            for parent in made:
                parent.rmdir()


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
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
    """Let `write` fill a temporary file beside `path`, then give it that name."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{_PARTIAL}", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o666 & ~umask())  # a temporary file is private, a result is not
        partial.replace(path)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise cannot_be_written(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def cannot_be_written(path: Path, error: Exception) -> TrainingError:
    """Say that there was no room for a file."""
    reason = str(error).splitlines()[0]
    return TrainingError(f"{path} cannot be written: {reason}. Free some space or pass another place.")


def remove_partial(folder: Path) -> None:
    """Remove what a kill in the middle of `write_whole` left in a folder."""
    for path in folder.glob(f".*{_PARTIAL}*"):
        path.unlink(missing_ok=True)
