"""Seconds and peak bytes of one training step of each objective: `make bench-objectives`.

Every case runs in a process of its own, so that memory is that case's alone: inputs and draws are made, a
tiny step starts threads and libraries, and the high-water mark of the process (VmHWM, reset through
/proc/self/clear_refs) is read after one full step, less the resident memory before it; freed blocks go back
to the system in that run. The gradients of hidden and table, which every case must produce, are part of it.
Seconds are by the clock, the median of the later steps; rounds over all cases alternate. Cases whose logits
and gathered rows alone exceed the free memory are not run and say so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from torch import Tensor

from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.samplers import Negatives, Uniform

SEQUENCES, LENGTH, DIM, ITEMS = 128, 200, 64, 100_000
TARGETS = SEQUENCES * LENGTH
SAMPLED = {"shared": 1, "per sequence": SEQUENCES, "per target": TARGETS}
GROUPS = {f"{name}{mode}": groups for name, groups in SAMPLED.items() for mode in ("", ", lean")}
RESULTS = Path(__file__).parent / "results" / "objectives.md"


def plain_per_target(hidden: Tensor, targets: Tensor, table: Tensor, negatives: Negatives) -> Tensor:
    """Return sampled softmax in the way of RecTools: gather (T, k + 1, d), multiply, cross-entropy."""
    ids = torch.cat([targets, negatives.ids], dim=1)  # (T, 1 + k)
    vectors = torch.nn.functional.embedding(ids, table)  # (T, 1 + k, d)
    logits = (vectors @ hidden.transpose(1, 2)).squeeze(-1)
    return torch.nn.functional.cross_entropy(logits, torch.zeros_like(targets[:, 0]))


def make_step(case: str, num_negatives: int, size: int = TARGETS) -> Callable[[], None]:
    """Build the inputs of a case and return one forward and backward pass over them."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(size, DIM, generator=generator).requires_grad_()
    table = (0.1 * torch.randn(ITEMS, DIM, generator=generator)).requires_grad_()
    targets = torch.randint(ITEMS, (size,), generator=generator)
    num_groups = min(GROUPS.get(case, 1), size)
    if case == "plain per target":
        num_groups = size
    shape = (num_groups, size // num_groups)
    states, wanted = hidden.view(*shape, DIM), targets.view(shape)
    negatives = Uniform(ITEMS, num_negatives).draw(wanted, generator) if num_negatives else None

    def step() -> None:
        hidden.grad = table.grad = None
        if case.startswith("full softmax"):
            loss = full_softmax(states, wanted, table, lean="blocks" in case)
        elif case == "plain per target":
            loss = plain_per_target(states, wanted, table, negatives)
        else:
            loss = sampled_softmax(states, wanted, table, negatives, lean="lean" in case)
        loss.backward()

    return step


def measure(case: str, num_negatives: int, size: int, repeats: int) -> dict[str, Any]:
    """Run one case in this process."""
    make_step(case, min(num_negatives, 8), SEQUENCES)()
    step = make_step(case, num_negatives, size)
    before = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    peak = _status_bytes("VmHWM") - before
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"peak_bytes": peak, "step_seconds": seconds}


def run_case(case: str, num_negatives: int, size: int, *, threads: int, repeats: int) -> dict[str, Any]:
    """Run a case in a process of its own: without repeats for its memory, with some for its seconds.

    For memory, blocks from 128 KiB on are returned to the system when freed, as memory that the allocator
    keeps from an earlier step would hide what a step needs. For seconds the allocator is left alone.
    """
    arguments = ["--case", case, "--negatives", str(num_negatives), "--targets", str(size)]
    arguments += ["--repeats", str(repeats), "--threads", str(threads)]
    settings = {} if repeats else {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | settings)
    print(*arguments, done.stdout.strip(), file=sys.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def least_bytes(case: str, num_negatives: int, size: int) -> int:
    """Bytes that a case cannot do without: its logits or gathered rows, and as many for their gradient."""
    if case == "full softmax":
        return 3 * 4 * size * ITEMS  # logits, their log-softmax, the gradient
    if case in ("plain per target", "per target"):
        return 2 * 4 * size * num_negatives * DIM
    return 0


def free_bytes() -> int:
    """Memory that the machine can give now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def run_all(rounds: int, threads: int) -> str:
    """Run every case in rounds and give the table as Markdown."""
    cases: list[tuple[str, int, int]] = []
    for num_negatives in (128, 512, 2048):
        cases += [(name, num_negatives, TARGETS) for name in (*GROUPS, "plain per target")]
    cases += [("full softmax", 0, TARGETS), ("full softmax", 0, TARGETS // 10)]
    cases += [("full softmax, blocks", 0, TARGETS // 10), ("full softmax, blocks", 0, TARGETS)]
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, num_negatives, size in cases:
            if least_bytes(case, num_negatives, size) > 0.8 * free_bytes():
                continue
            runs = found[case, num_negatives, size]
            if runs and max(runs[0]["step_seconds"]) > 5:
                continue
            slow = case.startswith("full") or "target" in case
            timed = run_case(case, num_negatives, size, threads=threads, repeats=1 if slow else 7)
            if not runs:
                sized = run_case(case, num_negatives, size, threads=threads, repeats=0)
                timed["peak_bytes"] = sized["peak_bytes"]
            runs.append(timed)
    lines = ["| objective | k | targets | ms a step | peak MB |", "|---|---|---|---|---|"]
    for (case, num_negatives, size), runs in found.items():
        head = f"| {case} | {num_negatives or '-'} | {size:,} "
        if not runs:
            least = least_bytes(case, num_negatives, size) / 1e9
            lines.append(f"{head}| not run | needs more than {least:,.0f} GB |")
            continue
        seconds = statistics.median(second for run in runs for second in run["step_seconds"])
        peak = runs[0]["peak_bytes"]
        lines.append(f"{head}| {1e3 * seconds:,.0f} | {peak / 1e6:,.0f} |")
    return "\n".join([*lines, "", *_bars(found)])


def _bars(found: dict[tuple[str, int, int], list[dict[str, Any]]]) -> list[str]:
    def seconds(case: str, k: int) -> float:
        return statistics.median(s for run in found[case, k, TARGETS] for s in run["step_seconds"])

    def peak(case: str, k: int) -> float:
        return found[case, k, TARGETS][0]["peak_bytes"]

    lines = ["| bar | wanted | measured |", "|---|---|---|"]
    for k in (128, 512, 2048):
        ratio = seconds("per sequence", k) / seconds("shared", k)
        lines.append(f"| time of per sequence over shared, k = {k:,} | at most 1.3 | {ratio:.2f} |")
    faster = seconds("plain per target", 128) / seconds("per sequence", 128)
    smaller = peak("plain per target", 128) / peak("per sequence", 128)
    lines.append(f"| speed of per sequence over plain per target, k = 128 | at least 8 | {faster:.1f} |")
    lines.append(f"| memory of plain per target over per sequence, k = 128 | at least 10 | {smaller:.1f} |")
    for case in ("shared", "per sequence"):
        slower = seconds(f"{case}, lean", 2048) / seconds(case, 2048)
        share = peak(f"{case}, lean", 2048) / peak(case, 2048)
        lines.append(f"| time of lean over plain, {case}, k = 2,048 | at most 1.35 | {slower:.2f} |")
        lines.append(f"| memory of lean over plain, {case}, k = 2,048 | at most 0.33 | {share:.2f} |")
    return lines


def main() -> None:
    """Run one case when asked for one, else all of them and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case")
    parser.add_argument("--negatives", type=int, default=128)
    parser.add_argument("--targets", type=int, default=TARGETS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.case:
        print(json.dumps(measure(asked.case, asked.negatives, asked.targets, asked.repeats)))
        return
    machine = f"`make bench-objectives`, {asked.threads} threads. {describe_machine()}"
    table = run_all(asked.rounds, asked.threads)
    title = f"# One step of each objective\n\nT = {TARGETS:,} targets ({SEQUENCES} sequences x {LENGTH}), "
    title += (
        f"d = {DIM}, K = {ITEMS:,}, float32, forward and backward. Drawing the negatives is not timed.\n\n"
    )
    method = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    RESULTS.write_text(f"{title}{machine}\n\n{method}\n\n{table}\n")
    print(table)


if __name__ == "__main__":
    main()
