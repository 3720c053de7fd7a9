"""Where a plan's steps are timed: a model that is trained a little, steps of every family, and contenders."""

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from budgetrec.allocation import Allocation
from budgetrec.data.store import Dataset
from budgetrec.memory.run_memory import RunMemory
from budgetrec.models import SequenceModel
from budgetrec.planner.assumed import assumed_seconds
from budgetrec.planner.bytes import Data, fits
from budgetrec.planner.clock import QuietClock
from budgetrec.planner.request import Request
from budgetrec.planner.seconds import StepSeconds, TimedStep, fit_seconds
from budgetrec.planner.timed_steps import time_allocation, time_family, time_parts
from budgetrec.stepping.stepper import Stepper

_WARM_UP_POINT = (1600, 512)  # targets and negatives of a step of the warm-up, where they fit
_CONTENDER_WEIGHT = 10.0  # timed steps that a contender's own one counts for: its seconds matter most
_BUSY = 0.1  # of the time: more than that taken by other work is worth a word

Report = Callable[[str], None]


class Bench:
    """Takes steps of any family and fits their seconds; holds one model at a time."""

    def __init__(
        self,
        request: Request,
        dataset: Dataset,
        features: Tensor | None,
        model: SequenceModel | None,
        data: Data,
        memory: Mapping[Allocation, RunMemory],
    ) -> None:
        self._request, self._dataset, self._features, self._model = request, dataset, features, model
        self._data, self._memory = data, memory
        self._clock = QuietClock()
        self._timed: list[TimedStep] = []
        self._parts: dict[str, float] = {}  # by table updates: seconds of each part beyond the usual ones
        self._stepper: Stepper | None = None

    def warmed_up(self, report: Report) -> Stepper:
        """Train for a number of targets: what noise an untrained model has tells little of training."""
        targets, seen = self._request.options.warm_up_targets, 0
        report(f"warming up on {targets:,} targets")
        stepper = self._stepper_for(next(iter(self._memory)).table_updates)
        while seen < targets:
            for batch in stepper.batches.epoch(stepper.generators["order"]):
                seen += stepper.step(batch, stepper.config.optimizer.learning_rate).num_targets
                if seen >= targets:
                    break
        return stepper

    def time_families(self, report: Report) -> None:
        """Time a few steps of every family."""
        counted = self._counted()
        for family in sorted(self._memory, key=lambda each: self._is_other(each.table_updates)):
            report(f"timing steps: {family.describe()}")
            stepper = self._stepper_for(family.table_updates)
            self._timed += time_family(
                stepper,
                family,
                self._clock,
                fits=lambda n, k, family=family: fits(self._request, self._memory, self._data, family, n, k),  # type: ignore[misc]
                counted=counted,
            )
            if family.table_updates not in self._parts and stepper.objective.separable:
                self._parts[family.table_updates] = time_parts(stepper, self._timed[-1], self._clock)

    def time_contender(self, allocation: Allocation) -> float:
        """Time steps as they would be trained, and return their seconds over those that were foreseen."""
        stepper = self._stepper_for(allocation.table_updates)
        step = time_allocation(stepper, allocation, self._clock)
        extra = (allocation.micro_batches or 1) - 1
        before = self.seconds()[allocation.family]
        foreseen = float(before(step.batch_size, step.num_negatives, min(extra, step.batch_size - 1)))
        parts = foreseen - float(before(step.batch_size, step.num_negatives))
        whole = max(step.seconds - parts, step.seconds / 10)
        self._timed.append(dataclasses.replace(step, seconds=whole, weight=_CONTENDER_WEIGHT))
        return step.seconds / foreseen

    def seconds(self) -> dict[Allocation, StepSeconds]:
        """Return the seconds of every family, fitted to what was timed so far."""
        fitted = fit_seconds(self._timed, self._counted())
        return {
            family: dataclasses.replace(costs, part=self._parts.get(family.table_updates, 0.0))
            for family, costs in fitted.items()
        }

    def told(self) -> str:
        """Say how steps were timed, and what other work did to that."""
        threads = torch.get_num_threads()
        words = f"timed with {threads} {'thread' if threads == 1 else 'threads'}"
        if self._clock.busy_share < _BUSY:
            return words
        return (
            f"{words} on a busy machine: other work had the processor for {self._clock.busy_share:.0%} of "
            "the time, which is taken off, so training will be slower than this while that lasts"
        )

    def _counted(self) -> dict[Allocation, StepSeconds]:
        """Return the seconds of every family by operation counts."""
        cuda = self._stepper is not None and self._stepper.device.type == "cuda"
        return {
            family: assumed_seconds(
                family,
                self._request.config,
                num_items=self._data.num_items,
                mean_targets=self._data.mean_targets,
                device_type="cuda" if cuda else "cpu",
            )
            for family in self._memory
        }

    def _is_other(self, table_updates: str) -> bool:
        return self._stepper is None or self._stepper.table_updates != table_updates

    def _stepper_for(self, table_updates: str) -> Stepper:
        """Return what takes steps with these table updates."""
        if self._stepper is None or self._is_other(table_updates):
            self._stepper = None  # before another takes its memory
            start = self._start(table_updates)
            config = self._request.config.replaced(start.settings)
            self._stepper = Stepper(self._dataset, config, self._features, model=self._model)
        return self._stepper

    def _start(self, table_updates: str) -> Allocation:
        """Choose an allocation to warm up with that fits."""
        families = [each for each in self._memory if each.table_updates == table_updates]
        way = min(families, key=lambda each: (not each.draws, each.sharing != "batch", each.lean))
        targets, k = _WARM_UP_POINT
        n = min(max(1, round(targets / self._data.mean_targets)), len(self._data.lengths))
        k = min(k, max(self._data.num_items - 1, 1))
        while not fits(self._request, self._memory, self._data, way, n, k) and (n, k) != (1, 1):
            n, k = max(1, n // 2), max(1, k // 2)
        return way.at(n, k)
