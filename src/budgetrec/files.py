"""Write whole folders or nothing: work under a temporary name, rename at the end."""

import errno
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from budgetrec.errors import DataError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_free(target: Path, *, overwrite: bool, marker: str) -> None:
    """Refuse early to write where something is already.

    With `overwrite` a folder may be replaced only if it is empty or holds `marker`, the file that tells a
    folder of ours: a slip of the hand must not delete somebody's home.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise DataError(f"{target} exists already. Pass --overwrite to replace it, or another name.")
    if not target.is_dir() or target.is_symlink():
        raise DataError(f"{target} is not a folder, so it is not replaced. Pass another name.")
    if any(target.iterdir()) and not (target / marker).is_file():
        raise DataError(
            f"{target} holds other files and no {marker}, so it is not replaced. Pass another name."
        )


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """Give a temporary folder beside `target` that takes its name when all went well, or vanishes."""
    check_free(target, overwrite=overwrite, marker=marker)
    parent = target.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=parent))
    except OSError as error:
        raise DataError(f"{target} cannot be created: {error.strerror}. Pass another place.") from error
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        _replace(staging, target)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DataError(
                f"there is no room left to write {target} ({os.strerror(error.errno or 0)}). "
                "Free some space or pass another place."
            ) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame through Python's own file, which tells a full disk by its error number."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    path.write_bytes(buffer.getbuffer())


def _replace(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    old = staging.with_name(staging.name + "-old")
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
