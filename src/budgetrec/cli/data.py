"""`budgetrec data`: known datasets, a look at prepared ones, and generated demo data."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from budgetrec.cli import app
from budgetrec.cli.console import download_bar, print_json, print_table, stages, stdout
from budgetrec.cli.help import App
from budgetrec.cli.options import AsJson, OutputFolder, Overwrite
from budgetrec.cli.prepare import print_repeats, print_statistics

data_app = App("Download known datasets, look at prepared ones, and generate demo data.")
app.add_typer(data_app, name="data")

_BAR_WIDTH = 40


@data_app.command(name="list")
def list_known(as_json: AsJson = False) -> None:
    """List the datasets that `budgetrec data get` can download."""
    from dataclasses import asdict

    from budgetrec.data.sources import KNOWN

    if as_json:
        print_json({"datasets": [asdict(dataset) for dataset in KNOWN.values()]})
        return
    rows = [(known.name, f"{known.rows:,}", known.description, known.file_name) for known in KNOWN.values()]
    print_table(("name", "interactions", "what", "file"), rows, words=("what", "file"))


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name listed by `budgetrec data list`.")],
    output: OutputFolder,
    url: Annotated[
        str | None, typer.Option(help="Download from this address instead, such as a mirror.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a known dataset and check it against the publisher's checksum."""
    from budgetrec.data.prepare import describe_source
    from budgetrec.data.sources import KNOWN, fetch

    with download_bar(name) as progress:
        path = fetch(name, output, url=url, progress=progress)
    source = describe_source([path])
    if as_json:
        print_json({"name": name, "path": str(path), "bytes": source["bytes"], "sha256": source["sha256"]})
        return
    checked = "matches the publisher's checksum" if KNOWN[name].md5 else "its publisher gives no checksum"
    stdout.print(f"{path}: {source['bytes']:,} bytes; {checked}.")
    stdout.print(f"Next: budgetrec prepare {path} -o {output / name}")


@data_app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by budgetrec prepare.")],
    as_json: AsJson = False,
) -> None:
    """Print the statistics of a prepared dataset, with sequence lengths and item popularity."""
    from budgetrec.data.store import Dataset
    from budgetrec.data.summary import summarise

    dataset = Dataset.open(folder)
    summary = summarise(dataset)
    if as_json:
        print_json({**dataset.info, "summary": summary})
        return
    print_statistics(dataset.info)
    print_repeats(summary["repeated_targets"])
    _print_histogram("sequences by length", summary["sequence_lengths"])
    _print_histogram("items by how often they are trained on", summary["item_train_counts"])
    shares = summary["share_of_training"]
    stdout.print(
        f"\nThe top 1% of items make up {shares['top_1_percent']:.0%} of the training interactions, "
        f"10% make up {shares['top_10_percent']:.0%}, half {shares['top_50_percent']:.0%}."
    )


@data_app.command()
def demo(
    output: OutputFolder,
    users: Annotated[int, typer.Option(help="Number of users.")] = 2000,
    items: Annotated[int, typer.Option(help="Number of items.")] = 1000,
    rows: Annotated[int | None, typer.Option(help="Number of interactions. [default: 40 per user]")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same data.")] = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Generate interactions with a known truth: clusters, Zipf popularity, Markov moves, user tastes.

    Writes events.parquet, items.parquet (a feature vector for each item) and truth.npz.
    """
    from budgetrec.data.demo import FILES, MARKER, check_size, generate_events, item_features, make_truth
    from budgetrec.files import new_folder, write_parquet

    num_rows = 40 * users if rows is None else rows
    check_size(num_users=users, num_items=items, num_rows=num_rows)
    with stages() as report, new_folder(output, overwrite=overwrite, files=FILES) as folder:
        report("drawing the truth")
        truth = make_truth(num_users=users, num_items=items, seed=seed)
        report(f"drawing {num_rows:,} interactions")
        events = generate_events(truth, num_rows=num_rows, seed=seed)
        report("writing")
        write_parquet(events, folder / "events.parquet")
        write_parquet(item_features(truth, seed=seed), folder / "items.parquet")
        truth.save(folder / "truth.npz")
        settings = {"users": users, "items": items, "interactions": events.height, "seed": seed}
        (folder / MARKER).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    if as_json:
        print_json({"output": str(output), **settings})
        return
    written = output / "events.parquet"
    stdout.print(f"{written}: {events.height:,} interactions of {users:,} users with {items:,} items.")
    stdout.print(f"Next: budgetrec prepare {written} -o DIR")


def _print_histogram(title: str, bins: list[dict[str, Any]]) -> None:
    most = max(entry["count"] for entry in bins)
    labels = [str(b["from"]) if b["from"] == b["to"] else f"{b['from']} to {b['to']}" for b in bins]
    width = max(len(label) for label in labels)
    full, thin = ("█", "▏") if stdout.encoding.startswith("utf") else ("#", "|")
    stdout.print(f"\n{title}")
    for label, entry in zip(labels, bins, strict=True):
        bar = full * round(_BAR_WIDTH * entry["count"] / most) or thin
        stdout.print(f"  {label:>{width}}  {bar} {entry['count']:,}")
