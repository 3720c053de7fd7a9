"""Write the report of a folder: find out what it holds, make the page, put it in its place whole."""

from pathlib import Path

from budgetrec.display.study_folder import MARKER as STUDY_MARKER
from budgetrec.errors import ArgumentError, DataError
from budgetrec.files import write_whole
from budgetrec.report.page import SIGNATURE
from budgetrec.report.run_page import run_page
from budgetrec.report.runs_page import runs_page
from budgetrec.report.study_page import study_page
from budgetrec.runs.layout import MARKER as RUN_MARKER
from budgetrec.runs.record import read_run

FILE = "report.html"
_WHAT = "Pass a run, a folder of runs, or what budgetrec reproduce wrote."


def write_report(path: Path | str, output: Path | str | None = None, *, overwrite: bool = False) -> Path:
    """Write one self-contained page about a run, several runs, or studies; return its path.

    The page is `report.html` in the folder if no `output` is named; there an earlier report is replaced.
    Elsewhere that takes `overwrite`, and only a report is ever replaced.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. {_WHAT}")
    target = folder / FILE if output is None else Path(output)
    check_output(target, overwrite=overwrite or output is None)
    page = make_page(folder)
    write_whole(target, lambda partial: partial.write_bytes(page.encode("utf-8", "replace")))
    return target


def make_page(folder: Path) -> str:
    """Return the page of a folder, by what it holds."""
    if (folder / RUN_MARKER).is_file():
        return run_page(read_run(folder))
    name = folder.resolve().name
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    studies = [each for each in (folder, *inside) if (each / STUDY_MARKER).is_file()]
    if studies:
        return study_page(studies, title=name)
    runs = [each for each in inside if (each / RUN_MARKER).is_file()]
    if len(runs) == 1:
        raise DataError(f"{folder} holds one run, so there is nothing to compare. Pass {runs[0]}.")
    if runs:
        return runs_page([read_run(each) for each in runs], title=name)
    raise DataError(
        f"{folder} holds no {RUN_MARKER} and no {STUDY_MARKER}, and no folder in it does. {_WHAT}"
    )


def check_output(target: Path, *, overwrite: bool) -> None:
    """Refuse early to write where something else is."""
    if not target.absolute().parent.is_dir():
        raise ArgumentError(f"{target.parent} is not a folder, so {target} cannot be written. Make it first.")
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise ArgumentError(f"{target} exists already. Pass --overwrite to replace it, or another name.")
    if not _is_report(target):
        raise ArgumentError(f"{target} is not a budgetrec report, so it is not replaced. Pass another name.")


def _is_report(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return SIGNATURE.encode() in file.read(1000)
