"""What the studies write: a folder of tables and figures, whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import altair as alt
import polars as pl

from budgetrec.errors import ArgumentError

Progress = Callable[[int], None]

# Okabe and Ito's colours: told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#000000", "#999999"


def write_study(
    directory: Path, *, tables: Mapping[str, pl.DataFrame], charts: Mapping[str, alt.TopLevelMixin]
) -> list[str]:
    """Write each table as CSV and each chart as SVG and PNG; give the names of the files."""
    names = []
    for name, table in tables.items():
        table.write_csv(directory / f"{name}.csv")
        names.append(f"{name}.csv")
    for name, chart in charts.items():
        for kind in ("svg", "png"):
            chart.save(str(directory / f"{name}.{kind}"), scale_factor=2 if kind == "png" else 1)
            names.append(f"{name}.{kind}")
    return names


def check_folder(directory: Path, *, overwrite: bool) -> None:
    """Refuse a folder that is taken, before any work is done."""
    if directory.exists() and not overwrite:
        raise ArgumentError(f"{directory} exists already; pass --overwrite or another folder.")
    if directory.exists() and not directory.is_dir():
        raise ArgumentError(f"{directory} is a file; pass a folder.")
    if not directory.absolute().parent.is_dir():
        raise ArgumentError(f"{directory.absolute().parent} is no folder; create it first.")


@contextmanager
def whole_folder(directory: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary folder beside `directory` that takes its name when all went well.

    An old folder is only replaced when it holds nothing but files that the new one has too.
    """
    check_folder(directory, overwrite=overwrite)
    directory = directory.absolute()
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield work
        if directory.exists():
            foreign = {path.name for path in directory.iterdir()} - {path.name for path in work.iterdir()}
            if foreign:
                raise ArgumentError(
                    f"{directory} holds files that are not of this study ({sorted(foreign)[0]}); "
                    "pass another folder."
                )
            shutil.rmtree(directory)
        work.chmod(0o755)
        work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
