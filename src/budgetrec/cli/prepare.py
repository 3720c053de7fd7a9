"""`budgetrec prepare`: from raw interactions to a prepared dataset."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, print_table, stages, stdout
from budgetrec.cli.options import AsJson, OutputFolder, Overwrite
from budgetrec.data.formats import FORMATS
from budgetrec.errors import ArgumentError

if TYPE_CHECKING:
    from budgetrec.data.prepare import PrepareOptions
    from budgetrec.data.store import DatasetInfo, Repeats, Source

SPLITS = ("leave-one-out", "temporal", "temporal-users")


def _column(role: str) -> Any:
    return typer.Option(metavar="NAME", help=f"Name of the column of {role}. [default: guessed]")


@app.command()
def prepare(
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT", help="One or more files, or a folder of them.")
    ],
    output: OutputFolder,
    layout: Annotated[
        str, typer.Option("--format", metavar="NAME", help=f"One of {', '.join(FORMATS)}.")
    ] = "auto",
    user_column: Annotated[str | None, _column("users")] = None,
    item_column: Annotated[str | None, _column("items")] = None,
    time_column: Annotated[str | None, _column("times")] = None,
    rating_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the column that --rating-above reads. [default: guessed]"),
    ] = None,
    file_order: Annotated[
        bool, typer.Option("--file-order", help="Keep the order of the rows and ignore times.")
    ] = False,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="The first line is data; columns are column_1, column_2, ...")
    ] = False,
    drop_nulls: Annotated[
        bool, typer.Option("--drop-nulls", help="Drop rows without a user, an item or a time.")
    ] = False,
    rating_above: Annotated[
        float | None, typer.Option(help="Keep only interactions rated above this.")
    ] = None,
    min_user: Annotated[int, typer.Option(help="Keep users with at least this many interactions.")] = 1,
    min_item: Annotated[int, typer.Option(help="Keep items with at least this many interactions.")] = 1,
    one_pass: Annotated[
        bool,
        typer.Option("--one-pass", help="Filter items, then users, once instead of until nothing changes."),
    ] = False,
    repeats: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Repeated interactions of a user with an item: keep all, or only the first."
        ),
    ] = "keep",
    split: Annotated[
        str, typer.Option(metavar="NAME", help=f"How to hold out items: {', '.join(SPLITS)}.")
    ] = "leave-one-out",
    test_share: Annotated[
        float | None,
        typer.Option(help="Temporal splits: share of the latest interactions to test on."),
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Split temporal: share of the users to validate on.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Split", help="Split temporal: seed that chooses these users. [default: 0]"
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Read, clean, order and split interactions, and store them for training."""
    options = prepare_options(**locals())  # every flag, by the name of its parameter
    from budgetrec.data.prepare import prepare as prepare_dataset

    with stages() as report:
        dataset = prepare_dataset(inputs, output, overwrite=overwrite, report=report, **vars(options))
    if as_json:
        print_json({"output": str(output), **dataset.info["statistics"], **dataset.info})
    else:
        steps = dataset.info["steps"]
        rows = [(str(step["name"]), f"{step['rows_in']:,}", f"{step['rows_out']:,}") for step in steps]
        print_table(("step", "rows in", "rows out"), rows)
        print_statistics(dataset.info)
        print_repeats(dataset.info["repeated_targets"])
        stdout.print(f"\n{_what_was_read(dataset.info['source'])}")
        stdout.print(f"Prepared in {output}. To look at it: budgetrec data show {output}")


def prepare_options(**flags: Any) -> "PrepareOptions":
    """Return the options that the flags of the command stand for."""
    from budgetrec.data.cleaning import Cleaning
    from budgetrec.data.columns import Columns
    from budgetrec.data.prepare import PrepareOptions

    return PrepareOptions(
        layout=flags["layout"],
        columns=Columns(**{role: flags.get(f"{role}_column") for role in _fields(Columns)}),
        file_order=flags["file_order"],
        header=not flags["no_header"],
        drop_nulls=flags["drop_nulls"],
        cleaning=Cleaning(**{name: flags[name] for name in _fields(Cleaning) if name in flags}),
        split=_split(flags),
    )


def _split(flags: dict[str, Any]) -> Any:
    from budgetrec.data.splits import LeaveOneOut, Temporal, TemporalUsers

    kinds: dict[str, Any] = {kind.name: kind for kind in (LeaveOneOut, Temporal, TemporalUsers)}
    name = flags["split"]
    if name not in kinds:
        raise ArgumentError(f"unknown split {name!r}. Known are {', '.join(kinds)}.")
    given = {key: flags[key] for key in _fields(Temporal) if flags.get(key) is not None}
    for key in given.keys() - set(_fields(kinds[name])):
        raise ArgumentError(
            f"--{key.replace('_', '-')} has no effect on the split {name}. "
            "Leave it out, or pass --split temporal."
        )
    return kinds[name](**given)


def _fields(record: Any) -> list[str]:
    return [item.name for item in fields(record)]


def _what_was_read(source: "Source") -> str:
    columns = ", ".join(f"{role} from {name!r}" for role, name in source["columns"].items())
    return f"Read as {source['layout']}: {columns}."


def print_repeats(repeats: "dict[str, Repeats]") -> None:
    """Say how many held-out items their users had before, if any, and what follows."""
    counts = {part: (count["repeated"], count["targets"]) for part, count in repeats.items()}
    told = [
        f"{again:,} of {total:,} {part} items ({again / total:.1%})"
        for part, (again, total) in counts.items()
        if again
    ]
    if told:
        from budgetrec.data.repeats import KEPT_FROM

        stdout.print(
            f"\n{' and '.join(told)} are ones that the user had before. From {KEPT_FROM:.0%} of the "
            "validation items on, rankings and recommendations keep such items; --keep-seen and "
            "--no-keep-seen overrule that."
        )


def print_statistics(info: "DatasetInfo") -> None:
    """Print the statistics of a dataset, one per line."""
    rows, statistics = [], info["statistics"]
    for name, value in statistics.items():
        if isinstance(value, dict):
            rows += [("from", str(value.get("first"))), ("to", str(value.get("last")))]
        elif name == "density":
            rows.append((name, f"{value:.3%}"))
        elif isinstance(value, int | float):
            rows.append(
                (name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
            )
    stdout.print()
    print_table(("", ""), [*rows, ("split", str(info["split"].get("name")))])
