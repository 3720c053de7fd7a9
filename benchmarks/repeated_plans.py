"""Ten plans of one dataset, five of them while other work keeps every core busy.

    .venv/bin/python benchmarks/repeated_plans.py DATASET --memory 512MiB --max-length 50

Each plan is made in a process of its own. All chosen allocations are then judged with the measurements of
the first quiet plan: the score of each over the best of the ten. Steps of each are also taken for real on
the quiet machine, and their median seconds compared with what its plan foresaw.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from machine import describe_machine

from budgetrec.data.store import Dataset
from budgetrec.planner.choosing import make_search
from budgetrec.planner.measurements import measured_before
from budgetrec.planner.plan import Plan
from budgetrec.planner.request import PlanOptions, make_request
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper

_STEPS = 7


def make(asked: argparse.Namespace, folder: Path, *, busy: bool) -> tuple[Plan, float]:
    """Plan in a process of its own, and return the plan and how long that took."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() if busy else 0)
    ]
    command = [sys.executable, "-m", "budgetrec", "plan", str(asked.dataset), "--memory", asked.memory]
    command += ["--max-length", str(asked.max_length), "-o", str(folder), "--json"]
    command += ["--threads", str(asked.threads)] if asked.threads else []
    begin = time.perf_counter()
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    return Plan.read(folder), time.perf_counter() - begin


def step_seconds(dataset: Dataset, config: RunConfig, plan: Plan) -> float:
    """Take steps of a plan, and return their median seconds."""
    stepper = Stepper(dataset, config.replaced(plan.settings))
    taken = []
    for place, batch in enumerate(stepper.batches.epoch(stepper.generators["order"])):
        begin = time.perf_counter()
        stepper.step(batch, 1e-3)
        taken.append(time.perf_counter() - begin)
        if place == _STEPS:
            break
    return median(taken[1:] or taken)


def main() -> None:
    """Print one line for each plan, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--max-length", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--plans", type=int, default=10)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    dataset = Dataset.open(asked.dataset)
    settings = {"max_length": asked.max_length} | ({"threads": asked.threads} if asked.threads else {})
    config = RunConfig().replaced(settings)
    plans = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(asked.plans):
            busy = number % 2 == 1
            plan, seconds = make(asked, Path(place) / str(number), busy=busy)
            plans.append((busy, plan, seconds))
            chosen = plan.allocation
            words = f"{number} {chosen.describe()} n = {chosen.batch_size:,}, k = {chosen.num_negatives:,}"
            print(f"{words}: {seconds:.0f} s", file=sys.stderr, flush=True)
    request = make_request(asked.memory, config, PlanOptions())
    search = make_search(request, measured_before(plans[0][1], request, dataset, None))
    lines = ["| machine | n | k | sharing | planned in | foreseen | real | ratio | score |", "|" + "---|" * 9]
    ratios, scores = (
        [],
        [
            float(search.score(plan.allocation, plan.allocation.batch_size, plan.allocation.num_negatives))
            for _, plan, _ in plans
        ],
    )
    for (busy, plan, seconds), score in zip(plans, scores, strict=True):
        chosen = plan.allocation
        real = step_seconds(dataset, config, plan)
        ratios.append(real / plan.step_seconds)
        told = "busy" if "busy" in plan.assumptions.get("seconds", "") else "quiet"
        cells = [
            f"{'busy' if busy else 'quiet'}, the plan says {told}",
            f"{chosen.batch_size:,}",
            f"{chosen.num_negatives:,}",
            chosen.describe(),
            f"{seconds:.0f} s",
            f"{plan.step_seconds * 1e3:.0f} ms",
            f"{real * 1e3:.0f} ms",
            f"{ratios[-1]:.2f}",
            f"{score / min(scores):.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    words = " ".join(
        f"--{name} {getattr(asked, name)}" for name in ("memory", "max_length", "threads")
    ).replace("_", "-")
    text = (
        f"# Ten plans of one dataset\n\n`benchmarks/repeated_plans.py {asked.dataset.name} {words}`. "
        f"{describe_machine()}\n\nJudged with the first plan's measurements, the choices lie within "
        f"{max(scores) / min(scores):.3f} of each other; real over foreseen seconds per step: "
        f"{min(ratios):.2f} to {max(ratios):.2f}.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if asked.record:
        asked.record.write_text(text)


if __name__ == "__main__":
    main()
