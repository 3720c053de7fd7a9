"""`budgetrec reproduce`: the studies behind the rule, each from one command, or all of them."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import counted, print_json, stdout
from budgetrec.cli.help import App
from budgetrec.cli.options import AsJson, RunFolder
from budgetrec.study.engine.scale import EngineName, Scale

if TYPE_CHECKING:
    from budgetrec.study.engine.frame import Finished

reproduce = App("Run the paper's studies and draw their figures; interrupted studies resume when run again.")
app.add_typer(reproduce, name="reproduce")

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for cells, tables and figures.")]
HowMuch = Annotated[Scale, typer.Option("--scale", help="Seconds, minutes, or the paper's full protocol.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over instead of continuing.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Run cells in this many processes.")]
Where = Annotated[
    EngineName | None,
    typer.Option("--engine", help="Where cells run. [default: serial, or local with --workers]"),
]
RayAddress = Annotated[
    str | None, typer.Option("--ray-address", help="A Ray cluster. [default: one is started here]")
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="NAME=FOLDER of a prepared dataset; may be repeated. [default: generated]"),
]

_MOST_ROWS = 60  # of a table on a terminal
_HELP = {
    "lognormal": "Compare approximations of a sum of lognormals with Monte Carlo.",
    "variance": "Simulate the gradient noise over batch size, negatives and sharing, against the law.",
    "synthetic": "Divide a budget of logits in every way on synthetic data, with tuned learning rates.",
    "timing": "Measure seconds per epoch against the number of negatives.",
    "table": "Train SASRec with three divisions of one budget: the paper's main table and a fair one.",
    "all": "Run every study, and write a page that links to all of them.",
}


def _add_command(name: str, sentence: str, *, with_data: bool) -> None:
    """Add the command of a study; `--data` is only for those that can train on prepared datasets."""

    def command(
        output: Output,
        data: Data = None,
        scale: HowMuch = Scale.SMALL,
        seed: Seed = 0,
        workers: Workers = None,
        engine: Where = None,
        ray_address: RayAddress = None,
        overwrite: Overwrite = False,
        json: AsJson = False,
    ) -> None:
        from budgetrec.errors import ArgumentError
        from budgetrec.study.engine.datasets import parse_data
        from budgetrec.study.engine.frame import Request, run_study
        from budgetrec.study.engine.workers import running
        from budgetrec.study.everything import STUDIES, run_everything

        if not 0 <= seed < 2**31:
            raise ArgumentError(f"seed is {seed}; pass an integer from 0 to 2^31 - 1.")
        request = Request(scale=scale, seed=seed, data=parse_data(data or []))
        with running(engine, workers=workers, ray_address=ray_address) as chosen:
            if name == "all":
                finished = run_everything(
                    request, output, engine=chosen, counted=counted, overwrite=overwrite
                )
            else:
                study = STUDIES[name]
                with counted(name, study.count(request)) as progress:
                    done = run_study(
                        study, request, output, engine=chosen, progress=progress, overwrite=overwrite
                    )
                finished = [done]
        _tell(name, output, finished, json)

    if not with_data:
        signature = inspect.signature(command)
        others = [item for item in signature.parameters.values() if item.name != "data"]
        command.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    reproduce.command(name, help=sentence)(command)


for _name, _text in _HELP.items():
    _add_command(_name, _text, with_data=_name in ("timing", "table", "all"))


def _tell(name: str, output: Path, finished: list["Finished"], json: bool) -> None:
    documents = [_document(done) for done in finished]
    if json:
        whole: dict[str, Any] = {"study": "all", "output": str(output), "studies": documents}
        print_json(whole if name == "all" else {**documents[0], "output": str(output)})
        return
    for done in finished:
        if name != "all":
            for table, (caption, made) in done.findings.tables.items():
                shown = made.to_markdown() if len(made.rows) <= _MOST_ROWS else f"see {table}.md\n"
                stdout.print(f"{caption}\n\n{shown}")
        failed = f"; {done.num_failed} cells failed, see failures.csv there" if done.num_failed else ""
        stdout.print(f"{done.name}: wrote {len(done.files)} files to {done.folder}{failed}")
    stdout.print(f"Read {output / 'study.md'}, or turn it into one page: budgetrec report {output}")


def _document(done: "Finished") -> dict[str, Any]:
    return {
        "study": done.name,
        "title": done.findings.title,
        **done.findings.summary,
        "files": done.files,
        "failed_cells": done.num_failed,
        "tables": {name: made.frame.to_dicts() for name, (_, made) in done.findings.tables.items()},
    }


@reproduce.command("trained-noise")
def reproduce_trained_noise(
    run: RunFolder,
    output: Output,
    scale: HowMuch = Scale.SMALL,
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
    json: AsJson = False,
) -> None:
    """Measure the gradient noise of a trained model's output layer, and compare it with the law."""
    from budgetrec.files import new_folder
    from budgetrec.runs.run import Run
    from budgetrec.study.engine.outputs import FILES, write_study
    from budgetrec.study.variance.trained import count_cells, study_trained

    opened = Run.open(run)
    settings = {"study": "trained-noise", "scale": scale.value, "seed": seed, "run": opened.config.to_dict()}
    with new_folder(output, overwrite=overwrite, files=FILES) as folder:
        with counted("gradient noise", count_cells(scale)) as progress:
            frame = study_trained(opened, scale=scale, seed=seed, progress=progress)
        files = write_study(folder, settings=settings, tables={"noise": frame}, charts={})
    rows = frame.to_dicts()
    if json:
        print_json({**settings, "output": str(output), "files": files, "rows": rows})
        return
    table = Table("negatives", "n", "k", "G", "measured", "law", "error", box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(
            row["sharing"],
            str(row["batch_size"]),
            str(row["num_negatives"]),
            str(row["num_groups"]),
            f"{row['measured']:.4g} +- {row['standard_error']:.2g}",
            f"{row['law']:.4g}",
            f"{row['law_error']:+.1%}",
        )
    stdout.print(table)
    stdout.print(f"wrote {', '.join(files)} to {output}")
