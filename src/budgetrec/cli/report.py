"""`budgetrec report`: one page that shows results, for a browser and for paper."""

from pathlib import Path
from typing import Annotated

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run, a folder of runs, or what reproduce wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page to write. [default: DIR/report.html]"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier report that -o names.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one page that needs no network: the plan and its reasons, curves, tables, settings, environment.

    An earlier DIR/report.html is replaced.
    """
    from budgetrec.report import write_report

    with stages() as tell:
        tell("writing the page")
        page = write_report(folder, output, overwrite=overwrite)
    size = page.stat().st_size
    if as_json:
        print_json({"folder": str(folder), "output": str(page), "bytes": size})
        return
    stdout.print(
        f"{page}: one page of {size / 2**20:.1f} MiB that opens in any browser, also without a network."
    )
