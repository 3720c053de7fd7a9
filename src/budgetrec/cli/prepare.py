"""`budgetrec prepare`: from raw interactions to a prepared dataset."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.data.formats import FORMATS
from budgetrec.errors import ArgumentError

SPLITS = ("leave-one-out", "temporal", "temporal-users")


@app.command()
def prepare(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="A file, several, or a folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")],
    layout: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "auto",
    user_column: Annotated[str | None, typer.Option(help="Column of users; guessed if not given.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of items; guessed if not given.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column of times; guessed if not given.")] = None,
    rating_column: Annotated[
        str | None, typer.Option(help="Column of ratings; guessed if not given. Read with --rating-above.")
    ] = None,
    file_order: Annotated[
        bool, typer.Option("--file-order", help="Rows are in order already: read no times.")
    ] = False,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="The first line is data; columns are column_1, column_2, ...")
    ] = False,
    drop_nulls: Annotated[
        bool, typer.Option("--drop-nulls", help="Leave out rows without user, item or time.")
    ] = False,
    rating_above: Annotated[float | None, typer.Option(help="Keep interactions rated above this.")] = None,
    min_user: Annotated[int, typer.Option(help="Keep users with at least so many interactions.")] = 1,
    min_item: Annotated[int, typer.Option(help="Keep items with at least so many interactions.")] = 1,
    one_pass: Annotated[
        bool, typer.Option("--one-pass", help="Filter items, then users, once; not until nothing changes.")
    ] = False,
    repeats: Annotated[
        str, typer.Option(help="Of a user's interactions with one item: keep, or first only.")
    ] = "keep",
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "leave-one-out",
    test_share: Annotated[
        float | None,
        typer.Option(help="Last share of interactions that is the test period of a split by time."),
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Share of users that the temporal split holds out for validation.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the temporal split's choice of users. [default: 0]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read interactions of any usual format, clean, order and split them, and store them for training."""
    from budgetrec.data.prepare import prepare as prepare_dataset

    options = prepare_options(
        layout=layout,
        user_column=user_column,
        item_column=item_column,
        time_column=time_column,
        rating_column=rating_column,
        file_order=file_order,
        no_header=no_header,
        drop_nulls=drop_nulls,
        rating_above=rating_above,
        min_user=min_user,
        min_item=min_item,
        one_pass=one_pass,
        repeats=repeats,
        split=split,
        test_share=test_share,
        validation_share=validation_share,
        seed=seed,
    )
    with stages() as report:
        dataset = prepare_dataset(inputs, output, overwrite=overwrite, report=report, **options)
    if as_json:
        print_json({"output": str(output), **dataset.info["statistics"], **dataset.info})
    else:
        stdout.print(_steps_table(dataset.info["steps"]))
        print_statistics(dataset.info)
        stdout.print(f"\n{_what_was_read(dataset.info['source'])}")
        stdout.print(f"Prepared in {output}. Look at it: budgetrec data show {output}")


def prepare_options(**flags: Any) -> dict[str, Any]:
    """Return what `budgetrec.prepare` is called with for the flags of the command."""
    from budgetrec.data.cleaning import Cleaning
    from budgetrec.data.columns import Columns

    roles = ("user", "item", "time", "rating")
    cleaning = ("rating_above", "min_user", "min_item", "one_pass", "repeats")
    shares = ("test_share", "validation_share", "seed")
    return {
        "layout": flags["layout"],
        "columns": Columns(**{role: flags[f"{role}_column"] for role in roles}),
        "file_order": flags["file_order"],
        "header": not flags["no_header"],
        "drop_nulls": flags["drop_nulls"],
        "cleaning": Cleaning(**{name: flags[name] for name in cleaning}),
        "split": _split(flags["split"], **{name: flags.get(name) for name in shares}),
    }


def _split(name: str, **settings: Any) -> Any:
    from budgetrec.data.splits import LeaveOneOut, Temporal, TemporalUsers

    given = {key: value for key, value in settings.items() if value is not None}
    kinds: dict[str, tuple[Any, set[str]]] = {
        "leave-one-out": (LeaveOneOut, set()),
        "temporal": (Temporal, {"test_share", "validation_share", "seed"}),
        "temporal-users": (TemporalUsers, {"test_share"}),
    }
    if name not in kinds:
        raise ArgumentError(f"unknown split {name!r}. Known are {', '.join(kinds)}.")
    kind, known = kinds[name]
    for key in given.keys() - known:
        raise ArgumentError(
            f"--{key.replace('_', '-')} means nothing to the split {name}. "
            "Leave it out, or pass --split temporal."
        )
    return kind(**given)


def _what_was_read(source: dict[str, Any]) -> str:
    columns = ", ".join(f"{role} from {name!r}" for role, name in source["columns"].items())
    return f"Read as {source['layout']}: {columns}."


def _steps_table(steps: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("step")
    table.add_column("rows in", justify="right")
    table.add_column("rows out", justify="right")
    for step in steps:
        table.add_row(step["name"], f"{step['rows_in']:,}", f"{step['rows_out']:,}")
    return table


def print_statistics(info: dict[str, Any]) -> None:
    """Print the statistics of a dataset, a line each."""
    statistics = info["statistics"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in statistics.items():
        if name == "time":
            table.add_row("from", str(value["first"]))
            table.add_row("to", str(value["last"]))
        elif name == "density":
            table.add_row(name, f"{value:.3%}")
        else:
            shown = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
            table.add_row(name.replace("_", " "), shown)
    table.add_row("split", info["split"]["name"])
    stdout.print()
    stdout.print(table)
