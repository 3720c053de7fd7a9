"""What every contender of the training benchmark has in common: its settings, its clock, its one line.

It needs nothing but torch, as each contender runs it in an environment of its own.
"""

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

BATCH_SIZE, MAX_LENGTH, DIM, BLOCKS, HEADS, NEGATIVES = 128, 200, 64, 2, 2, 128


def parse_arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments that all contenders take."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="parquet of user, item, timestamp: the training rows")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="at most this many steps an epoch, for a rough look")
    parser.add_argument("--warm-up-steps", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


class Clock:
    """Time the training steps after the first few, and count what they trained.

    `begin` once before training, `step` after each step with its padding mask (True where there is a target).
    Everything between the steps is in the time: loading batches, drawing negatives, ends of epochs.
    """

    def __init__(self, warm_up_steps: int) -> None:
        self.warm_up_steps = warm_up_steps
        self.steps = self.sequences = self.targets = 0
        self.all_sequences = self.all_targets = 0
        self.start = self.stop = self.start_cpu = self.stop_cpu = 0.0
        self.first = 0.0
        self.peak_before = 0

    def begin(self) -> None:
        """Note the peak so far, and start a new one."""
        self.peak_before = status_bytes("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")
        self.first = time.perf_counter()

    def step(self, mask: torch.Tensor) -> None:
        """Count one finished step."""
        self.count(mask.shape[0], int(mask.sum()))

    def count(self, sequences: int, targets: int) -> None:
        """Count one finished step with so many sequences and targets."""
        self.stop, self.stop_cpu = time.perf_counter(), time.process_time()
        self.steps += 1
        self.all_targets += targets
        self.all_sequences += sequences
        if self.steps <= self.warm_up_steps:
            self.start, self.start_cpu = self.stop, self.stop_cpu
            return
        self.sequences += sequences
        self.targets += targets

    def report(self) -> dict[str, Any]:
        """Return what was measured; peaks are of the whole process, imports included."""
        seconds = self.stop - self.start
        training_peak = status_bytes("VmHWM")
        return {
            "seconds": seconds,
            "cpu_seconds": self.stop_cpu - self.start_cpu,
            "steps": self.steps - self.warm_up_steps,
            "sequences": self.sequences,
            "sequences_per_second": self.sequences / seconds,
            "targets": self.targets,
            "all_sequences": self.all_sequences,
            "all_targets": self.all_targets,
            "peak_bytes": max(self.peak_before, training_peak),
            "training_peak_bytes": training_peak,
        }


class ClockCallback:
    """The clock as the hooks of a Lightning callback; mix it with the Callback of the peer's Lightning."""

    def __init__(self, warm_up_steps: int, mask_name: str) -> None:
        self.clock = Clock(warm_up_steps)
        self.mask_name = mask_name

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start."""
        self.clock.begin()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the targets of the batch that was trained: its mask, or its labels with 0 for padding."""
        self.clock.step(batch[self.mask_name].flatten(1) != 0)


def status_bytes(field: str) -> int:
    """Read a size of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def print_report(found: dict[str, Any], *packages: str) -> None:
    """Print the one line that the benchmark reads."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in packages}
    print(json.dumps(found | {"versions": versions}))
