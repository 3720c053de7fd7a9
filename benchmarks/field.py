"""The planned allocation against the field, with the same bytes and the same seconds: `make bench-field`.

`run` plans each dataset once, writes down what the law predicts of every allocation, and trains them, each in
a process of its own with one thread: three learning rates on seed 0, then two more seeds with the best of
them. The field is the plan; the paper's (32, 512), (64, 256) and (128, 128) with one set of negatives for
the batch; the largest batch that fits with one negative a target; and one sequence with the most negatives
that fit. An interrupted comparison goes on where it was. `summarise` makes tables and a figure of what has
finished so far, and says what is missing.

Evaluation does not count into the seconds of training. With several workers each has a core of its own; other
work on the machine changes what is measured.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, BudgetrecError
from budgetrec.planner.making import plan_with_search
from budgetrec.study.engine.outputs import write_study
from budgetrec.study.field.pages import describe_field, draw_field
from budgetrec.study.field.results import summarise_field
from budgetrec.study.field.study import (
    DONE,
    PREDICTED_FILE,
    Allocation,
    Cell,
    evaluation_spacing,
    list_field,
    open_cells,
    read_finished,
    read_predicted,
    train_field,
    write_predicted,
)
from budgetrec.units import parse_bytes

VALIDATION_USERS = 2000
EVALUATION_GROWTH = 0.15  # the fastest allocation sees a hundred times as many sequences as the slowest
_DIVERGED = "became NaN or infinite"  # in the message of a run whose learning rate was too large
_MAX_LENGTH = 200
TERMS_FILE = "terms.json"


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A dataset, its allocations and what all of them are trained with."""

    name: str
    data: Path
    allocations: dict[str, Allocation]
    options: tuple[str, ...]

    def command(self, cell: Cell, folder: Path) -> list[str]:
        """Return the command that trains a run."""
        settings = {**self.allocations[cell.allocation].settings}
        settings |= {"learning_rate": f"{cell.learning_rate:g}", "seed": cell.seed}
        return [
            *(sys.executable, "-m", "budgetrec", "train", str(self.data)),
            *("--output", str(folder), "--overwrite", *self.options),
            *(word for name, value in settings.items() for word in flag(name, value)),
        ]


def flag(name: str, value: object) -> list[str]:
    """Write a setting as a flag."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{words}" if value else f"--no-{words}"]
    return [f"--{words}", str(value)]


def prepare_contest(name: str, data: Path, asked: argparse.Namespace) -> Contest:
    """Plan a dataset, unless an earlier run did, and settle what all of its runs are trained with."""
    folder = asked.output / name
    folder.mkdir(parents=True, exist_ok=True)
    max_length = dict(asked.max_length).get(name, _MAX_LENGTH)
    dataset = Dataset.open(data)
    refuse_other_terms(
        folder / TERMS_FILE,
        {
            "dataset": dataset.identity,
            "memory": asked.memory,
            "seconds": asked.seconds,
            "max_length": max_length,
        },
    )
    if not (folder / PREDICTED_FILE).is_file():
        planned = plan_with_search(
            dataset,
            memory=asked.memory,
            max_length=max_length,
            threads=1,
            report=lambda stage: tell(f"{name}: {stage}"),
        )
        planned.plan.write(folder / "plan.toml")
        write_predicted(list_field(planned), folder / PREDICTED_FILE)
    allocations = read_predicted(folder / PREDICTED_FILE)
    batches = TrainingBatches(dataset, batch_size=1, max_length=max_length)
    spacing = dict(asked.evaluate_every).get(name) or evaluation_spacing(
        allocations, seconds=asked.seconds, num_sequences=batches.num_sequences
    )
    for each in allocations:
        seen = each.examples_in(asked.seconds)
        tell(f"{name} {each.allocation}: about {seen:,.0f} sequences, the first evaluated after {spacing:,}")
    settings = {"threads": 1, "seconds": asked.seconds, "memory": asked.memory, "evaluate_every": spacing}
    settings |= {"evaluation_growth": EVALUATION_GROWTH}
    settings |= {"validation_users": VALIDATION_USERS, "max_length": max_length}
    return Contest(
        name=name,
        data=data,
        allocations={each.allocation: each for each in allocations},
        options=tuple(word for key, value in settings.items() for word in flag(key, value)),
    )


def refuse_other_terms(path: Path, terms: dict[str, object]) -> None:
    """See that a comparison goes on as it began, or write down how it begins."""
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))
        for name, value in terms.items():
            if (begun := before.get(name)) != value:
                raise ArgumentError(
                    f"{path.parent} was begun with {name} {begun}, not {value}. Pass another --output."
                )
    path.write_text(json.dumps(terms) + "\n", "utf-8")


def train(command: list[str], folder: Path) -> bool:
    """Train a run and mark it as done; say whether it is. One that diverged is done too."""
    begin = time.monotonic()
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    told = " ".join((ended.stdout if ended.returncode == 0 else ended.stderr[-1000:]).split())
    tell(f"{folder.name}, {time.monotonic() - begin:.0f} s: {told}")
    diverged = ended.returncode != 0 and _DIVERGED in told
    if ended.returncode == 0 or diverged:
        reason = told[told.find("the loss became") :] + "\n" if diverged else ""
        (folder / DONE).write_text(reason, "utf-8")
    return ended.returncode == 0 or diverged


def run(asked: argparse.Namespace) -> int:
    """Plan, then train everything that has not finished."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= asked.workers <= len(cores):
        raise SystemExit(
            f"--workers is {asked.workers}, and there are {len(cores)} cores. Pass 1 to so many."
        )
    if os.getloadavg()[0] > 0.5:
        tell(f"the load is {os.getloadavg()[0]:.1f}: seconds are those of a busy machine")
    parse_bytes(asked.memory)
    contests = {name: prepare_contest(name, data, asked) for name, data in asked.data}
    runs = asked.output / "runs"
    runs.mkdir(exist_ok=True)

    def remaining() -> list[Cell]:
        finished = read_finished(runs)
        return [
            cell
            for contest in contests.values()
            for name in contest.allocations
            for cell in open_cells(contest.name, name, finished)
        ]

    def train_cell(cell: Cell) -> bool:
        return train(contests[cell.dataset].command(cell, runs / cell.name), runs / cell.name)

    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores:
        free.put(core)
    with ThreadPoolExecutor(asked.workers, initializer=lambda: os.sched_setaffinity(0, {free.get()})) as pool:
        failed = train_field(remaining, train_cell, executor=pool, workers=asked.workers)
    for cell in failed:
        tell(f"{cell.name} failed and is not done; run again to try it again")
    return 1 if failed else 0


def summarise(asked: argparse.Namespace) -> int:
    """Write tables and the figure of what has finished; files of other names stay."""
    results = summarise_field(asked.folder)
    text = describe_field(results)
    asked.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.output, prefix=".partial-") as partial:
        folder = Path(partial)
        tables = {"results": results.runs, "summary": results.summary, "verdicts": results.verdicts}
        tables |= {
            "correlations": results.correlations,
            "pairs": results.pairs,
            "predicted": results.predicted,
        }
        names = write_study(
            folder,
            settings={"study": "field", "horizons": results.horizons, "notes": results.notes},
            tables={name: table for name, table in tables.items() if len(table)},
            charts={"curves": draw_field(results)},
        )
        (folder / "summary.md").write_text(text, "utf-8")
        for name in (*names, "summary.md"):
            (folder / name).replace(asked.output / name)
    print(text)
    return 0


def tell(sentence: str) -> None:
    """Write progress."""
    print(sentence, file=sys.stderr, flush=True)


def named(kind: Callable[[str], object]) -> Callable[[str], tuple[str, object]]:
    """Read NAME=VALUE."""

    def parse(text: str) -> tuple[str, object]:
        name, sign, value = text.partition("=")
        if not (name and sign and value) or "/" in name:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return name, kind(value)

    parse.__name__ = "NAME=VALUE"
    return parse


def main() -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="plan and train; goes on where it was")
    runner.add_argument("--data", type=named(Path), action="append", required=True, metavar="NAME=DATASET")
    runner.add_argument("--memory", default="512MiB", help="what training may add to the process")
    runner.add_argument("--seconds", type=float, default=120.0, help="of training, a run")
    runner.add_argument("--output", "-o", type=Path, required=True)
    lengths = {"type": named(int), "action": "append", "default": []}
    runner.add_argument("--max-length", **lengths, metavar="NAME=ITEMS", help="items of a sequence")
    runner.add_argument(
        "--evaluate-every",
        **lengths,
        metavar="NAME=SEQUENCES",
        help="half an epoch, or less so that the slowest allocation has 15 evaluations, if not given",
    )
    runner.add_argument("--workers", type=int, default=1, help="runs at a time, each on a core of its own")
    runner.set_defaults(call=run)
    reader = commands.add_parser("summarise", help="tables and a figure of what has finished")
    reader.add_argument("folder", type=Path, metavar="DIR", help="the --output of run")
    reader.add_argument("--output", "-o", type=Path, required=True)
    reader.set_defaults(call=summarise)
    asked = parser.parse_args()
    try:
        return int(asked.call(asked))
    except BudgetrecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
