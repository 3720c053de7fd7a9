"""What a plan rests on: bytes, seconds and noise of every family, measured here or assumed."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from budgetrec.allocation import Allocation
from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.memory.heap import LARGE_BYTES, LARGE_BYTES_OF_OWN, steady_heap
from budgetrec.memory.overhead import measure_overhead
from budgetrec.memory.run_memory import RunMemory
from budgetrec.models import SequenceModel
from budgetrec.planner.assumed import RATES, RHO, assumed_lengths, assumed_noise, assumed_seconds
from budgetrec.planner.bytes import ByteCounter, Data, count_bytes, fits
from budgetrec.planner.families import possible_families
from budgetrec.planner.measured_noise import MeasuredNoise, probe_noise
from budgetrec.planner.request import Request
from budgetrec.planner.seconds import StepSeconds, time_steps
from budgetrec.stepping.stepper import Stepper

_ASSUMED_SEQUENCES = 2**14
_WARM_UP_TARGETS = 1_000_000
_WARM_UP_POINT = (1600, 256)  # targets and negatives of a step of the warm-up, where they fit

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Bytes and seconds by family, and the noise; `left_out` are families of which nothing fits."""

    data: Data
    counter: ByteCounter
    families: tuple[Allocation, ...]
    memory: Mapping[Allocation, RunMemory]
    seconds: Mapping[Allocation, StepSeconds]
    noise: MeasuredNoise
    left_out: tuple[Allocation, ...] = ()


def data_of(dataset: Dataset, request: Request, features: Tensor | None) -> Data:
    """Return what a plan needs to know of a dataset."""
    batches = TrainingBatches(
        dataset,
        batch_size=1,
        max_length=request.config.model.max_length,
        windows=request.config.training.windows,
    )
    return Data(
        num_items=dataset.num_items,
        lengths=batches.lengths,
        features_width=None if features is None else features.shape[1],
        train_counts=np.asarray(dataset.train_counts),
    )


def measure(
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    *,
    model: SequenceModel | None = None,
    report: Report = lambda stage: None,
) -> Measurements:
    """Count bytes, warm up, time steps and probe the noise, on this machine."""
    data = data_of(dataset, request, features)
    cuda = request.config.training.device != "cpu" and torch.cuda.is_available()
    families = _families(request, data)
    report("counting the bytes of a step")
    counter = ByteCounter(
        data=data,
        device_type="cuda" if cuda else "cpu",
        overhead=0 if cuda else measure_overhead(),
        model=model,
    )
    memory = count_bytes(request, families, counter)
    left_out = [
        each
        for each in memory
        if not fits(request, memory, data, dataclasses.replace(each, micro_batches=1), 1, 1)
    ]
    memory = {each: counted for each, counted in memory.items() if each not in left_out}
    seconds, noise = _train_a_little(request, dataset, features, model, data, memory, report)
    return Measurements(
        data=data,
        counter=counter,
        families=tuple(each for each in families if each.family in memory),
        left_out=tuple(left_out),
        memory=memory,
        seconds=seconds,
        noise=noise,
    )


def assume(
    request: Request, num_items: int | None, mean_length: float | None, report: Report = lambda stage: None
) -> Measurements:
    """Count bytes, and assume seconds and noise, for data that is not here."""
    if num_items is None or mean_length is None:
        raise ArgumentError(
            "there is no dataset to plan for. Pass one, or describe it with --num-items and --mean-length."
        )
    if num_items < 2 or not 1 <= mean_length < math.inf:
        raise ArgumentError(f"num_items is {num_items} and mean_length {mean_length}; pass at least 2 and 1.")
    config = request.config
    device_type = "cuda" if config.training.device == "cuda" else "cpu"
    lengths = assumed_lengths(
        mean_length=mean_length, max_length=config.model.max_length, count=_ASSUMED_SEQUENCES
    )
    data = Data(num_items=num_items, lengths=lengths)
    families = _families(request, data, measured=False)
    report("counting the bytes of a step")
    overhead = 0 if device_type == "cuda" else measure_overhead()
    counter = ByteCounter(data=data, device_type=device_type, overhead=overhead)
    memory = count_bytes(request, families, counter)
    constants, gradient = assumed_noise(dim=config.model.dim, mean_targets=data.mean_targets)
    assumptions = {
        "data": f"{num_items:,} items; lengths spread as an exponential of mean {mean_length:g}, cut at "
        f"{config.model.max_length}; at least {_ASSUMED_SEQUENCES:,} sequences",
        "noise": f"as in a SASRec after a few epochs on MovieLens-1M: rho {RHO:g}, width {config.model.dim}",
        "seconds": f"not measured: {RATES[device_type].words}",
    }
    return Measurements(
        data=data,
        counter=counter,
        families=tuple(families),
        memory=memory,
        seconds={
            each: assumed_seconds(
                each,
                config,
                num_items=num_items,
                mean_targets=data.mean_targets,
                device_type=device_type,
            )
            for each in memory
        },
        noise=MeasuredNoise(constants=constants, gradient=gradient, assumptions=assumptions),
    )


def _families(request: Request, data: Data, *, measured: bool = True) -> list[Allocation]:
    wanted = request.options.batch_size or 1
    if wanted > len(data.lengths):
        raise PlanError(
            f"batch_size is {wanted:,}, and the data has {len(data.lengths):,} training sequences. "
            "Pass at most that many."
        )
    found = possible_families(
        request,
        num_items=data.num_items,
        has_features=data.features_width is not None,
        measured=measured,
    )
    if not found:
        raise PlanError("no way of training agrees with all that was fixed. Leave out --table-updates.")
    return found


def _train_a_little(
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    model: SequenceModel | None,
    data: Data,
    memory: Mapping[Allocation, RunMemory],
    report: Report,
) -> tuple[dict[Allocation, StepSeconds], MeasuredNoise]:
    """Warm up, time steps of every family, and measure the noise."""
    steady_heap(LARGE_BYTES if model is None else LARGE_BYTES_OF_OWN)  # as in training
    seconds: dict[Allocation, StepSeconds] = {}
    stepper = None
    updates = [*dict.fromkeys(each.table_updates for each in memory)]
    for place, way in enumerate(reversed(updates)):
        families = [each for each in memory if each.table_updates == way]
        del stepper  # before another takes its memory
        start = _warm_up_allocation(request, data, memory, families)
        stepper = Stepper(dataset, request.config.replaced(start.settings), features, model=model)
        if place == len(updates) - 1 or not seconds:  # the noise is measured on the last one
            report(f"warming up for {request.options.warm_up:g} s")
            _warm_up(stepper, request.options.warm_up)
        for each in families:
            report(f"timing steps: {each.describe()}")
            seconds[each] = time_steps(
                stepper,
                each,
                fits=lambda n, k, each=each: fits(request, memory, data, each, n, k),  # type: ignore[misc]
                mean_targets=data.mean_targets,
            )
    assert stepper is not None  # noqa: S101 - what nothing fits was refused
    return seconds, probe_noise(stepper, report=report)


def _warm_up_allocation(
    request: Request,
    data: Data,
    memory: Mapping[Allocation, RunMemory],
    families: list[Allocation],
) -> Allocation:
    """Choose an allocation to warm up with that fits."""
    way = min(families, key=lambda each: (not each.draws, each.sharing != "sequence", each.lean))
    targets, k = _WARM_UP_POINT
    n = min(max(1, round(targets / data.mean_targets)), len(data.lengths))
    k = min(k, max(data.num_items - 1, 1))
    while not fits(request, memory, data, way, n, k) and (n, k) != (1, 1):
        n, k = max(1, n // 2), max(1, k // 2)
    return way.at(n, k)


def _warm_up(stepper: Stepper, seconds: float) -> None:
    """Train for a short while: what noise an untrained model has tells little of training."""
    end, seen = time.monotonic() + seconds, 0
    while True:
        for batch in stepper.batches.epoch(stepper.generators["order"]):
            if time.monotonic() > end or seen >= _WARM_UP_TARGETS:
                return
            seen += stepper.step(batch, stepper.config.optimizer.learning_rate).num_targets
