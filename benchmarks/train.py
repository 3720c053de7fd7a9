"""Seconds and peak bytes of an epoch of SASRec against RecTools and RePlay: `make bench-train`.

Every contender runs in a process and an environment of its own, one after the other, in rounds; medians are
compared. All train on the same rows (the last two of each user are left out) with windows of the last 201
items, in float32 on the CPU with the same threads. The clock starts after the first steps and runs through
the end of the last epoch, loading of batches and drawing of negatives included; reading and preparing data
is apart. Peak bytes are the largest resident size of the whole process (VmHWM), imports included. RecTools
and RePlay run with their own defaults but no validation, checkpoints, logger or progress bar; RePlay also
runs with the length buckets of its package, which its `from_params` leaves off. RePlay also predicts the
first item of a padded window, from padding: under 1% more targets. Dropout is 0.2 for all; RecTools and
RePlay also drop attention weights, for which torch has no fused kernel on a CPU, and ours does not, so
everyone but RecTools runs once more without any dropout.

Useful work counts what the model cannot do without: linear layers, attention products over the causal
triangle of valid positions, logits of one target and 128 negatives; a multiplication and an addition are two
operations, and the backward pass counts twice the forward pass. It is the same number for every contender,
set against the speed of a 2048 x 2048 x 2048 float32 multiplication measured in the same rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import movielens_like
import polars as pl
import torch
from machine import describe_machine

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from measuring import BATCH_SIZE, BLOCKS, DIM, HEADS, MAX_LENGTH, NEGATIVES

PEERS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parent.parent
CATALOGUES = {"K = 10^4": 10_000, "K = 10^6": 1_000_000}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A script, the environment that runs it, and the file it trains on."""

    name: str
    environment: str
    script: str
    data: str
    arguments: tuple[str, ...] = ()
    runs: list[dict[str, Any]] = field(default_factory=list)

    def run(self, folder: Path, *arguments: str, threads: int) -> None:
        """Run once and keep what it prints."""
        python = ROOT / self.environment / "bin" / "python"
        command = [
            str(python),
            str(PEERS / self.script),
            str(folder / self.data),
            *self.arguments,
            *arguments,
        ]
        settings = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name} failed:\n{done.stderr[-3000:]}")
        self.runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(self.name, done.stdout.splitlines()[-1], file=sys.stderr)

    def median(self, key: str) -> float:
        """Return the median over all runs, and over the repeats in each."""
        values = [run[key] for run in self.runs]
        return statistics.median(
            value for run in values for value in (run if isinstance(run, list) else [run])
        )


def list_contenders() -> list[Contender]:
    """Return all that train on the same rows, ours last; the arguments set how long each one runs."""
    train, whole = "train.parquet", "interactions.parquet"
    rectools = {"environment": ".venv-rectools", "script": "rectools_train.py", "data": train}
    replay = {"environment": ".venv-replay", "script": "replay_train.py", "data": train}
    ours = {"environment": ".venv", "script": "ours_train.py", "data": whole}
    few, more = ("--epochs", "1"), ("--epochs", "4")
    return [
        Contender(name="RecTools", **rectools, arguments=("--recommend", "2")),
        Contender(name="RePlay", **replay, arguments=few),
        Contender(name="RePlay, length buckets", **replay, arguments=(*few, "--buckets", "32")),
        Contender(
            name="budgetrec, shared", **ours, arguments=(*more, "--sharing", "batch", "--evaluate", "3")
        ),
        Contender(name="budgetrec, per sequence", **ours, arguments=(*more, "--sharing", "sequence")),
        Contender(name="RePlay, no dropout", **replay, arguments=("--dropout", "0")),
        Contender(
            name="RePlay, length buckets, no dropout",
            **replay,
            arguments=("--dropout", "0", "--buckets", "32"),
        ),
        Contender(
            name="budgetrec, per sequence, no dropout",
            **ours,
            arguments=("--epochs", "3", "--sharing", "sequence", "--dropout", "0"),
        ),
    ]


def list_catalogues() -> list[Contender]:
    """Return our training at two sizes of the catalogue, with the same sequences but for their items."""
    return [
        Contender(
            name=name,
            environment=".venv",
            script="ours_train.py",
            data=f"items-{num_items}.parquet",
            arguments=("--row-sparse",),
        )
        for name, num_items in CATALOGUES.items()
    ]


def write_data(folder: Path, data: Path | None) -> pl.Series:
    """Write the interactions and their training rows; give the valid positions of each user."""
    folder.mkdir(parents=True, exist_ok=True)
    interactions = pl.read_parquet(data) if data else movielens_like.generate()
    interactions = interactions.select("user", "item", "timestamp").sort(
        "user", "timestamp", maintain_order=True
    )
    interactions.write_parquet(folder / "interactions.parquet")
    train = interactions.filter(pl.int_range(pl.len()).reverse().over("user") >= 2)
    train.write_parquet(folder / "train.parquet")
    return (train.group_by("user").len()["len"].cast(pl.Int64) - 1).clip(upper_bound=MAX_LENGTH)


def check_work(one: Contender, positions: pl.Series) -> None:
    """Stop if a contender did not train all sequences, or left out targets."""
    run = one.runs[-1]
    epochs, rest = divmod(run["all_sequences"], len(positions))
    if rest or not 0 <= run["all_targets"] / (epochs * positions.sum()) - 1 < 0.01:
        found = f"{run['all_sequences']:,} sequences with {run['all_targets']:,} targets"
        raise SystemExit(f"{one.name} trained {found}, wanted {len(positions):,} with {positions.sum():,}")


def count_operations(positions: pl.Series) -> int:
    """Count the floating-point operations of one epoch over sequences of these numbers of positions."""
    linear = (
        BLOCKS * 2 * (4 * DIM * DIM + 2 * DIM * DIM)
    )  # query, key, value, output; feed-forward of width d
    attention = BLOCKS * 2 * (2 * DIM)  # products with keys and with values, for each pair in the triangle
    logits = 2 * DIM * (1 + NEGATIVES)
    pairs = (positions * (positions + 1) // 2).sum()
    return 3 * (positions.sum() * (linear + logits) + pairs * attention)


def measure_multiply(size: int = 2048, repeats: int = 9) -> float:
    """Return floating-point operations a second of a matrix multiplication."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    out = left @ right
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def tabulate(contenders: list[Contender], positions: pl.Series, multiply: list[float]) -> list[str]:
    """Return one line of Markdown for each contender."""
    peak = statistics.median(multiply)
    operations = count_operations(positions)
    padding = 1 - positions.mean() / MAX_LENGTH
    speeds = ", ".join(f"{one / 1e9:,.0f}" for one in multiply)
    lines = [
        f"An epoch is {len(positions):,} sequences, {positions.sum():,} targets and {operations / 1e9:,.0f} "
        f"billion operations of useful work; {padding:.0%} of n x L positions would be padding. The "
        f"multiplication runs at {peak / 1e9:,.0f} billion operations a second (in the rounds: {speeds}).",
        "",
        "| contender | s an epoch | in the rounds | sequences/s | share of the multiply peak | peak MB "
        "| in training | s to prepare |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in contenders:
        speed = one.median("sequences_per_second")
        rounds = ", ".join(f"{len(positions) / run['sequences_per_second']:,.1f}" for run in one.runs)
        share = operations * speed / len(positions) / peak
        whole, training = (one.median(key) / 1e6 for key in ("peak_bytes", "training_peak_bytes"))
        lines.append(
            f"| {one.name} | {len(positions) / speed:,.1f} | {rounds} | {speed:,.0f} | {share:.1%} "
            f"| {whole:,.0f} | {training:,.0f} | {one.median('prepare_seconds'):.1f} |"
        )
    return lines


def tabulate_bars(contenders: list[Contender], catalogues: list[Contender]) -> list[str]:
    """Return the ratios that the project asks of itself, for those that ran."""
    found = {one.name: one for one in (*contenders, *catalogues) if one.runs}
    lines = ["| bar | wanted | measured |", "|---|---|---|"]
    ours = [one for name, one in found.items() if name.startswith("budgetrec")]
    wanted = {
        "RecTools": "at least 10",
        "RePlay": "at least 3.5",
        "RePlay, length buckets": "no bar",
        "RePlay, no dropout": "no bar",
        "RePlay, length buckets, no dropout": "no bar",
    }
    for name, least in wanted.items():
        alike = [one for one in ours if one.name.endswith("no dropout") == name.endswith("no dropout")]
        for one in alike if name in found else ():
            faster = one.median("sequences_per_second") / found[name].median("sequences_per_second")
            smaller = one.median("peak_bytes") / found[name].median("peak_bytes")
            lines.append(f"| sequences/s of {one.name} over {name} | {least} | {faster:.1f} |")
            lines.append(f"| peak bytes of {one.name} over {name} | less than 1 | {smaller:.2f} |")
    evaluated = next((one for one in ours if "evaluate_seconds" in one.runs[0]), None)
    if evaluated and "RecTools" in found:
        theirs = found["RecTools"]
        recommend, prepare = theirs.median("recommend_seconds"), theirs.median("recommend_prepare_seconds")
        own = evaluated.median("evaluate_seconds")
        lines.append(f"| speed of evaluation over RecTools' recommend | at least 2 | {recommend / own:.1f} |")
        apart = f"| the same, without the making of its sequences | - | {(recommend - prepare) / own:.1f} |"
        lines.append(apart)
    if all(name in found for name in CATALOGUES):
        small, large = (1 / found[name].median("sequences_per_second") for name in CATALOGUES)
        lines.append(f"| seconds a step at K = 10^6 over K = 10^4 | at most 1.5 | {large / small:.2f} |")
    return lines if len(lines) > 2 else []


def tabulate_evaluation(contenders: list[Contender]) -> list[str]:
    """Return the seconds of ranking the catalogue for every user, for those that ran it."""
    lines = ["| ranking all users, cut-off 10, seen removed | s | of which making sequences | users |"]
    lines.append("|---|---|---|---|")
    for one in contenders:
        if one.runs and "recommend_seconds" in one.runs[0]:
            whole, apart = one.median("recommend_seconds"), one.median("recommend_prepare_seconds")
            users = one.runs[0]["recommend_users"]
            lines.append(f"| {one.name} `recommend` | {whole:.2f} | {apart:.2f} | {users:,} |")
        if one.runs and "evaluate_seconds" in one.runs[0]:
            users = one.runs[0]["evaluate_users"]
            lines.append(
                f"| {one.name}, metrics included | {one.median('evaluate_seconds'):.2f} | | {users:,} |"
            )
    return lines if len(lines) > 2 else []


def main() -> None:
    """Run all contenders in rounds, print the tables and record them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="parquet of user, item, timestamp; generated when not given"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/bench-train"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="at most this many steps an epoch, for a rough look")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders whose names begin so")
    parser.add_argument("--record", type=Path, help="write the result to this Markdown file")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    positions = write_data(asked.folder, asked.data)
    contenders, catalogues = list_contenders(), list_catalogues()
    if asked.only:
        contenders = [one for one in contenders if one.name.startswith(tuple(asked.only))]
        catalogues = [one for one in catalogues if one.name.startswith(tuple(asked.only))]
    for name, num_items in CATALOGUES.items():
        if any(one.name == name for one in catalogues):
            movielens_like.deal(num_items).write_parquet(asked.folder / f"items-{num_items}.parquet")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"the load is {load:.1f}: two threads that wait for each other lose most of all", file=sys.stderr
        )
    machine = describe_machine()
    limit = ("--steps", str(asked.steps)) if asked.steps else ()
    multiply = []
    for _ in range(asked.rounds):
        multiply.append(measure_multiply())
        for one in (*contenders, *catalogues):
            one.run(asked.folder, "--threads", str(asked.threads), *limit, threads=asked.threads)
        for one in () if asked.steps else contenders:
            check_work(one, positions)
    tables = [
        tabulate(contenders, positions, multiply),
        tabulate_evaluation(contenders),
        tabulate_bars(contenders, catalogues),
    ]
    text = "\n\n".join("\n".join(lines) for lines in tables if lines)
    print(text)
    if asked.record:
        versions = {name: version for one in contenders for name, version in one.runs[0]["versions"].items()}
        peers = ", ".join(
            f"{name} {versions[name]}" for name in ("rectools", "replay-rec") if name in versions
        )
        source = asked.data.name if asked.data else "generated by benchmarks/movielens_like.py"
        method = "\n\n".join(" ".join(part.split()) for part in __doc__.split("\n\n")[1:])
        settings = f"n = {BATCH_SIZE}, L = {MAX_LENGTH}, d = {DIM}, {BLOCKS} blocks, {HEADS} heads, "
        settings += f"{NEGATIVES} negatives, {asked.threads} threads, {asked.rounds} rounds; data: {source}."
        asked.record.write_text(
            f"# Training SASRec\n\n{settings}\n\n`make bench-train`. {machine} Peers: {peers}.\n\n"
            f"{method}\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
