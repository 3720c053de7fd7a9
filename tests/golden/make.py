"""Make the folders and numbers beside this file; README.md says with which version and how."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

HERE = Path(__file__).parent
TINY = "--dim 8 --num-blocks 1 --num-heads 1 --max-length 10 --batch-size 16 --seed 3 --threads 1"
DRAWN = f"{TINY} --num-negatives 8 --evaluate-every 100"
RUNS = {
    "kernel": f"{DRAWN} --steps 12 --sampler kernel --table-updates row-sparse",
    "features": f"{DRAWN} --steps 12 --item-features raw/items.parquet --cosine --temperature 0.2",
    "bert4rec": f"{TINY} --steps 12 --model bert4rec --objective full-softmax --evaluate-every 100",
}
RESUMED_STEPS = 30
SMALL = "--num-items 3000 --mean-length 15 --max-length 50 --dim 32"
PLANS = {
    "least time": f"--memory 96MiB {SMALL}",
    "least noise": f"--memory 96MiB {SMALL} --goal noise --objective sampled-softmax --micro-batches 4",
    "n = k": f"--memory 96MiB {SMALL} --rule paper --objective sampled-softmax --table-updates dense",
    "everything given": f"--memory 512MiB {SMALL} --batch-size 32 --num-negatives 100 --sharing target "
    "--objective gbce --no-lean --micro-batches 2 --table-updates row-sparse",
}
PLANNED = (
    "--memory 1GiB --num-items 40 --mean-length 8 --max-length 10 --dim 8 --num-blocks 1 --num-heads 1 "
    "--objective sampled-softmax --batch-size 16 --sharing sequence"
)
FOLLOWED = "--steps 12 --seed 3 --threads 1"
PROSE = ("because", "assumptions")
OVERHEAD_BYTES = 20_000_000
# What a process needs besides tensors is measured in a child process; plans get this number instead.
_PLANNING = f"""
import subprocess
subprocess.run = lambda *args, **options: subprocess.CompletedProcess(args, 0, "{OVERHEAD_BYTES}", "")
from budgetrec.cli import main
main()
"""
RECOMMENDED = "--users user-0,user-7 --top 5"


def main() -> None:
    """Write everything again."""
    from losses import losses

    for name in ("dataset", "runs"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / "runs").mkdir()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        _run("data demo -o raw --users 60 --items 40 --rows 600")
        _run("prepare raw/events.parquet -o dataset")
        values: dict[str, object] = {"losses": losses()}
        for run, flags in RUNS.items():
            _run(f"train dataset -o {run} {flags}")
            _keep(Path(run))
        values["evaluations"] = {run: json.loads(_run(f"evaluate {run} --json")) for run in RUNS}
        values["recommendations"] = {
            run: json.loads(_run(f"recommend {run} {RECOMMENDED} --json")) for run in RUNS
        }
        values["resumed"] = {}
        for run in RUNS:
            _run(f"train --resume {run} --steps {RESUMED_STEPS}")
            values["resumed"][run] = last_row(Path(run))
        _run(f"plan {PLANNED} -o plan")
        _run(f"train dataset -o planned --plan plan/plan.toml {FOLLOWED}")
        values["planned"] = last_row(Path("planned"))
        plans = {name: json.loads(_run(f"plan {flags} --json")) for name, flags in PLANS.items()}
        shutil.copytree("dataset", HERE / "dataset")
        shutil.copy("plan/plan.toml", HERE / "plan.toml")
    (HERE / "values.json").write_text(json.dumps(values, indent=1) + "\n")
    plans = {name: {k: v for k, v in plan.items() if k not in PROSE} for name, plan in plans.items()}
    (HERE / "plans.json").write_text(json.dumps(plans, indent=1) + "\n")


def last_row(run: Path) -> dict[str, object]:
    """Return the last evaluation of a run."""
    return pl.read_parquet(run / "metrics.parquet").row(-1, named=True)


def _run(command: str) -> str:
    program = ("-c", _PLANNING) if command.startswith("plan ") else ("-m", "budgetrec")
    command_line = [sys.executable, *program, *command.split()]
    return subprocess.run(command_line, check=True, capture_output=True, text=True).stdout


def _keep(run: Path) -> None:
    """Copy a run without what tells of the machine."""
    kept = HERE / "runs" / run.name
    shutil.copytree(run, kept)
    (kept / "environment.json").unlink()
    marker = kept / "run.toml"
    marker.write_text(marker.read_text().replace(str(Path("dataset").resolve()), "tests/golden/dataset"))


if __name__ == "__main__":
    main()
