"""Predicted and measured memory of training, for 20 settings.

Each setting is predicted by a dry run from its settings and the lengths of its sequences alone, then trained
for a few steps with an evaluation and a checkpoint before and after, in a process of its own. Measured is by
how much the most memory that process ever had in use exceeds what it used with everything imported and the
dataset open.
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

from budgetrec.config import RunConfig
from budgetrec.data.batches import TrainingBatches
from budgetrec.data.store import Dataset
from budgetrec.memory import StepMemory, measure_overhead, peak_bytes, resident_bytes
from budgetrec.training import train

RESULTS = Path(__file__).parent / "results" / "memory.md"
MIB = 2**20
COMMON = {"threads": 1, "device": "cpu", "validation_users": 512, "checkpoint_seconds": 600.0}
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


def make_config(setting: dict) -> RunConfig:
    """Turn a row of the table into settings of a run."""
    own = {name: value for name, value in setting.items() if name not in ("items", "features")}
    return RunConfig().replaced({"steps": 4, **COMMON, **own})


def measure(setting: dict, folder: Path) -> int:
    """Train in this process, and give by how much it grew."""
    device = torch.device("cpu")
    dataset = Dataset.open(folder / "dataset")
    width = setting.get("features")
    features = None if width is None else torch.rand(setting["items"], width)
    before = resident_bytes(device)
    train(dataset, folder / "run", make_config(setting), features=features)
    return peak_bytes(device) - before


def run(setting: dict, overhead: int) -> dict:
    """Predict a setting, and measure it in a child."""
    dataset = make_dataset(setting["items"], setting["max_length"])
    config = make_config(setting)
    begin = time.perf_counter()
    lengths = TrainingBatches(dataset, batch_size=1, max_length=config.model.max_length).lengths
    memory = StepMemory.dry_run(
        config,
        num_items=setting["items"],
        lengths=lengths,
        features_width=setting.get("features"),
        overhead=overhead,
    )
    sizes = (config.training.batch_size, config.objective.num_negatives, config.training.micro_batches)
    parts = memory.parts(*sizes)
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dataset").mkdir()
        dataset.save(Path(folder) / "dataset")
        command = [sys.executable, __file__, "--measure", json.dumps(setting), "--folder", folder]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"parts": parts, "seconds": seconds, "measured": int(child.stdout)}


def describe(setting: dict) -> str:
    """Name a setting in one cell."""
    words = [setting.get("objective", setting.get("sharing", ""))]
    words += [name for name in ("lean",) if setting.get(name)]
    words += [str(setting[name]) for name in ("model", "sampler") if name in setting]
    words += [f"features {setting['features']}"] if "features" in setting else []
    words += [f"{setting['micro_batches']} parts"] if "micro_batches" in setting else []
    return " ".join([*words, setting["optimizer"], setting["table_updates"]])


def main() -> None:
    """Print the table, and record it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--measure")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.measure:
        print(measure(json.loads(asked.measure), asked.folder))
        return
    overhead = measure_overhead(threads=1)
    print(f"overhead {overhead / MIB:.0f} MiB", file=sys.stderr)
    lines = ["| K | d | L | n | k | setting | predicted | measured | ratio |", "|" + "---|" * 9]
    ratios = []
    for place, setting in enumerate(SETTINGS):
        if asked.only and place not in asked.only:
            continue
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
    text = "\n".join(
        ["# Memory of training, predicted and measured", "", summary, "",
         f"`make bench-memory`. {describe_machine()}", "", " ".join(__doc__.split("\n\n")[1].split()), "",
         *lines, ""]
    )  # fmt: skip
    print(text)
    if asked.record:
        asked.record.write_text(text)


if __name__ == "__main__":
    main()
