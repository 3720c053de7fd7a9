"""Prepare a MovieLens-20M-shaped CSV, and iterate over it, against the same work written plainly.

Every contender runs in a process of its own, one after the other, in turns; the medians are compared. Peak
memory is the largest resident size of the process. `make bench-data` runs it and records the result.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
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


def prepare_with_budgetrec(folder: Path) -> Callable[[], None]:
    """Read, filter to the 5-core, leave one out, store."""
    import budgetrec

    prepare = budgetrec.prepare
    cleaning = budgetrec.Cleaning(min_user=5, min_item=5)

    def run() -> None:
        prepare(folder / "ratings.csv", folder / "budgetrec", cleaning=cleaning, overwrite=True)

    return run


def prepare_with_pandas(folder: Path) -> Callable[[], None]:
    """Do the same as most people write it."""
    import numpy as np
    import pandas as pd

    out = folder / "pandas"
    out.mkdir(exist_ok=True)

    def run() -> None:
        ratings = pd.read_csv(folder / "ratings.csv")
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
        np.save(out / "train.npy", train["item"].to_numpy(np.int32))
        np.save(out / "offsets.npy", np.concatenate([[0], np.cumsum(train.groupby("user").size())]))
        np.save(out / "validation.npy", validation["item"].to_numpy(np.int32))
        np.save(out / "test.npy", test["item"].to_numpy(np.int32))
        pd.DataFrame({"user": users}).to_parquet(out / "users.parquet")
        pd.DataFrame({"item": items}).to_parquet(out / "items.parquet")

    return run


def iterate_with_budgetrec(folder: Path) -> Callable[[], None]:
    """Go through one epoch of batches."""
    import torch

    import budgetrec

    dataset = budgetrec.Dataset.open(folder / "budgetrec")
    batches = budgetrec.TrainingBatches(dataset, batch_size=BATCH_SIZE, max_length=MAX_LENGTH)

    def run() -> None:
        count = sum(1 for _ in batches.epoch(torch.Generator().manual_seed(0)))
        check(count)

    return run


def iterate_with_dataloader(folder: Path) -> Callable[[], None]:
    """Do the same with a Dataset that gives one sequence, and a collate function that pads."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader

    import budgetrec

    dataset = budgetrec.Dataset.open(folder / "budgetrec")
    items = dataset.items.__array__()
    begins, ends = (places.tolist() for places in dataset.train_ranges())

    class Sequences(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(begins)

        def __getitem__(self, index: int) -> torch.Tensor:
            window = items[max(begins[index], ends[index] - MAX_LENGTH - 1) : ends[index]]
            return torch.tensor(window, dtype=torch.long)

    def collate(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        padded = pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        mask = torch.arange(padded.shape[1] - 1) < lengths[:, None] - 1
        return padded[:, :-1], padded[:, 1:], mask

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(
            Sequences(), batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate, generator=generator
        )
        check(sum(1 for _ in loader))

    return run


def check(num_batches: int) -> None:
    """Stop if a contender left out work."""
    if num_batches != -(-USERS // BATCH_SIZE):
        raise SystemExit(f"expected {-(-USERS // BATCH_SIZE)} batches, saw {num_batches}")


CONTENDERS = {
    "prepare": {"budgetrec": prepare_with_budgetrec, "pandas": prepare_with_pandas},
    "iterate": {"budgetrec": iterate_with_budgetrec, "DataLoader": iterate_with_dataloader},
}


def measure_one(work: str, contender: str, folder: Path) -> None:
    """Set one contender up in this process, run it, and print its seconds and peak memory."""
    run = CONTENDERS[work][contender](folder)
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    # VmHWM starts again with the process; getrusage would inherit the peak of the one that started it.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({"seconds": seconds, "peak_mib": int(status["VmHWM"].split()[0]) / 1024}))


def main() -> None:
    """Run all contenders in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/bench-data"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the result to this Markdown file")
    parser.add_argument("--one", nargs=2, metavar=("WORK", "CONTENDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(*arguments.one, arguments.folder)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    source = arguments.folder / "ratings.csv"
    if not source.exists():
        print(f"generating {ROWS:,} rows", file=sys.stderr)
        generate(source)
    lines = ["| work | contender | seconds, median | all runs | peak MiB |", "|---|---|---|---|---|"]
    ratios = []
    for work, contenders in CONTENDERS.items():
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(arguments.repeats):
            for name in contenders:
                command = [sys.executable, __file__, "--folder", str(arguments.folder), "--one", work, name]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                runs[name].append(json.loads(done.stdout))
        medians = {
            name: {key: statistics.median(run[key] for run in own) for key in own[0]}
            for name, own in runs.items()
        }
        for name, own in runs.items():
            every = ", ".join(f"{run['seconds']:.2f}" for run in own)
            median = medians[name]
            lines.append(
                f"| {work} | {name} | {median['seconds']:.3f} | {every} | {median['peak_mib']:,.0f} |"
            )
        ours, theirs = medians.values()
        ratios.append(
            f"- {work}: {theirs['seconds'] / ours['seconds']:.1f} times as fast, "
            f"{ours['peak_mib'] / theirs['peak_mib']:.2f} of the peak memory"
        )
    text = "\n".join([*lines, "", *ratios])
    print(text)
    if arguments.record:
        head = (
            f"# Preparing and iterating {ROWS:,} interactions\n\n"
            f"`make bench-data`: {arguments.repeats} runs of each in turns, each in a process of its own; "
            "imports and opening files are not counted, peak memory is of the whole process. "
            "Prepare: read a CSV, filter to the 5-core, leave one out, store. "
            f"Iterate: one epoch of batches, n = {BATCH_SIZE}, L = {MAX_LENGTH}.\n\n"
            f"{describe_machine()}\n\n"
        )
        arguments.record.write_text(head + text + "\n")


if __name__ == "__main__":
    main()
