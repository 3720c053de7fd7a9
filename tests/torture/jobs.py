"""The commands that are tortured, and what a person does when one was disturbed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Commands = list[list[str]]

SIZE = "--dim 8 --max-length 6 --num-negatives 8 --batch-size 16 --threads 1"
TRAIN = f"{SIZE} --evaluate-every 64 --checkpoint-seconds 0.01 --steps 30"
# Everything that a plan could choose is given, so that the choice does not depend on the clock, and there are
# bytes to spare, so that steps are never cut finer in the middle of a run.
PLAN = (
    f"--memory 1GiB {SIZE} --sharing sequence --objective sampled-softmax --table-updates dense "
    "--micro-batches 1 --warm-up-targets 500 --goal noise"
)


@dataclass(frozen=True)
class Job:
    """A command in a scene.

    `start` names the scene in which it begins, `line` is the command, with {here} for the scene's folder, and
    `after` what a person does next when it was disturbed. `replaces` is a result of before that must be there
    whole until the new one is; `is_new` tells that it is.
    """

    name: str
    start: str
    line: str
    after: Callable[[Path, list[str]], Commands]
    replaces: str | None = None
    is_new: Callable[[Path], bool] = lambda here: False
    slow: bool = False  # seconds rather than a fraction of one

    def command(self, here: Path) -> list[str]:
        """Return the command line."""
        return self.line.format(here=here).split()

    def recovery(self, here: Path) -> Commands:
        """Return the commands that lead from any disturbed state to the result."""
        return self.after(here, self.command(here))


def _again(here: Path, command: list[str]) -> Commands:
    return [command]


def _unless(name: str) -> Callable[[Path, list[str]], Commands]:
    return lambda here, command: [] if (here / name).exists() else [command]


def _go_on(here: Path, command: list[str]) -> Commands:
    begun = (here / "run" / "run.toml").is_file()
    return [["train", "--resume", str(here / "run")]] if begun else [command]


def _has_other_seed(here: Path) -> bool:
    path = here / "run" / "run.toml"
    return path.is_file() and "seed = 1\n" in path.read_text()


def _go_on_with_other_seed(here: Path, command: list[str]) -> Commands:
    return _go_on(here, command) if _has_other_seed(here) else [command]


def _finish_fit(here: Path, command: list[str]) -> Commands:
    run = str(here / "run")
    if (here / "run" / "run.toml").is_file():
        return [["train", "--resume", run], ["evaluate", run], ["report", run]]
    return [[*command, "--overwrite"]]


JOBS = {
    job.name: job
    for job in (
        Job("demo", "nothing", "data demo -o {here}/raw --users 60 --items 40 --rows 900", _unless("raw")),
        Job("prepare", "raw", "prepare {here}/raw/events.parquet -o {here}/dataset", _unless("dataset")),
        Job(
            "prepare over",
            "old dataset",
            "prepare {here}/raw/events.parquet -o {here}/dataset --overwrite",
            _again,
            replaces="dataset",
        ),
        Job("train", "prepared", f"train {{here}}/dataset -o {{here}}/run {TRAIN}", _go_on),
        Job(
            "train over",
            "trained",
            f"train {{here}}/dataset -o {{here}}/run {TRAIN} --seed 1 --overwrite",
            _go_on_with_other_seed,
            replaces="run",
            is_new=_has_other_seed,
        ),
        Job("resume", "half", "train --resume {here}/run --steps 30", _again),
        Job("evaluate", "evaluated", "evaluate {here}/run", _again),
        Job("recommend", "trained", "recommend {here}/run -o {here}/lists.csv", _unless("lists.csv")),
        Job("report", "evaluated", "report {here}/run", _again),
        Job("plan", "prepared", f"plan {{here}}/dataset {PLAN} -o {{here}}/plan", _unless("plan"), slow=True),
        Job(
            "fit",
            "raw",
            f"fit {{here}}/raw/events.parquet -o {{here}}/run {PLAN} --evaluate-every 64 "
            "--checkpoint-seconds 0.01 --steps 30",
            _finish_fit,
            slow=True,
        ),
    )
}
# How the scenes come about: each from another by commands.
SCENES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "nothing": (None, ()),
    "raw": ("nothing", (JOBS["demo"].line,)),
    "prepared": ("raw", (JOBS["prepare"].line,)),
    "old dataset": ("raw", (f"{JOBS['prepare'].line} --min-item 30",)),
    "half": ("prepared", (JOBS["train"].line.replace("--steps 30", "--steps 14"),)),
    "trained": ("prepared", (JOBS["train"].line,)),
    "planned": ("prepared", (JOBS["plan"].line,)),
    "followed": (
        "planned",
        ("train {here}/dataset -o {here}/run --plan {here}/plan/plan.toml --steps 30 --threads 1",),
    ),
    "featured": (
        "raw",
        (
            JOBS["prepare"].line,
            f"{JOBS['train'].line} --item-features {{here}}/raw/items.parquet",
        ),
    ),
    "evaluated": ("trained", ("evaluate {here}/run --cutoffs 5", "report {here}/run")),
}
