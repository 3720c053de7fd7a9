"""Whether this version gives what an earlier one gave, bit for bit. Takes about five minutes on two cores.

    .venv/bin/python benchmarks/same_results.py --before 905d0a8

The earlier commit is cloned into a temporary folder. Both versions then prepare the same generated data,
train 50 steps in settings that together cover every objective and sampler, evaluate, and plan from stored
numbers, all through the command line with one thread and one seed. Weights, optimizer states, generators,
metrics and plans must be equal to the last bit; only clocks, bytes that were measured, and wording may
differ. The exit code is 1 if anything else does.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent.parent
USERS, ITEMS, ROWS = 300, 400, 6000
COMMON = (
    "--dim 16 --max-length 20 --batch-size 32 --learning-rate 0.003 --steps 50 --evaluate-every 600 "
    "--seed 7 --threads 1 --device cpu"
)
DRAWN = f"{COMMON} --num-negatives 24"
# FEATURES and PLAN stand for files that both versions read.
RUNS = {
    "sampled softmax, uniform, dense": f"{DRAWN} --sharing sequence --table-updates dense",
    "sampled softmax, popularity, row-sparse": f"{DRAWN} --sampler popularity --popularity-power 0.75 "
    "--correction logq --sharing batch --table-updates row-sparse",
    "sampled softmax, log-uniform, lean": f"{DRAWN} --sampler log-uniform --correction logq-negatives "
    "--sharing target --lean --table-updates row-sparse --optimizer adagrad",
    "sampled softmax, in-batch, cosine": f"{DRAWN} --sampler in-batch --sharing batch "
    "--correction refined-logq --cosine --temperature 0.1 --optimizer adamw --weight-decay 0.01",
    "sampled softmax, mixed, micro-batches": f"{DRAWN} --sampler mixed --sharing batch --micro-batches 4 "
    "--correction none --optimizer momentum --table-updates row-sparse",
    "sampled softmax, kernel": f"{DRAWN} --sampler kernel --sharing sequence",
    "sampled softmax, kernel, bert4rec, row-sparse": f"{DRAWN} --model bert4rec --sampler kernel "
    "--sharing batch --table-updates row-sparse --lean",
    "bce, row-sparse, micro-batches": f"{DRAWN} --objective bce --sharing target --micro-batches 2 "
    "--table-updates row-sparse",
    "gbce, popularity": f"{DRAWN} --objective gbce --calibration 0.9 --sampler popularity --optimizer sgd",
    "full softmax, lean": f"{COMMON} --objective full-softmax --lean --schedule cosine --warmup-steps 5",
    "full softmax, bert4rec, temperature": f"{COMMON} --objective full-softmax "
    "--temperature 0.5 --micro-batches 2 --activation gelu",
    "sce": f"{COMMON} --objective sce --num-buckets 8 --bucket-targets 32 --bucket-items 32",
    "rece, lean": f"{COMMON} --objective rece --num-buckets 8 --lean --clip-norm 1",
    "item features": f"{DRAWN} --item-features FEATURES --hidden-dim 24 --norm query",
    "item features, full softmax, untied": f"{COMMON} --objective full-softmax --item-features FEATURES "
    "--no-tied",
    "last targets of all windows": f"{DRAWN} --targets last --windows all --max-length 8 --patience 9",
    "a plan, followed": f"--plan PLAN {COMMON}".replace("--batch-size 32 ", ""),
    "a plan, made again on the way": f"--plan PLAN {COMMON} --replan 20".replace("--batch-size 32 ", ""),
}
RESUMED = "sampled softmax, kernel"  # run again in two halves
CATALOGUE = "--num-items 20000 --mean-length 40 --memory 512MiB"
SMALL = "--num-items 3000 --mean-length 15 --max-length 50 --memory 96MiB --dim 32"
PLANS = {
    "plan": CATALOGUE,
    "plan, least noise": f"{CATALOGUE} --goal noise --max-length 50",
    "plan, n = k": f"{SMALL} --rule paper",
    "plan, full softmax": f"{SMALL} --objective full-softmax --margin 0.2",
    "plan around fixed settings": f"{CATALOGUE} --batch-size 64 --sharing batch --optimizer sgd",
    "plan judges what is given": f"{SMALL} --batch-size 32 --num-negatives 100 --sharing target "
    "--objective gbce --no-lean --micro-batches 2 --table-updates row-sparse",
}
PLAN = (
    "--num-items 400 --mean-length 18 --max-length 20 --dim 16 --memory 1GiB --objective sampled-softmax "
    "--batch-size 32 --sharing sequence"
)
CLOCKS = {"seconds", "evaluation_seconds", "mean_loss_over_seconds", "examples_per_second"}
MEASURED = CLOCKS | {"peak_bytes", "training_bytes"}
# What a process needs besides tensors is measured in a child process; plans get a stored number instead.
STORED_OVERHEAD = """
import subprocess
subprocess.run = lambda *arguments, **options: subprocess.CompletedProcess(arguments, 0, "20000000", "")
from budgetrec.cli import main
main()
"""
PROSE = {"because", "assumptions", "name", "why"}  # the words may change, their numbers may not


@dataclass(frozen=True)
class Version:
    """One of the two versions, with a folder of its own to work in."""

    source: Path
    folder: Path

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this version."""
        program = ("-c", STORED_OVERHEAD) if arguments[0] == "plan" else ("-m", "budgetrec")
        return subprocess.run(
            [sys.executable, *program, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.source / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str) -> str:
        """Run a command that must succeed, and return what it prints."""
        done = self.start(*arguments)
        if done.returncode:
            raise RuntimeError(f"budgetrec {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
        return done.stdout

    def choices(self, option: str) -> set[str]:
        """Return what an option accepts, which the refusal of a wrong word lists."""
        refusal = self.start("train", "dataset", "-o", "refused", f"--{option}", "nonsense").stderr
        found = re.search(r"pass one of (.*)\.", refusal)
        if found is None:
            raise RuntimeError(f"train --{option} nonsense was not refused with a list: {refusal}")
        return set(found[1].split(", "))


def main() -> int:
    """Compare, print a table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", default="905d0a8", help="the commit to compare with")
    parser.add_argument("--after", type=Path, default=HERE, help="a checkout of the other version")
    parser.add_argument("--only", default="", help="leave out settings whose name lacks this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone(options.before, folder / "source")
        versions = (
            Version(folder / "source", folder / "before"),
            Version(options.after.resolve(), folder / "after"),
        )
        for version in versions:
            version.folder.mkdir()
        prepare(*versions)
        failed = missing(versions[1])
        for line in failed:
            print(line)
        for setting, work in jobs():
            if options.only not in setting:
                continue
            differences = compare(versions, setting, work)
            print(f"{setting:48} {'equal' if not differences else 'DIFFERS: ' + '; '.join(differences[:4])}")
            sys.stdout.flush()
            failed += differences
    print("everything is equal, bit for bit" if not failed else f"{len(failed)} differences")
    return 1 if failed else 0


def clone(commit: str, target: Path) -> None:
    """Check out a commit of this repository, without touching its working tree."""
    for command in (["clone", "--quiet", "--shared", str(HERE), str(target)],
                    ["-C", str(target), "checkout", "--quiet", commit]):  # fmt: skip
        subprocess.run(["git", *command], check=True)  # noqa: S607 - git is found on the path on purpose


def prepare(before: Version, after: Version) -> None:
    """Write the same events for both versions, let each prepare them, and plan once for the planned runs."""
    size = ("--users", str(USERS), "--items", str(ITEMS), "--rows", str(ROWS))
    for version in (before, after):
        version.run("data", "demo", "-o", "raw", *size)
        version.run("prepare", "raw/events.parquet", "-o", "dataset")
    before.run("plan", *PLAN.split(), "-o", "plan")
    for name in ("raw/events.parquet", "raw/items.parquet", "dataset/items.npy", "dataset/offsets.npy"):
        if (before.folder / name).read_bytes() != (after.folder / name).read_bytes():
            raise RuntimeError(f"{name} differs between the versions")


def missing(version: Version) -> list[str]:
    """Name what this version can do and no setting covers."""
    defaults = "--objective sampled-softmax --sampler uniform --correction theorem --optimizer adam"
    covered = f"{' '.join(RUNS.values())} {defaults} "
    return [
        f"no setting covers --{option} {choice}"
        for option in ("objective", "sampler", "correction", "sharing", "optimizer")
        for choice in sorted(version.choices(option))
        if f"--{option} {choice} " not in covered
    ]


Work = Callable[[Version], dict[str, object]]


def jobs() -> Iterator[tuple[str, Work]]:
    """Yield each setting with what it does in one version: results by name."""
    for setting, flags in RUNS.items():
        yield setting, lambda version, flags=flags: trained(version, flags, resumed=False)
    yield f"{RESUMED}, resumed", lambda version: trained(version, RUNS[RESUMED], resumed=True)
    for setting, flags in PLANS.items():
        yield setting, lambda version, flags=flags: planned(version, flags)


def compare(versions: tuple[Version, ...], setting: str, work: Work) -> list[str]:
    """Do the same in both versions, side by side, and name the results that differ."""
    with ThreadPoolExecutor(len(versions)) as pool:
        try:
            before, after = pool.map(work, versions)
        except RuntimeError as error:
            return [str(error)]
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def trained(version: Version, flags: str, *, resumed: bool) -> dict[str, object]:
    """Train and evaluate; return every tensor, row and metric."""
    folder = version.folder.parent
    flags = flags.replace("FEATURES", str(folder / "before/raw/items.parquet"))
    flags = flags.replace("PLAN", str(folder / "before/plan/plan.toml"))
    if resumed:
        flags = flags.replace("--steps 50", "--steps 23")
    version.run("train", "dataset", "-o", "run", "--overwrite", *flags.split())
    if resumed:
        version.run("train", "--resume", "run", "--steps", "50")
    found: dict[str, object] = {}
    for path in sorted((version.folder / "run").rglob("*.safetensors")):
        for name, values in load_file(path).items():
            found[f"{path.stem} {name}"] = (values.dtype.str, values.shape, values.tobytes())
    metrics = pl.read_parquet(version.folder / "run" / "metrics.parquet")
    for name in metrics.columns:
        if name not in MEASURED:
            found[f"metrics {name}"] = metrics[name].to_list()
    found["steps"] = metrics["step"].to_list()[-1]
    evaluation = json.loads(version.run("evaluate", "run", "--json"))
    found |= {f"evaluate {name}": value for name, value in leaves(evaluation) if name not in MEASURED}
    return found


def planned(version: Version, flags: str) -> dict[str, object]:
    """Plan without data, so without measurements; return every number and choice."""
    return dict(leaves(json.loads(version.run("plan", *flags.split(), "--json"))))


def leaves(value: object, name: str = "", *, prose: bool = False) -> Iterator[tuple[str, object]]:
    """Yield everything in a JSON document by its path; of sentences, their numbers."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{name}.{key}".lstrip("."), prose=prose or key in PROSE)
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from leaves(each, f"{name}.{place}", prose=prose)
    elif prose:
        yield name, re.findall(r"\d[\d,.]*\d|\d", str(value))
    else:
        yield name, value


if __name__ == "__main__":
    sys.exit(main())
