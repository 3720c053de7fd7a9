"""`python -m tests.torture`: run the campaigns, print the table, and record it."""

import argparse
import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.torture.faults import cap_memory, fill_disk, kill_forked, kill_real, run_pair
from tests.torture.fuzzing import CHUNKS, mutate
from tests.torture.inputs import TARGETS
from tests.torture.jobs import JOBS
from tests.torture.processes import import_everything
from tests.torture.record import Log, Trial, faults, table
from tests.torture.scene import Scene, open_scene

_REPOSITORY = Path(__file__).parents[2]


Attempt = Callable[[Scene, str], Trial]


@dataclass(frozen=True)
class Campaign:
    """A kind of fault: how to try it once, how often, in what share of the time, and on what in turn."""

    name: str
    attempt: Attempt
    wanted: int
    small: int  # wanted in a small campaign
    share: float
    rounds: Callable[[bool], Iterator[str]]  # identities without the campaign's name; whether it is small


def _jobs(slow_every: int) -> Callable[[bool], Iterator[str]]:
    """Take all jobs in turn, the slow ones only in some rounds."""

    def rounds(small: bool) -> Iterator[str]:
        for number in itertools.count():
            for job in JOBS.values():
                if not job.slow or (not small and number % slow_every == slow_every - 1):
                    yield f"{job.name}/{number}"

    return rounds


def _mutants(engine: str) -> Callable[[bool], Iterator[str]]:
    """Take all files in turn, so many mutants of each as it weighs."""

    def rounds(small: bool) -> Iterator[str]:
        for number in itertools.count():
            for target in TARGETS.values():
                if not (small and target.slow):
                    chunk = 5 if small else round(CHUNKS[engine] * target.weight)
                    yield f"{target.name}/{engine}-{number}-{chunk}"

    return rounds


CAMPAIGNS = (
    Campaign("kills of forked children", kill_forked, 1000, 20, 0.22, _jobs(8)),
    Campaign("kills of real processes", kill_real, 200, 2, 0.33, _jobs(4)),
    Campaign("mutants of hypothesis", mutate, 5000, 140, 0.13, _mutants("hypothesis")),
    Campaign("mutants of the fuzzer", mutate, 5000, 0, 0.15, _mutants("fuzzer")),
    Campaign("disks that fill", fill_disk, 400, 9, 0.09, _jobs(10)),
    # Near the limit libraries end or hang in their own ways, now and then: none of it for tests of a change.
    Campaign("capped memory", cap_memory, 200, 0, 0.04, _jobs(10)),
    Campaign("two at once", run_pair, 100, 5, 0.04, _jobs(5)),
)


def main() -> int:
    """Run what is asked for; the exit code says whether anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=90.0, help="end after this time, done or not")
    parser.add_argument(
        "--work", type=Path, default=Path("build/torture"), help="folder for all that is kept"
    )
    parser.add_argument("--only", default="", help="campaigns whose names hold this")
    parser.add_argument("--small", action="store_true", help="a few trials of each, for tests")
    parser.add_argument("--again", action="store_true", help="forget trials that are done")
    parser.add_argument("--repeat", help="repeat one trial, and tell all about it")
    parser.add_argument("--record", type=Path, help="write the table to this Markdown file")
    asked = parser.parse_args()
    chosen = [each for each in CAMPAIGNS if asked.only in each.name]
    asked.work.mkdir(parents=True, exist_ok=True)
    import_everything()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the disk is taken away
    with open_scene(asked.work.resolve()) as scene:
        if asked.repeat:
            return _repeat(scene, asked.repeat)
        log = Log(asked.work / "trials.jsonl", again=asked.again)
        _run(scene, log, chosen, small=asked.small, deadline=time.monotonic() + 60 * asked.minutes)
    names = {each.name for each in chosen}
    trials = [trial for trial in log.trials.values() if trial.campaign in names]
    _print(f"{table(trials)}\n")
    found = faults(trials)
    _print("\n".join(found))
    if asked.record:
        asked.record.write_text(_document(trials, found, mounted=scene.mounted))
    return 1 if found else 0


def _repeat(scene: Scene, identity: str) -> int:
    campaign = next(each for each in CAMPAIGNS if each.name == identity.split("/")[0])
    trial = campaign.attempt(scene, identity)
    for fault, told, _ in trial.faults:
        _print(f"{fault}: {told}")
    _print(f"{trial.tried} tried, {len(trial.faults)} went wrong")
    return 1 if trial.faults else 0


def _run(scene: Scene, log: Log, campaigns: list[Campaign], *, small: bool, deadline: float) -> None:
    """Run campaigns one after another; the time that one does not need goes to the next."""
    for place, campaign in enumerate(campaigns):
        share = campaign.share / sum(each.share for each in campaigns[place:])
        until = time.monotonic() + share * (deadline - time.monotonic())
        wanted = campaign.small if small else campaign.wanted
        for each in campaign.rounds(small):
            tried = log.tried(campaign.name)
            if tried >= wanted or time.monotonic() > until:
                break
            identity = f"{campaign.name}/{each}"
            if identity in log.trials:
                continue
            trial = campaign.attempt(scene, identity)
            log.add(trial)
            for fault, told, repeats in trial.faults:
                _print(f"{identity}: {fault}: {told.strip()[-1500:]}\n  --repeat '{repeats}'")
        _print(f"{campaign.name}: {log.tried(campaign.name):,} of {wanted:,} tried")


def _document(trials: list[Trial], found: list[str], *, mounted: bool) -> str:
    sys.path.insert(0, str(_REPOSITORY / "benchmarks"))
    from machine import describe_machine  # type: ignore[import-not-found]

    disk = (
        "a small disk in memory" if mounted else "a limit on the size of files, as no disk could be mounted"
    )
    notes = Counter[str]()
    for trial in trials:
        notes.update({f"{trial.campaign}: {name}": count for name, count in trial.notes.items()})
    lines = [
        "# Torture: what kills, mutated inputs, full disks, little memory and company did",
        f"`make torture`. {describe_machine()}",
        "Each trial happens on tiny data. After a kill the command runs again, or what it says goes on, and "
        "what is there must equal what an undisturbed run leaves, bit for bit, clocks apart. A mutated file "
        f"must be read, or refused in one sentence. Full disks are {disk}. Numbers are kills that landed, "
        "mutants, or commands.",
        table(trials),
        "\n".join(f"- {name}: {count:,}" for name, count in sorted(notes.items())),
        "Nothing went wrong." if not found else "```text\n" + "\n".join(found) + "\n```",
    ]
    return "\n\n".join(line for line in lines if line) + "\n"


def _print(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
