"""`budgetrec recommend`: the best next items for users."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.options import AsJson, Device, KeepSeen, MovedDataset, RunFolder, Threads, use_threads
from budgetrec.errors import ArgumentError

if TYPE_CHECKING:
    import polars as pl


@app.command()
def recommend(
    folder: RunFolder,
    users: Annotated[
        str | None, typer.Option(help="Users as the source names them, separated by commas. [default: all]")
    ] = None,
    top: Annotated[int, typer.Option(help="How many items for each user.")] = 10,
    keep_seen: KeepSeen = None,
    new_items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Features of new items, for a run that was trained with item features."
        ),
    ] = None,
    dataset: MovedDataset = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .parquet or .csv file to write.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """List the items that a run's best weights score highest after everything each user has had."""
    if output is not None and output.suffix.lower() not in (".parquet", ".csv"):
        raise ArgumentError(f"{output} is neither .parquet nor .csv. Use one of these endings.")
    if output is not None and output.exists():
        raise ArgumentError(f"{output} exists already. Pass another name.")
    if output is None and users is None:
        raise ArgumentError("a list for every user is long. Pass --output FILE, or some --users.")
    use_threads(threads)
    from budgetrec.recommending import recommend as recommend_items

    with stages() as report:
        report("ranking items")
        named = None if users is None else [name.strip() for name in users.split(",")]
        found = recommend_items(
            folder,
            named,
            top=top,
            keep_seen=keep_seen,
            new_items=new_items,
            dataset=dataset,
            device=device,
            progress=report.progress,
        )
        if output is not None:
            report("writing")
            _write(found, output)
    if as_json:
        rows = {"rows": found.to_dicts()} if users is not None else {}
        print_json({"run": str(folder), "users": found["user"].n_unique(), "items": len(found), **rows})
        return
    if users is not None:
        _print(found)
    if output is not None:
        stdout.print(f"{output}: {len(found):,} recommendations for {found['user'].n_unique():,} users.")


def _write(found: "pl.DataFrame", output: Path) -> None:
    from budgetrec.files import write_parquet, write_whole

    if output.suffix.lower() == ".csv":
        write_whole(output, lambda path: path.write_text(found.write_csv(), "utf-8"))
    else:
        write_whole(output, lambda path: write_parquet(found, path))


def _print(found: "pl.DataFrame") -> None:
    table = Table("user", "rank", "item", "score", box=None, pad_edge=False)
    for row in found.iter_rows(named=True):
        table.add_row(str(row["user"]), str(row["rank"]), str(row["item"]), f"{row['score']:.3f}")
    stdout.print(table)
