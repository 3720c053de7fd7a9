"""Predicted and measured memory of training, for 20 settings.

Each setting is predicted by a dry run from its settings, the lengths of its sequences and how often items
occur, then trained for a few steps with an evaluation and a checkpoint before and after, in a process of its
own, as runs with a budget are. Measured is by how much the most memory that process ever had in use exceeds
what it used with everything imported and the dataset open.

Each setting is also planned for a budget of half as much again as its smallest step needs, at least 128 MiB,
with goal "noise", assumed noise and everything but n and k as it is above, and trained with that plan. Where
parts are not given and a step over all sequences would take minutes, the plan is held to one part.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from machine import describe_machine

from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.memory import RunMemory, measure_overhead, peak_bytes, resident_bytes
from budgetrec.planner.bytes import ByteCounter, Data
from budgetrec.planner.choosing import make_plan as choose
from budgetrec.planner.measurements import Measurements, assume_for
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import PLANNED, PlanOptions, Request
from budgetrec.settings.sections import RunConfig
from budgetrec.training.loop import train

RESULTS = Path(__file__).parent / "results" / "memory.md"
MIB = 2**20
COMMON = {
    "threads": 1,
    "device": "cpu",
    "validation_users": 512,
    "checkpoint_seconds": 600.0,
    "memory": "64GiB",
}  # never reached; it makes these runs of the kind that has a budget
SETTINGS = [
    {"items": 1_000, "dim": 32, "max_length": 20, "sharing": "batch", "batch_size": 64, "num_negatives": 64,
     "optimizer": "adam", "table_updates": "dense"},
    {"items": 1_000, "dim": 64, "max_length": 50, "sharing": "sequence", "batch_size": 128,
     "num_negatives": 256, "optimizer": "sgd", "table_updates": "dense"},
    {"items": 1_000, "dim": 128, "max_length": 200, "objective": "full-softmax", "batch_size": 128,
     "optimizer": "adam", "table_updates": "dense"},
    {"items": 10_000, "dim": 32, "max_length": 50, "sharing": "target", "batch_size": 64,
     "num_negatives": 64, "optimizer": "adam", "table_updates": "row-sparse"},
    {"items": 10_000, "dim": 64, "max_length": 200, "sharing": "sequence", "batch_size": 128,
     "num_negatives": 512, "optimizer": "adam", "table_updates": "dense", "micro_batches": 4},
    {"items": 10_000, "dim": 64, "max_length": 100, "objective": "full-softmax", "lean": True,
     "batch_size": 256, "optimizer": "adam", "table_updates": "dense"},
    {"items": 10_000, "dim": 128, "max_length": 20, "sharing": "batch", "batch_size": 1024,
     "num_negatives": 2048, "optimizer": "adagrad", "table_updates": "dense"},
    {"items": 30_000, "dim": 64, "max_length": 200, "objective": "full-softmax", "batch_size": 32,
     "optimizer": "adam", "table_updates": "dense", "micro_batches": 1},
    {"items": 100_000, "dim": 32, "max_length": 200, "sharing": "target", "batch_size": 64,
     "num_negatives": 256, "optimizer": "sgd", "table_updates": "row-sparse", "micro_batches": 2},
    {"items": 100_000, "dim": 64, "max_length": 50, "sharing": "sequence", "lean": True, "batch_size": 512,
     "num_negatives": 1024, "optimizer": "adam", "table_updates": "row-sparse"},
    {"items": 100_000, "dim": 64, "max_length": 200, "sharing": "batch", "lean": True, "batch_size": 256,
     "num_negatives": 8192, "optimizer": "adam", "table_updates": "dense", "micro_batches": 1},
    {"items": 100_000, "dim": 128, "max_length": 100, "sharing": "sequence", "batch_size": 512,
     "num_negatives": 256, "optimizer": "adamw", "table_updates": "dense", "micro_batches": 1},
    {"items": 100_000, "dim": 64, "max_length": 50, "model": "bert4rec", "sharing": "sequence",
     "batch_size": 256, "num_negatives": 256, "optimizer": "adam", "table_updates": "row-sparse"},
    {"items": 100_000, "dim": 64, "max_length": 50, "features": 64, "sharing": "batch", "batch_size": 256,
     "num_negatives": 1024, "optimizer": "adam", "table_updates": "dense"},
    {"items": 1_000_000, "dim": 32, "max_length": 50, "sharing": "sequence", "batch_size": 256,
     "num_negatives": 256, "optimizer": "adam", "table_updates": "row-sparse"},
    {"items": 1_000_000, "dim": 64, "max_length": 200, "sharing": "batch", "batch_size": 128,
     "num_negatives": 4096, "optimizer": "sgd", "table_updates": "row-sparse"},
    {"items": 1_000_000, "dim": 128, "max_length": 50, "sharing": "sequence", "batch_size": 128,
     "num_negatives": 128, "optimizer": "adam", "table_updates": "row-sparse"},
    {"items": 1_000_000, "dim": 64, "max_length": 20, "sharing": "target", "batch_size": 512,
     "num_negatives": 32, "optimizer": "momentum", "table_updates": "row-sparse"},
    {"items": 1_000_000, "dim": 32, "max_length": 20, "objective": "full-softmax", "lean": True,
     "batch_size": 32, "optimizer": "adam", "table_updates": "dense", "steps": 2},
    {"items": 300_000, "dim": 64, "max_length": 100, "sharing": "target", "lean": True, "batch_size": 128,
     "num_negatives": 256, "sampler": "popularity", "optimizer": "adam", "table_updates": "row-sparse"},
]  # fmt: skip


def make_dataset(num_items: int, max_length: int, num_users: int = 3000) -> Dataset:
    """Draw sequences of log-normal lengths over items of which few are common."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(max_length * 0.6), 0.8, num_users), 4, 3 * max_length).astype(
        int
    )
    offsets = np.concatenate([[0], lengths.cumsum()])
    items = (num_items * random.random(offsets[-1]) ** 2).astype(np.int32)
    statistics = {"users": num_users, "items": num_items, "interactions": len(items)}
    return Dataset(
        items=items,
        offsets=offsets,
        train_stops=offsets[1:] - 2,
        validation_targets=offsets[1:] - 2,
        test_targets=offsets[1:] - 1,
        user_labels=pl.Series("user", np.arange(num_users)),
        item_labels=pl.Series("item", np.arange(num_items)),
        train_counts=np.bincount(items, minlength=num_items),
        info={"statistics": statistics, "steps": [], "split": {}, "source": {}},
    )


# Settings whose steps over all sequences take seconds; the others are planned with one part.
CUT_FOR_CACHE = (0, 1, 3, 14, 17)


def make_config(setting: dict) -> RunConfig:
    """Turn a row of the table into settings of a run."""
    own = {name: value for name, value in setting.items() if name not in ("items", "features")}
    return RunConfig().replaced({"steps": 3, **COMMON, **own})


def measure(setting: dict, folder: Path) -> int:
    """Train in this process, and return by how much it grew."""
    device = torch.device("cpu")
    dataset = Dataset.open(folder / "dataset")
    width = setting.get("features")
    features = None if width is None else torch.rand(setting["items"], width)
    before = resident_bytes(device)
    trained = train(dataset, folder / "run", make_config(setting), features=features)
    # A run above its budget forgets the peak of the process, but not its own.
    return max(peak_bytes(device) - before, int(trained.metrics["training_bytes"].max()))


def run(setting: dict, overhead: int) -> dict:
    """Predict a setting, and measure it in a child."""
    dataset = make_dataset(setting["items"], setting["max_length"])
    config = make_config(setting)
    begin = time.perf_counter()
    lengths = TrainingBatches(dataset, batch_size=1, max_length=config.model.max_length).lengths
    memory = RunMemory.dry_run(
        config,
        num_items=setting["items"],
        lengths=lengths,
        features_width=setting.get("features"),
        train_counts=dataset.train_counts,
        overhead=overhead,
    )
    sizes = (config.training.batch_size, config.objective.num_negatives, config.training.micro_batches)
    parts = memory.parts(*sizes)
    seconds = time.perf_counter() - begin
    return {"parts": parts, "seconds": seconds, "measured": measure_in_child(setting, dataset)}


def make_plan(setting: dict, dataset: Dataset, overhead: int, *, cut: bool) -> Plan:
    """Plan n and k of a setting for a budget that is not far above the least."""
    fixed = {name: setting[name] for name in PLANNED if name in setting}
    fixed = {name: value for name, value in fixed.items() if name not in ("batch_size", "num_negatives")}
    fixed.setdefault("lean", False)
    if not cut:
        fixed.setdefault("micro_batches", 1)
    config = make_config({**setting, **fixed})
    options = PlanOptions(goal="noise", **fixed)
    lengths = TrainingBatches(dataset, batch_size=1, max_length=config.model.max_length).lengths
    data = Data(num_items=dataset.num_items, lengths=lengths, features_width=setting.get("features"))
    counter = ByteCounter(data=data, device_type="cpu", overhead=overhead)

    def assumed(budget: int) -> tuple[Request, Measurements]:
        request = Request(config=config, budget_bytes=budget, options=options)
        return request, assume_for(request, counter, {})

    (memory,) = assumed(2**40)[1].memory.values()
    k = dataset.num_items if config.objective.objective == "full-softmax" else 1
    least = float(memory.total(1, k, fixed.get("micro_batches")))
    return choose(*assumed(max(128, 16 * round(1.5 * least / MIB / 16)) * MIB)).plan


def run_plan(setting: dict, overhead: int, *, cut: bool) -> tuple[Plan, int, str]:
    """Plan a setting, train with the plan in a child, and say what limited n and k."""
    dataset = make_dataset(setting["items"], setting["max_length"])
    plan = make_plan(setting, dataset, overhead, cut=cut)
    windows = len(TrainingBatches(dataset, batch_size=1, max_length=setting["max_length"]).lengths)
    limits = ["n"] if plan.allocation.batch_size >= windows else []
    limits += ["k"] if plan.allocation.num_negatives >= setting["items"] - 1 else []
    planned = {**setting, **plan.settings, "memory": str(plan.budget_bytes), "steps": 2}
    return plan, measure_in_child(planned, dataset), " and ".join(limits)


def measure_in_child(setting: dict, dataset: Dataset) -> int:
    """Train in a process of its own, and return by how much it grew."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dataset").mkdir()
        dataset.save(Path(folder) / "dataset")
        command = [sys.executable, __file__, "--measure", json.dumps(setting), "--folder", folder]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def describe(setting: dict) -> str:
    """Name a setting in one cell."""
    words = [setting.get("objective", setting.get("sharing", ""))]
    words += [name for name in ("lean",) if setting.get(name)]
    words += [str(setting[name]) for name in ("model", "sampler") if name in setting]
    words += [f"features {setting['features']}"] if "features" in setting else []
    words += [f"{setting['micro_batches']} parts"] if "micro_batches" in setting else []
    return " ".join([*words, setting["optimizer"], setting["table_updates"]])


def predictions(places: list[int], overhead: int) -> str:
    """Make the table of predicted and measured memory."""
    lines = ["| K | d | L | n | k | setting | predicted | measured | ratio |", "|" + "---|" * 9]
    ratios = []
    for place in places:
        setting = SETTINGS[place]
        found = run(setting, overhead)
        predicted = sum(found["parts"].values())
        ratios.append(predicted / found["measured"])
        lines.append(
            f"| {setting['items']:,} | {setting['dim']} | {setting['max_length']} | "
            f"{setting['batch_size']} | {setting.get('num_negatives', '')} | {describe(setting)} | "
            f"{predicted / MIB:,.0f} | "
            f"{found['measured'] / MIB:,.0f} | {ratios[-1]:.2f} |"
        )
        split = ", ".join(f"{name} {size / MIB:.0f}" for name, size in found["parts"].items())
        print(place, lines[-1], split, f"{found['seconds']:.1f} s", file=sys.stderr, flush=True)
    near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    summary = (
        f"{near} of {len(ratios)} predictions lie within 10% of the measured peak; the lowest is "
        f"{min(ratios):.2f} of it, the highest {max(ratios):.2f}. MiB, overhead of the process "
        f"{overhead / MIB:.0f} included."
    )
    return "\n".join(["## Predictions", "", summary, "", *lines, ""])


def planned_runs(places: list[int], overhead: int) -> str:
    """Make the table of budgets and what runs with a plan took of them."""
    lines = [
        "| K | d | L | setting | budget | n | k | predicted | measured | used | inside | data limit |",
        "|" + "---|" * 12,
    ]
    inside, free = 0, []
    for place in places:
        setting = SETTINGS[place]
        plan, measured, limits = run_plan(setting, overhead, cut=place in CUT_FOR_CACHE)
        used = measured / plan.budget_bytes
        inside += used <= 1
        free += [] if "n" in limits else [used]
        lines.append(
            f"| {setting['items']:,} | {setting['dim']} | {setting['max_length']} | {describe(setting)} | "
            f"{plan.budget_bytes / MIB:,.0f} | {plan.allocation.batch_size:,} | "
            f"{plan.allocation.num_negatives:,} | "
            f"{plan.predicted_bytes / MIB:,.0f} | {measured / MIB:,.0f} | {used:.0%} | "
            f"{'yes' if used <= 1 else 'no'} | {limits} |"
        )
        print(place, lines[-1], file=sys.stderr, flush=True)
    full = sum(used >= 0.7 for used in free)
    summary = (
        f"{inside} of {len(places)} planned runs stay inside their budget; of {len(free)} whose n the data "
        f"does not limit, {full} use at least 70% of it. MiB."
    )
    return "\n".join(["## Planned runs", "", summary, "", *lines, ""])


def main() -> None:
    """Print the tables, and record them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--table", choices=("predictions", "planned"))
    parser.add_argument("--measure")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.measure:
        print(measure(json.loads(asked.measure), asked.folder))
        return
    overhead = measure_overhead(threads=1)
    print(f"overhead {overhead / MIB:.0f} MiB", file=sys.stderr)
    places = asked.only or list(range(len(SETTINGS)))
    words = [" ".join(paragraph.split()) for paragraph in __doc__.split("\n\n")[1:]]
    text = "# Memory of training, predicted and measured\n\n"
    text += f"`make bench-memory`. {describe_machine()}\n\n" + "\n\n".join(words) + "\n"
    for name, table in {"predictions": predictions, "planned": planned_runs}.items():
        if asked.table in (None, name):
            text += "\n" + table(places, overhead)
            if asked.record:
                asked.record.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
