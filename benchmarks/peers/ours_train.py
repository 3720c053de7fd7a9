"""Train budgetrec's SASRec on an interactions file, and time its evaluation when asked to.

The whole file is given, as `budgetrec prepare` leaves the last two rows of each user out by itself.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measuring import (
    BATCH_SIZE,
    BLOCKS,
    DIM,
    HEADS,
    MAX_LENGTH,
    NEGATIVES,
    Clock,
    parse_arguments,
    print_report,
)

import budgetrec
from budgetrec.ranking.metrics import per_user
from budgetrec.ranking.ranks import rank_targets
from budgetrec.training.tracking import Watcher


class Timer(Watcher):
    """The clock for our loop."""

    def __init__(self, warm_up_steps: int) -> None:
        self.clock = Clock(warm_up_steps)
        self.examples = self.targets = 0

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Start."""
        self.clock.begin()
        yield

    def step(self, *, examples: int, targets: int, **rest: Any) -> None:
        """Count a step."""
        self.clock.count(examples - self.examples, targets - self.targets)
        self.examples, self.targets = examples, targets


def train(asked: argparse.Namespace, folder: Path, dataset: budgetrec.Dataset, timer: Timer) -> Any:
    """Train without evaluations on the way."""
    return budgetrec.train(
        dataset,
        folder / "run",
        watcher=timer,
        dim=DIM,
        hidden_dim=DIM,
        num_blocks=BLOCKS,
        num_heads=HEADS,
        max_length=MAX_LENGTH,
        dropout=asked.dropout,
        num_negatives=NEGATIVES,
        sharing=asked.sharing,
        batch_size=BATCH_SIZE,
        table_updates="row-sparse" if asked.row_sparse else "auto",
        epochs=asked.epochs,
        steps=asked.steps,
        evaluate_every=10**9,
        validation_users=8,
        checkpoint_seconds=1e9,
        seed=asked.seed,
    )


def evaluate(run: Any, times: int) -> list[float]:
    """Time the ranking of the catalogue for all validation users, metrics and lists of ten included."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        ranking = rank_targets(run.model, run.dataset, run.dataset.validation(), list_length=10)
        per_user(ranking.ranks, [10])
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Train, measure, print."""
    parser = parse_arguments(__doc__)
    parser.add_argument("--sharing", choices=("batch", "sequence"), default="batch")
    parser.add_argument("--evaluate", type=int, default=0, metavar="TIMES", help="then time the evaluation")
    parser.add_argument("--row-sparse", action="store_true", help="touch only the rows of a step")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    timer = Timer(asked.warm_up_steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        dataset = budgetrec.prepare(asked.data, folder / "dataset")
        prepared = time.perf_counter() - start
        run = train(asked, folder, dataset, timer)
        found = {"prepare_seconds": prepared, **timer.clock.report()}
        if asked.evaluate:
            found["evaluate_seconds"] = evaluate(run, asked.evaluate)
            found["evaluate_users"] = len(dataset.validation())
    print_report(found, "budgetrec", "torch", "numpy", "polars")


if __name__ == "__main__":
    main()
