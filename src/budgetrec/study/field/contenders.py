"""Who competes: the plan, the paper's allocations and the extremes that fit, each with its prediction."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from budgetrec.allocation import Allocation
from budgetrec.data.store import Dataset
from budgetrec.errors import DataError
from budgetrec.files import write_whole
from budgetrec.planner.choosing import Planned
from budgetrec.planner.plan import NOISE
from budgetrec.planner.planning import plan_with_search
from budgetrec.planner.request import PlanOptions, make_request
from budgetrec.planner.search import Choice, Search, ladder
from budgetrec.settings.sections import RunConfig

PAPER = ((32, 512), (64, 256), (128, 128))
PLANNED, LARGEST, SMALLEST = "planned-", "largest-batch", "smallest-batch"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An allocation by its name, with all that the plan's law and measurements predict of it."""

    name: str
    allocation: Allocation
    draws: bool  # negatives; where it draws none, every item is scored
    predicted_bytes: int
    step_seconds: float
    example: float
    shared_class: float
    target_class: float
    bias: float
    noise: float
    score: float

    @property
    def row(self) -> dict[str, Any]:
        """Everything about it, flat."""
        others = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)[2:]}
        return {"allocation": self.name, **dataclasses.asdict(self.allocation), **others}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Read what `row` gave."""
        names = [each.name for each in dataclasses.fields(Allocation)]
        others = {name: value for name, value in row.items() if name not in (*names, "allocation")}
        allocation = Allocation(**{name: row[name] for name in names})
        return cls(name=row["allocation"], allocation=allocation, **others)

    @property
    def planned(self) -> bool:
        """Whether it is the plan."""
        return self.name.startswith(PLANNED)

    @property
    def drawn(self) -> tuple[int | None, str]:
        """Negatives and sharing, or None and "full" where every item is scored."""
        return (self.allocation.num_negatives, self.allocation.sharing) if self.draws else (None, "full")

    def examples_in(self, seconds: float) -> float:
        """Predict how many sequences are seen."""
        return self.allocation.batch_size * seconds / self.step_seconds


def plan_field(
    dataset: Dataset, folder: Path, *, memory: str, max_length: int, report: Callable[[str], None]
) -> list[Contender]:
    """Plan a dataset, keep the plan in a folder, and list who competes."""
    config = RunConfig().replaced({"max_length": max_length, "threads": 1})
    planned = plan_with_search(make_request(memory, config, PlanOptions()), dataset, report=report)
    planned.plan.write(folder / "plan.toml")
    return list_field(planned)


def list_field(planned: Planned) -> list[Contender]:
    """Return the plan, the paper's three, the largest batch with k = 1 and one sequence with the largest k.

    The paper's share one set of negatives; with k = 1 each target has its own, as its proof assumes. Each is
    taken in the way that costs least of those that fit, and left out if none does.
    """
    search, ours = planned.search, planned.plan.allocation
    n, k = ours.batch_size, ours.num_negatives
    name = PLANNED + (f"{n}-{k}-{ours.sharing}" if ours.draws else f"full-{n}")
    found: list[tuple[str, Choice | None]] = [(name, search.choice(ours, n, k))]
    for n, k in PAPER:
        possible = n <= search.max_batch_size and k < search.num_items
        found.append((f"paper-{n}-{k}", _cheapest(search, n, k, "batch") if possible else None))
    found.append((LARGEST, _first(_cheapest(search, n, 1, "target") for n in _down(search.max_batch_size))))
    found.append((SMALLEST, _first(_cheapest(search, 1, k, "sequence") for k in _down(search.num_items - 1))))
    return [_contender(name, choice, search) for name, choice in found if choice is not None]


def _contender(name: str, choice: Choice, search: Search) -> Contender:
    chosen = choice.allocation
    noise = search.noise(chosen, chosen.batch_size, chosen.num_negatives)
    return Contender(
        name=name,
        allocation=chosen,
        draws=chosen.draws,
        predicted_bytes=round(choice.bytes),
        step_seconds=choice.seconds,
        noise=choice.noise,
        score=choice.score,
        **{part: float(getattr(noise, part)) for part in NOISE},
    )


def _cheapest(search: Search, n: int, k: int, sharing: str) -> Choice | None:
    """Return the way to draw for such a step that fits and has the lowest score."""
    ways = [way for way in search.families if way.sharing == sharing and way.draws]
    fitting = [choice for way in ways if (choice := search.choice(way, n, k)).bytes <= search.limit]
    return min(fitting, key=lambda choice: choice.score, default=None)


def _down(most: int) -> list[int]:
    return [int(number) for number in ladder(most)[::-1]] if most > 0 else []


def _first(choices: Iterable[Choice | None]) -> Choice | None:
    return next((choice for choice in choices if choice is not None), None)


def write_predicted(contenders: Sequence[Contender], path: Path) -> None:
    """Write one row per contender, whole or not at all."""
    frame = pl.DataFrame([each.row for each in contenders], infer_schema_length=None)
    write_whole(path, lambda partial: partial.write_text(frame.write_csv(), "utf-8"))


def read_predicted(path: Path) -> list[Contender]:
    """Read what `write_predicted` wrote."""
    try:
        frame = pl.read_csv(path, schema_overrides={"micro_batches": pl.Int64})
        return [Contender.from_row(row) for row in frame.iter_rows(named=True)]
    except (OSError, pl.exceptions.PolarsError, TypeError, KeyError) as error:
        raise DataError(f"{path} holds no predictions of a field: {error}. Plan it again.") from error


def evaluation_spacing(
    contenders: Sequence[Contender], *, seconds: float, num_sequences: int, evaluations: int = 15
) -> int:
    """Return sequences between evaluations: half an epoch, or less where the slowest would see too few.

    The slowest is the contender that is predicted to see the fewest sequences.
    """
    slowest = min(each.examples_in(seconds) for each in contenders)
    return max(1, min(num_sequences // 2, int(slowest / evaluations)))
