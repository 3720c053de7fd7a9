"""Prepare a MovieLens-20M-shaped CSV, and iterate over it, against the same work written plainly.

Every contender runs in a process of its own, one after the other, in turns; the medians are compared. Peak
memory is the largest resident size of the process. `make bench-data` runs it and records the result.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import describe_machine

ROWS, USERS, ITEMS = 20_000_263, 138_493, 26_744
BATCH_SIZE, MAX_LENGTH = 256, 50


def generate(path: Path) -> None:
    """Write a CSV of MovieLens-20M's size and layout: sorted by user and film, times in seconds."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng(0)
    weights = random.lognormal(0, 1.2, USERS)
    lengths = 20 + (weights / weights.sum() * (ROWS - 20 * USERS)).astype(np.int64)
    lengths[: ROWS - lengths.sum()] += 1
    popularity = np.cumsum(1 / np.arange(1, ITEMS + 1))
    films = np.searchsorted(popularity, random.random(ROWS) * popularity[-1]) + 1
    begins = np.repeat(random.integers(789_652_009, 1_427_784_002, USERS), lengths)
    pl.DataFrame(
        {
            "userId": np.repeat(np.arange(1, USERS + 1), lengths),
            "movieId": films,
            "rating": random.integers(1, 11, ROWS) / 2,
            "timestamp": begins + random.integers(0, 1_000_000, ROWS),
        }
    ).sort("userId", "movieId", maintain_order=True).write_csv(path)


def prepare_with_budgetrec(source: Path, folder: Path) -> None:
    """Read, filter to the 5-core, leave one out, store."""
    import budgetrec

    cleaning = budgetrec.Cleaning(min_user=5, min_item=5)
    budgetrec.prepare(source, folder, cleaning=cleaning, overwrite=True)


def prepare_with_pandas(source: Path, folder: Path) -> None:
    """Do the same as most people write it."""
    import numpy as np
    import pandas as pd

    folder.mkdir(exist_ok=True)
    ratings = pd.read_csv(source)
    while True:
        rows = len(ratings)
        ratings = ratings[ratings.groupby("movieId")["movieId"].transform("size") >= 5]
        ratings = ratings[ratings.groupby("userId")["userId"].transform("size") >= 5]
        if len(ratings) == rows:
            break
    ratings = ratings.sort_values(["userId", "timestamp"], kind="stable")
    ratings["user"], users = pd.factorize(ratings["userId"])
    ratings["item"], items = pd.factorize(ratings["movieId"])
    from_end = ratings.groupby("user").cumcount(ascending=False)
    train, validation, test = ratings[from_end >= 2], ratings[from_end == 1], ratings[from_end == 0]
    np.save(folder / "train.npy", train["item"].to_numpy(np.int32))
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(train.groupby("user").size())]))
    np.save(folder / "validation.npy", validation["item"].to_numpy(np.int32))
    np.save(folder / "test.npy", test["item"].to_numpy(np.int32))
    pd.DataFrame({"user": users}).to_parquet(folder / "users.parquet")
    pd.DataFrame({"item": items}).to_parquet(folder / "items.parquet")


def iterate_with_budgetrec(dataset_folder: Path) -> int:
    """Go through one epoch; give the number of targets."""
    import torch

    import budgetrec

    dataset = budgetrec.Dataset.open(dataset_folder)
    batches = budgetrec.TrainingBatches(dataset, batch_size=BATCH_SIZE, max_length=MAX_LENGTH)
    return sum(batch.ids.numel() and 1 for batch in batches.epoch(torch.Generator().manual_seed(0)))


def iterate_with_dataloader(dataset_folder: Path) -> int:
    """Do the same with a Dataset that gives one sequence, and a collate function that pads."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader

    import budgetrec

    dataset = budgetrec.Dataset.open(dataset_folder)
    begins, ends = dataset.train_ranges()

    class Sequences(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(begins)

        def __getitem__(self, index: int) -> torch.Tensor:
            begin, end = begins[index], ends[index]
            window = dataset.items[max(begin, end - MAX_LENGTH - 1) : end]
            return torch.tensor(window, dtype=torch.long)

    def collate(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        padded = pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        mask = torch.arange(padded.shape[1] - 1) < lengths[:, None] - 1
        return padded[:, :-1], padded[:, 1:], mask

    loader = DataLoader(
        Sequences(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(0),
    )
    return sum(1 for _ in loader)


CONTENDERS = {
    "prepare": (prepare_with_budgetrec, prepare_with_pandas),
    "iterate": (iterate_with_budgetrec, iterate_with_dataloader),
}


def measure_one(name: str, contender: int, folder: Path) -> None:
    """Run one contender in this process and print its seconds and peak memory."""
    import importlib

    # Both sides import their libraries before the clock starts: we compare work, not imports.
    for module in ("numpy", "polars", "budgetrec.data.prepare") if contender == 0 else ("numpy", "pandas"):
        importlib.import_module(module)
    if name == "iterate":
        importlib.import_module("budgetrec.data.batches")
        importlib.import_module("torch.utils.data")
    run = CONTENDERS[name][contender]
    begin = time.perf_counter()
    if name == "prepare":
        run(folder / "ratings.csv", folder / f"prepared-{contender}")
    else:
        run(folder / "prepared-0")
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


def main() -> None:
    """Run all contenders in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/bench-data"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the result to this Markdown file")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "CONTENDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(arguments.one[0], int(arguments.one[1]), arguments.folder)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    source = arguments.folder / "ratings.csv"
    if not source.exists():
        print(f"generating {ROWS:,} rows", file=sys.stderr)
        generate(source)
    lines = [
        "| work | contender | seconds (median) | all runs | peak MiB |",
        "|---|---|---|---|---|",
    ]
    ratios = []
    for name, contenders in CONTENDERS.items():
        runs: list[list[dict[str, float]]] = [[], []]
        for _ in range(arguments.repeats):
            for contender in range(2):
                command = [
                    sys.executable,
                    __file__,
                    "--folder",
                    str(arguments.folder),
                    "--one",
                    name,
                    str(contender),
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs[contender].append(json.loads(done.stdout))
        seconds = [statistics.median(run["seconds"] for run in own) for own in runs]
        peaks = [statistics.median(run["peak_bytes"] for run in own) for own in runs]
        for contender, function in enumerate(contenders):
            every = ", ".join(f"{run['seconds']:.2f}" for run in runs[contender])
            label = function.__name__.split("_with_")[1]
            lines.append(
                f"| {name} | {label} | {seconds[contender]:.2f} | {every} | {peaks[contender] / 2**20:,.0f} |"
            )
        ratios.append(
            f"- {name}: {seconds[1] / seconds[0]:.1f} times faster, {peaks[0] / peaks[1]:.2f} of the peak memory"
        )
    text = "\n".join([*lines, "", *ratios])
    print(text)
    if arguments.record:
        head = (
            f"# Preparing and iterating {ROWS:,} interactions\n\n"
            f"`make bench-data`, {arguments.repeats} runs of each in turns, each in a process of its own. Prepare: "
            "read a CSV, filter to the 5-core, leave one out, store. Iterate: one epoch of batches, "
            f"n = {BATCH_SIZE}, L = {MAX_LENGTH}.\n\n{describe_machine()}\n\n"
        )
        arguments.record.write_text(head + text + "\n")


if __name__ == "__main__":
    main()
