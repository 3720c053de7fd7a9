"""What a plan rests on: bytes, seconds and noise of every family, measured here or assumed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
from budgetrec.planner.bench import Bench, Report
from budgetrec.planner.bytes import ByteCounter, Data, count_bytes, fits, refuse_large_tables
from budgetrec.planner.families import possible_families
from budgetrec.planner.measured_noise import MeasuredNoise, probe_noise
from budgetrec.planner.noise_record import constants_of
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import Request
from budgetrec.planner.seconds import StepSeconds, seconds_of

_ASSUMED_SEQUENCES = 2**14
_FAR_OFF, _MOST_CHECKS = (
    1.25,
    4,
)  # seconds over those foreseen that are worth another look, and how many looks


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
    told: Mapping[str, str] = field(default_factory=dict)  # how they came about, for the plan


Contenders = Callable[[Measurements], Sequence[Allocation]]


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
    contenders: Contenders = lambda measured: [],
) -> Measurements:
    """Count bytes, warm up, probe the noise and time steps, on this machine.

    `contenders` says which allocations the measurements speak for. Those are timed as they would be trained,
    and where that was not foreseen, the seconds are fitted again and others may come up.
    """
    data = data_of(dataset, request, features)
    cuda = request.config.training.device != "cpu" and torch.cuda.is_available()
    if model is None:
        refuse_large_tables(request, data)
    families = _families(request, data)
    report("counting the bytes of a step")
    counter = ByteCounter(
        data=data,
        device_type="cuda" if cuda else "cpu",
        overhead=0 if cuda else measure_overhead(),
        model=model,
    )
    memory, left_out = _count_what_fits(request, families, counter)
    steady_heap(LARGE_BYTES if model is None else LARGE_BYTES_OF_OWN)  # as in training
    bench = Bench(request, dataset, features, model, data, memory)
    noise = probe_noise(bench.warmed_up(report), report=report)
    bench.time_families(report)
    measured = Measurements(
        data=data,
        counter=counter,
        families=tuple(each for each in families if each.family in memory),
        left_out=left_out,
        memory=memory,
        seconds=bench.seconds(),
        noise=noise,
    )
    return _check(measured, bench, contenders, report)


def _check(measured: Measurements, bench: Bench, contenders: Contenders, report: Report) -> Measurements:
    """Time what would be chosen as it would be trained; where that was not foreseen, choose again."""
    known: set[Allocation] = set()
    ratios: list[float] = []
    for _ in range(_MOST_CHECKS):
        new = [each for each in contenders(measured) if each not in known]
        if not new:
            break
        ratios = []
        for each in new:
            report(f"timing n = {each.batch_size:,}, k = {each.num_negatives:,}: {each.describe()}")
            ratios.append(bench.time_contender(each))
        known.update(new)
        measured = dataclasses.replace(measured, seconds=bench.seconds())
        if all(1 / _FAR_OFF <= ratio <= _FAR_OFF for ratio in ratios):
            break
    told = {"seconds": bench.told()}
    for chosen in contenders(measured)[:1]:
        report("checking the law on steps of the plan")
        told |= measured.noise.check(chosen)
    return dataclasses.replace(measured, told=told)


def measured_before(
    plan: Plan,
    request: Request,
    dataset: Dataset,
    features: Tensor | None,
    *,
    model: SequenceModel | None = None,
    device_type: str | None = None,
    report: Report = lambda stage: None,
) -> Measurements:
    """Take over the seconds and the noise that a plan was made from, and count bytes again."""
    data = data_of(dataset, request, features)
    seconds = dict(seconds_of(row) for row in plan.seconds_model)
    if device_type is None:
        cuda = request.config.training.device != "cpu" and torch.cuda.is_available()
        device_type = "cuda" if cuda else "cpu"
    possible = _families(request, data)
    report("counting the bytes of a step")
    counter = ByteCounter(data=data, device_type=device_type, overhead=plan.overhead_bytes, model=model)
    memory, left_out = _count_what_fits(request, possible, counter)
    families = tuple(each for each in possible if each.family in memory and each.family in seconds)
    if not families:
        raise PlanError(
            "none of the ways of training that were asked for was timed for this plan. Leave out "
            "--measurements."
        )
    constants = constants_of(plan.noise_model, "the plan")
    return Measurements(
        data=data,
        counter=counter,
        families=families,
        left_out=left_out,
        memory=memory,
        seconds=seconds,
        noise=MeasuredNoise(constants=constants, gradient=plan.gradient, assumptions={}),
        told=plan.assumptions,
    )


def _count_what_fits(
    request: Request, families: list[Allocation], counter: ByteCounter
) -> tuple[dict[Allocation, RunMemory], tuple[Allocation, ...]]:
    """Count the bytes of every family, and set those apart of which nothing fits."""
    memory = count_bytes(request, families, counter)
    left_out = tuple(
        each
        for each in memory
        if not fits(request, memory, counter.data, dataclasses.replace(each, micro_batches=1), 1, 1)
    )
    return {each: counted for each, counted in memory.items() if each not in left_out}, left_out


def assume(
    request: Request, num_items: int | None, mean_length: float | None, report: Report = lambda stage: None
) -> Measurements:
    """Count bytes, and assume seconds and noise, for data that is not here."""
    if num_items is None or mean_length is None:
        raise ArgumentError(
            "there is no dataset to plan for. Pass one, or describe it with --num-items and --mean-length."
        )
    if not 2 <= num_items < 2**31 or not 1 <= mean_length <= 2**20:
        raise ArgumentError(
            f"num_items is {num_items} and mean_length {mean_length}; pass 2 to 2^31 - 1 and 1 to 2^20."
        )
    max_length = request.config.model.max_length
    lengths = assumed_lengths(mean_length=mean_length, max_length=max_length, count=_ASSUMED_SEQUENCES)
    told = (
        f"{num_items:,} items; lengths exponential with mean {mean_length:g}, cut at {max_length}; at least "
        f"{_ASSUMED_SEQUENCES:,} sequences"
    )
    device_type = "cuda" if request.config.training.device == "cuda" else "cpu"
    report("counting the bytes of a step")
    overhead = 0 if device_type == "cuda" else measure_overhead()
    counter = ByteCounter(
        data=Data(num_items=num_items, lengths=lengths), device_type=device_type, overhead=overhead
    )
    return assume_for(request, counter, {"data": told})


def assume_for(request: Request, counter: ByteCounter, told: Mapping[str, str]) -> Measurements:
    """Count bytes, and assume seconds and noise; `told` says what else was assumed."""
    data, device_type, config = counter.data, counter.device_type, request.config
    families = _families(request, data, measured=False)
    memory = count_bytes(request, families, counter)
    constants, gradient = assumed_noise(dim=config.model.dim, mean_targets=data.mean_targets)
    assumptions = {
        **told,
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
                num_items=data.num_items,
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
        raise PlanError("no way of training fits all that was fixed. Leave out --table-updates.")
    return found
