"""The bytes of every family of steps, counted by small dry runs, and the refusal where nothing fits."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from budgetrec.allocation import Allocation
from budgetrec.errors import PlanError
from budgetrec.memory.budget import evaluation_block_bytes
from budgetrec.memory.fixed import state_share
from budgetrec.memory.run_memory import RunMemory
from budgetrec.memory.run_parts import optimizer_maker
from budgetrec.models import SequenceModel
from budgetrec.planner.request import Request
from budgetrec.planner.suggestions import nothing_fits, table_too_large
from budgetrec.settings.sections import RunConfig

_FAR_ABOVE = 1.25  # the smallest steps of different families differ by less


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a plan needs to know of the data: items, and targets (windows,) of each training window."""

    num_items: int
    lengths: NDArray[np.int64]
    features_width: int | None = None
    train_counts: NDArray[np.int64] | None = None  # how often each item occurs, where that is known

    @property
    def mean_targets(self) -> float:
        """Targets of a window on average."""
        return float(self.lengths.mean())


@dataclass(frozen=True, kw_only=True)
class ByteCounter:
    """Counts the bytes of runs with any settings, each once; `model` stands in for the one they name."""

    data: Data
    device_type: str
    overhead: int
    model: SequenceModel | None = None
    _known: dict[RunConfig, RunMemory] = field(default_factory=dict, repr=False, compare=False)

    def count(self, config: RunConfig, budget_bytes: int) -> RunMemory:
        """Return the bytes of runs with these settings, for any n and k."""
        if config not in self._known:
            self._known[config] = self._dry_run(config)
        block_bytes = evaluation_block_bytes(budget_bytes)
        return dataclasses.replace(self._known[config], evaluation_block_bytes=block_bytes)

    def _dry_run(self, config: RunConfig) -> RunMemory:
        data = self.data
        if self.model is not None:
            return RunMemory.of_model(
                self.model,
                config,
                lengths=data.lengths,
                device_type=self.device_type,
                overhead=self.overhead,
            )
        return RunMemory.dry_run(
            config,
            num_items=data.num_items,
            lengths=data.lengths,
            features_width=data.features_width,
            train_counts=data.train_counts,
            device_type=self.device_type,
            overhead=self.overhead,
        )


def refuse_large_tables(request: Request, data: Data) -> None:
    """Raise an error at once where the item table and its optimiser state alone are above the bytes."""
    config, table = request.config, partial(_table_bytes, data)
    if data.features_width is not None or table(config) <= request.limit:
        return
    raise table_too_large(
        config, num_items=data.num_items, budget=request.budget_bytes, limit=request.limit, table=table
    )


def _table_bytes(data: Data, config: RunConfig) -> int:
    """Return the bytes of the item table and of its optimiser state; opening a run takes two tables."""
    if data.features_width is not None:
        return 0
    sparse = config.optimizer.table_updates == "row-sparse"
    make = optimizer_maker(config.optimizer, "row-sparse" if sparse else "dense")
    numbers = data.num_items * config.model.dim * (1 if config.model.tied else 2)
    return round(4 * numbers * max(2.0, 1 + state_share(make, config.model.dim, sparse=sparse)))


def count_bytes(
    request: Request, families: Sequence[Allocation], counter: ByteCounter
) -> dict[Allocation, RunMemory]:
    """Count the bytes of every family; refuse a request for which nothing fits."""
    memory: dict[Allocation, RunMemory] = {}
    # The leanest first: where even that is far above the bytes, the others need not be counted.
    leanest = min(families, key=lambda each: (each.table_updates == "dense", not each.draws, not each.lean))
    counted = counter.count(request.config.replaced(leanest.family.settings), request.budget_bytes)
    if (
        float(counted.total(1, 1 if leanest.draws else counter.data.num_items, 1))
        > _FAR_ABOVE * request.limit
    ):
        refuse_if_nothing_fits(request, {leanest.family: counted}, counter)
    for each in families:
        counted = counter.count(request.config.replaced(each.family.settings), request.budget_bytes)
        first = next(iter(memory.values()), counted)
        memory[each.family] = counted.sharing_shapes(first)
    refuse_if_nothing_fits(request, memory, counter)
    return memory


def fits(
    request: Request, memory: Mapping[Allocation, RunMemory], data: Data, way: Allocation, n: int, k: int
) -> bool:
    """Return whether a step of a family fits into the bytes."""
    total = memory[way.family].total(n, k if way.draws else data.num_items, way.micro_batches)
    return float(total) <= request.limit


def refuse_if_nothing_fits(
    request: Request, memory: Mapping[Allocation, RunMemory], counter: ByteCounter
) -> None:
    """Raise an error that says what takes the bytes and what would fit, unless the smallest step fits."""
    fixed, data = request.options, counter.data
    n, k = fixed.batch_size or 1, fixed.num_negatives or 1
    cut = fixed.micro_batches or n

    def parts(way: Allocation, counted: RunMemory) -> dict[str, int]:
        return counted.parts(n, k if way.draws else data.num_items, cut)

    needs = {way: sum(parts(way, counted).values()) for way, counted in memory.items()}
    smallest = min(needs, key=lambda way: needs[way])
    if needs[smallest] <= request.limit:
        return

    def least(config: RunConfig) -> dict[str, int]:
        """Count the smallest step with other settings."""
        way, updates = smallest, config.optimizer.table_updates
        if updates != "auto":
            way = dataclasses.replace(way, table_updates=updates)
        if way.table_updates == "row-sparse" and (not way.draws or data.features_width is not None):
            raise PlanError("there is no table of which a step touches only some rows.")
        return parts(way, counter.count(config.replaced(way.settings), request.budget_bytes))

    def enough() -> int:
        """Find bytes that would do; with more of them an evaluation takes more too."""
        budget, config = request.budget_bytes, request.config.replaced(smallest.settings)
        while True:
            needed = sum(parts(smallest, counter.count(config, budget)).values())
            if needed <= budget * (1 - request.options.margin):
                return budget
            budget = math.ceil(needed / (1 - request.options.margin) / 2**20) * 2**20

    raise nothing_fits(
        request.config,
        num_items=data.num_items,
        batch_size=n,
        num_negatives=k,
        budget=request.budget_bytes,
        limit=request.limit,
        enough=enough(),
        least=least,
        table=partial(_table_bytes, data),
    )
