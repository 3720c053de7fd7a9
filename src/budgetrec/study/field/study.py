"""The plan against the field: which allocations are compared, and which runs are still to be trained.

The learning rate of an allocation is chosen from three on the first seed, by the mean validation loss over
the seconds that all three reached; the other seeds are trained with it.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from budgetrec.errors import DataError
from budgetrec.evaluation.curves import common_horizons, summarise_curve
from budgetrec.files import write_whole
from budgetrec.planner.making import Planned
from budgetrec.planner.record import NOISE, Plan
from budgetrec.planner.search import Choice, Search, ladder
from budgetrec.runs.layout import MARKER, METRICS_FILE
from budgetrec.settings.sections import RunConfig, read_toml

LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2)
PAPER = ((32, 512), (64, 256), (128, 128))
LARGEST, SMALLEST = "largest-batch", "smallest-batch"
STANDARD = (*(f"paper-{n}-{k}" for n, k in PAPER), LARGEST, SMALLEST)  # all but the plan
DONE = "done"
PREDICTED_FILE = "predicted.csv"


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One way to spend the bytes, with all that the plan's law and measurements predict of it."""

    allocation: str
    batch_size: int
    num_negatives: int
    sharing: str
    objective: str
    lean: bool
    table_updates: str
    micro_batches: int | None
    predicted_bytes: int
    step_seconds: float
    example: float
    shared_class: float
    target_class: float
    bias: float
    noise: float
    score: float

    @classmethod
    def of(cls, name: str, choice: Choice, search: Search) -> Self:
        """Write down what is predicted of a choice."""
        kind = choice.kind
        noise = search.noise(kind, choice.batch_size, choice.num_negatives)
        return cls(
            allocation=name,
            batch_size=choice.batch_size,
            num_negatives=choice.num_negatives,
            sharing=kind.sharing,
            objective=kind.objective,
            lean=kind.lean,
            table_updates=kind.table_updates,
            micro_batches=kind.micro_batches,
            predicted_bytes=round(choice.bytes),
            step_seconds=choice.seconds,
            noise=choice.noise,
            score=choice.score,
            **{part: float(getattr(noise, part)) for part in NOISE},
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What training has to be told, by the names of its settings."""
        names = ["batch_size", "objective", "lean", "table_updates"]
        names += [] if self.objective == "full-softmax" else ["num_negatives", "sharing"]
        names += [] if self.micro_batches is None else ["micro_batches"]
        return {name: getattr(self, name) for name in names}

    def examples_in(self, seconds: float) -> float:
        """Predict how many sequences are seen."""
        return self.batch_size * seconds / self.step_seconds


def list_field(planned: Planned) -> list[Allocation]:
    """Return the plan, the paper's three, the largest batch with k = 1 and one sequence with the largest k.

    The paper's share one set of negatives; with k = 1 each target has its own, as its proof assumes. Each is
    taken in the way that costs least of those that fit, and left out if none does.
    """
    search, plan = planned.search, planned.plan
    found: list[tuple[str, Choice | None]] = [(plan_name(plan), _choice_of(plan, search))]
    for n, k in PAPER:
        possible = n <= search.max_batch_size and k < search.num_items
        found.append((f"paper-{n}-{k}", _cheapest(search, n, k, "batch") if possible else None))
    found.append((LARGEST, _first(_cheapest(search, n, 1, "target") for n in _down(search.max_batch_size))))
    found.append((SMALLEST, _first(_cheapest(search, 1, k, "sequence") for k in _down(search.num_items - 1))))
    return [Allocation.of(name, choice, search) for name, choice in found if choice is not None]


def plan_name(plan: Plan) -> str:
    """Name the plan's allocation, as in planned-240-1920-batch or planned-full-7."""
    if plan.objective == "full-softmax":
        return f"planned-full-{plan.batch_size}"
    return f"planned-{plan.batch_size}-{plan.num_negatives}-{plan.sharing}"


def _choice_of(plan: Plan, search: Search) -> Choice:
    kind = next(
        dataclasses.replace(kind, micro_batches=plan.micro_batches)
        for kind in search.kinds
        if (kind.objective, kind.sharing, kind.lean, kind.table_updates)
        == (plan.objective, plan.sharing, plan.lean, plan.table_updates)
    )
    return search.choice(kind, plan.batch_size, plan.num_negatives)


def _cheapest(search: Search, n: int, k: int, sharing: str) -> Choice | None:
    """Return the way to draw for such a step that fits and has the lowest score."""
    kinds = [kind for kind in search.kinds if kind.sharing == sharing and not kind.full]
    fitting = [choice for kind in kinds if (choice := search.choice(kind, n, k)).bytes <= search.limit]
    return min(fitting, key=lambda choice: choice.score, default=None)


def _down(most: int) -> list[int]:
    return [int(number) for number in ladder(most)[::-1]] if most > 0 else []


def _first(choices: Iterable[Choice | None]) -> Choice | None:
    return next((choice for choice in choices if choice is not None), None)


def write_predicted(allocations: Sequence[Allocation], path: Path) -> None:
    """Write a row an allocation, whole or not at all."""
    frame = pl.DataFrame([dataclasses.asdict(each) for each in allocations], infer_schema_length=None)
    write_whole(path, lambda partial: partial.write_text(frame.write_csv(), "utf-8"))


def read_predicted(path: Path) -> list[Allocation]:
    """Read what `write_predicted` wrote."""
    try:
        frame = pl.read_csv(path, schema_overrides={"micro_batches": pl.Int64})
        return [Allocation(**row) for row in frame.iter_rows(named=True)]
    except (OSError, pl.exceptions.PolarsError, TypeError) as error:
        raise DataError(f"{path} holds no predictions of a field: {error}. Plan it again.") from error


def evaluation_spacing(
    allocations: Sequence[Allocation], *, seconds: float, num_sequences: int, evaluations: int = 15
) -> int:
    """Return sequences between evaluations: half an epoch, or less where the slowest would see too few.

    The slowest is the allocation that is predicted to see the fewest sequences.
    """
    slowest = min(each.examples_in(seconds) for each in allocations)
    return max(1, min(num_sequences // 2, int(slowest / evaluations)))


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    dataset: str
    allocation: str
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """What its folder is called.

        >>> Cell("ml1m", "paper-32-512", 0.001, 0).name
        'ml1m-paper-32-512-lr0.001-s0'
        """
        return f"{self.dataset}-{self.allocation}-lr{self.learning_rate:g}-s{self.seed}"

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Read a folder's name; None if it is of no allocation of a field."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(match["dataset"], match["allocation"], float(match["rate"]), int(match["seed"]))


_NAME = re.compile(
    rf"(?P<dataset>.+?)-(?P<allocation>planned-.+|paper-\d+-\d+|{LARGEST}|{SMALLEST})"
    r"-lr(?P<rate>[\d.]+(?:e[+-]?\d+)?)-s(?P<seed>\d+)"
)


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run that will not be trained again; `failure` says why it ended early, if it did."""

    cell: Cell
    config: RunConfig
    metrics: pl.DataFrame
    failure: str | None = None


def read_finished(runs: Path) -> dict[Cell, FinishedRun]:
    """Read the runs of a field that have the file `done`, which holds why a run failed, or nothing."""
    found = {}
    for marker in sorted(runs.glob(f"*/{DONE}")):
        folder = marker.parent
        cell = Cell.of(folder.name)
        if cell is not None:
            found[cell] = _read(cell, folder, marker.read_text("utf-8").strip())
    return found


def _read(cell: Cell, folder: Path, failure: str) -> FinishedRun:
    document = read_toml(folder / MARKER)
    sections = {name: value for name, value in document.items() if name in RunConfig().to_dict()}
    config = RunConfig.from_dict(sections, str(folder / MARKER))
    try:
        metrics = pl.read_parquet(folder / METRICS_FILE)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{folder / METRICS_FILE} cannot be read: {error}. Remove the run.") from error
    wanted, reached = config.training.seconds or 0.0, float(metrics["seconds"][-1])
    if not failure and reached < wanted:
        failure = f"ended after {reached:.0f} of {wanted:.0f} s"
    return FinishedRun(cell=cell, config=config, metrics=metrics, failure=failure or None)


def choose_learning_rate(curves: Mapping[float, pl.DataFrame]) -> float | None:
    """Return the learning rate with the lowest mean loss over seconds; None if there are no curves."""
    if not curves:
        return None
    horizons = common_horizons(list(curves.values()))
    losses = {
        rate: summarise_curve(curve, horizons)["mean_loss_over_seconds"] for rate, curve in curves.items()
    }
    return min(losses, key=lambda rate: losses[rate])


def chosen_rate(dataset: str, allocation: str, finished: Mapping[Cell, FinishedRun]) -> float | None:
    """Choose the learning rate of an allocation from what has finished of its first seed."""
    first = {rate: finished.get(Cell(dataset, allocation, rate, SEEDS[0])) for rate in LEARNING_RATES}
    return choose_learning_rate(
        {rate: run.metrics for rate, run in first.items() if run is not None and run.failure is None}
    )


def open_cells(dataset: str, allocation: str, finished: Mapping[Cell, FinishedRun]) -> list[Cell]:
    """List the runs of an allocation that can be trained now: other seeds wait for the learning rate."""
    first = [Cell(dataset, allocation, rate, SEEDS[0]) for rate in LEARNING_RATES]
    missing = [cell for cell in first if cell not in finished]
    rate = chosen_rate(dataset, allocation, finished)
    if missing or rate is None:
        return missing
    others = [Cell(dataset, allocation, rate, seed) for seed in SEEDS[1:]]
    return [cell for cell in others if cell not in finished]


def train_field(
    remaining: Callable[[], Iterable[Cell]],
    train: Callable[[Cell], bool],
    *,
    executor: Executor,
    workers: int,
) -> list[Cell]:
    """Train until nothing remains; `train` says whether a run is done, and those that are not are given back.

    `remaining` is asked again whenever a run has ended, as what follows depends on it.
    """
    running: dict[Future[bool], Cell] = {}
    failed: list[Cell] = []
    while True:
        taken = {*running.values(), *failed}
        for cell in _first_few((each for each in remaining() if each not in taken), workers - len(running)):
            running[executor.submit(train, cell)] = cell
        if not running:
            return failed
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            cell = running.pop(future)
            if not future.result():
                failed.append(cell)


def _first_few(cells: Iterator[Cell], count: int) -> list[Cell]:
    return [cell for cell, _ in zip(cells, range(count), strict=False)]
