"""`budgetrec evaluate`: how good a run is, with intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.options import AsJson, Device, KeepSeen, MovedDataset, RunFolder, Threads, use_threads
from budgetrec.errors import ArgumentError

if TYPE_CHECKING:
    from budgetrec.display.tables import TextTable

Part = Annotated[str, typer.Option(help="What to predict: test or validation.")]
Seed = Annotated[int, typer.Option(help="Seed of the bootstrap behind the intervals.")]


@app.command()
def evaluate(
    folder: RunFolder,
    part: Part = "test",
    cutoffs: Annotated[str, typer.Option(help="Lengths of the lists that are judged.")] = "5,10,20",
    keep_seen: KeepSeen = None,
    dataset: MovedDataset = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Per-user values. [default: RUN/evaluation-PART.parquet]"
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Rank each user's held-out item among the whole catalogue with the best weights of a run.

    Ties count against the model. Writes RUN/evaluation-PART.json and per-user values beside it.
    """
    lengths = _read_cutoffs(cutoffs)
    if output is not None and not output.absolute().parent.is_dir():
        raise ArgumentError(f"{output.parent} is not a folder, so {output} cannot be written. Make it first.")
    if output is not None and output.exists():
        raise ArgumentError(f"{output} exists already. Pass another name.")

    use_threads(threads)
    from budgetrec.display.evaluation_text import (
        evaluation_table,
        groups_table,
        how_measured,
        repeats_sentence,
        training_table,
    )
    from budgetrec.evaluation.evaluate import evaluate as evaluate_run

    with stages() as report:
        result = evaluate_run(
            folder,
            part=part,
            cutoffs=lengths,
            keep_seen=keep_seen,
            dataset=dataset,
            seed=seed,
            device=device,
            report=report,
            progress=report.progress,
        )
        report("writing")
        summary, users = result.save(folder, users=output)
    if as_json:
        print_json({**result.to_dict(), "files": [str(summary), str(users)]})
        return
    print_table(evaluation_table(result))
    stdout.print()
    if result.groups:
        print_table(groups_table(result))
        stdout.print(f"\n{repeats_sentence(result)}\n")
    print_table(training_table(result))
    stdout.print(f"\n{how_measured(part, keep_seen=result.keep_seen)}")
    stdout.print(f"Per-user values are in {users}, the averages in {summary}.")


def print_table(table: "TextTable") -> None:
    """Print words to the left and numbers to the right, under a title."""
    shown = Table(box=None, pad_edge=False, show_header=any(table.columns))
    for place, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if place < table.num_words else "right")
    for row in table.rows:
        shown.add_row(*row)
    stdout.print(f"{table.title}\n")
    stdout.print(shown)


def _read_cutoffs(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"--cutoffs is {text!r}. Pass whole numbers such as 5,10,20.") from None
