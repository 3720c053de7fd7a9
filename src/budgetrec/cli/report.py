"""`budgetrec report`: one page that shows results, for a browser and for paper."""

from pathlib import Path
from typing import Annotated

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.options import AsJson


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A run, a folder of runs, or a folder written by budgetrec reproduce."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the page to this file. [default: DIR/report.html]"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one web page that works offline: plan and reasons, curves, tables, settings, environment.

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
    stdout.print(f"{page}: one page of {size / 2**20:.1f} MiB that opens in any browser, even offline.")
