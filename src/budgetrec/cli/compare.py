"""`budgetrec compare`: several runs of one dataset, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.evaluate import Part, Seed, print_table
from budgetrec.cli.options import AsJson, Device, KeepSeen, MovedDataset, Overwrite, Threads, use_threads


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs; the first is the baseline.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write tables and curves to DIR.")
    ] = None,
    part: Part = "test",
    keep_seen: KeepSeen = None,
    dataset: MovedDataset = None,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: losses up to horizons that all of them reach, tests paired over users and seeds.

    Runs that differ only in their seed form one group.
    """
    use_threads(threads)
    from budgetrec.display.evaluation_text import comparison_tables, how_measured
    from budgetrec.evaluation.compare import compare as compare_runs
    from budgetrec.files import check_free, new_folder

    files: list[str] = []
    if output is not None:
        from budgetrec.report.comparison import FILES, write_comparison

        check_free(output, overwrite=overwrite, files=FILES)
    with stages() as report:
        comparison = compare_runs(
            folders,
            part=part,
            keep_seen=keep_seen,
            dataset=dataset,
            seed=seed,
            device=device,
            report=report,
            progress=report.progress,
        )
        if output is not None:
            report("writing")
            with new_folder(output, overwrite=overwrite, files=FILES) as folder:
                files = write_comparison(folder, comparison)
    if as_json:
        print_json({**comparison.to_dict(), "output": str(output) if output else None, "files": files})
        return
    for table in comparison_tables(comparison):
        print_table(table)
        stdout.print()
    stdout.print(how_measured(part, keep_seen=comparison.keep_seen))
    if output is not None:
        stdout.print(f"wrote {', '.join(files)} to {output}")
