"""The planned allocation against the field, with the same bytes and the same seconds: `make bench-field`.

`run` plans each dataset once, writes down what the law predicts of every allocation, and trains them as cells
of a study, one at a time and with one thread: three learning rates on seed 0, then two more seeds with the
best of them. The field is the plan; the paper's (32, 512), (64, 256) and (128, 128) with one set of negatives
for the batch; the largest batch that fits with one negative per target; and one sequence with the most
negatives that fit. An interrupted comparison continues where it was. `summarise` makes tables and a figure of
what has finished so far, and says what is missing.

Evaluation does not count into the seconds of training. With several workers each is a process with one
thread; other work on the machine changes what is measured.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import BudgetrecError
from budgetrec.study.engine.frame import PAGE, PLANS, begin_folder, write_findings
from budgetrec.study.engine.grid import Grid, run_stages
from budgetrec.study.engine.outputs import MARKER, write_marker
from budgetrec.study.engine.workers import Idle, running
from budgetrec.study.field.contenders import evaluation_spacing, plan_field, read_predicted, write_predicted
from budgetrec.study.field.design import Field, stages
from budgetrec.study.field.findings import describe
from budgetrec.units import parse_bytes

VALIDATION_USERS = 2000
EVALUATION_GROWTH = 0.15  # the fastest allocation sees a hundred times as many sequences as the slowest
_MAX_LENGTH = 200
PREDICTED = f"{PLANS}/predicted.csv"
SETTINGS = ("memory", "seconds", "max_length", "evaluate_every")  # of the runs, in the marker of a folder


def begin_field(name: str, data: Path, asked: argparse.Namespace) -> None:
    """Plan a dataset, unless an earlier run did, and settle what all of its runs are trained with."""
    folder, dataset = asked.output / name, Dataset.open(data)
    max_length = dict(asked.max_length).get(name, _MAX_LENGTH)
    terms = {"study": "field", "dataset": dataset.identity, "memory": asked.memory}
    terms |= {"seconds": asked.seconds, "max_length": max_length}
    begin_folder(folder, terms, overwrite=False)
    (folder / PLANS).mkdir(exist_ok=True)
    if not (folder / PREDICTED).is_file():
        contenders = plan_field(
            dataset,
            folder / PLANS,
            memory=asked.memory,
            max_length=max_length,
            report=lambda stage: tell(f"{name}: {stage}"),
        )
        write_predicted(contenders, folder / PREDICTED)
    contenders = read_predicted(folder / PREDICTED)
    batches = TrainingBatches(dataset, batch_size=1, max_length=max_length)
    spacing = dict(asked.evaluate_every).get(name) or evaluation_spacing(
        contenders, seconds=asked.seconds, num_sequences=batches.num_sequences
    )
    for each in contenders:
        seen = each.examples_in(asked.seconds)
        tell(f"{name} {each.name}: about {seen:,.0f} sequences, the first evaluated after {spacing:,}")
    write_marker(folder, {**terms, "evaluate_every": spacing})


def open_field(folder: Path, data: Path | None = None) -> Field:
    """Read a field that was begun; `data` is needed to train."""
    begun = json.loads((folder / MARKER).read_text("utf-8"))
    return Field(
        name=folder.name,
        dataset=begun["dataset"],
        place="" if data is None else str(data.resolve()),
        contenders=read_predicted(folder / PREDICTED),
        settings={
            **{name: begun[name] for name in SETTINGS},
            "evaluation_growth": EVALUATION_GROWTH,
            "validation_users": VALIDATION_USERS,
        },
    )


def run(asked: argparse.Namespace) -> int:
    """Plan, then train everything that has not finished."""
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    if not 1 <= asked.workers <= cores:
        raise SystemExit(f"--workers is {asked.workers}, and there are {cores} cores. Pass 1 to {cores}.")
    if os.getloadavg()[0] > 0.5:
        tell(f"the load is {os.getloadavg()[0]:.1f}: seconds are those of a busy machine")
    parse_bytes(asked.memory)
    for name, data in asked.data:
        begin_field(name, data, asked)
    failed = 0
    with running(workers=asked.workers if asked.workers > 1 else None) as engine:
        for name, data in asked.data:
            folder, done = asked.output / name, 0

            def progress(more: int, name: str = name) -> None:
                nonlocal done
                done += more
                tell(f"{name}: {done} runs are done")

            grid = Grid(folder, engine, progress)
            run_stages(stages(open_field(folder, data)), grid)
            failed += len(grid.failures)
            for key, failure in grid.failures.items():
                tell(f"{name}: cell {key} failed and is not done ({failure.reason}); run again to try again")
    return 1 if failed else 0


def summarise(asked: argparse.Namespace) -> int:
    """Write tables and the figure of what has finished; files of other names stay."""
    folders = [path.parent for path in sorted(asked.folder.glob(f"*/{MARKER}"))]
    found = [
        run_stages(stages(open_field(folder)), Grid(folder, Idle(), lambda more: None))
        for folder in folders
        if (folder / PREDICTED).is_file()
    ]
    findings = describe(found)
    asked.output.mkdir(parents=True, exist_ok=True)
    write_findings(asked.output, {"study": "field"}, findings, {})
    print((asked.output / PAGE).read_text("utf-8"))
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
    runner = commands.add_parser("run", help="plan and train; continues where it stopped")
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
    runner.add_argument("--workers", type=int, default=1, help="runs at a time, each in a process")
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
