"""The log of trials, and the table."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.torture.processes import Fault

_FAULTS = [str(fault) for fault in Fault]


@dataclass(frozen=True)
class Trial:
    """One trial, or a chunk of mutants."""

    identity: str  # CAMPAIGN/JOB/NUMBER
    tried: int
    faults: list[tuple[str, str, str]] = field(default_factory=list)  # what, how, and what repeats it
    notes: dict[str, int] = field(default_factory=dict)  # how often what else happened

    @property
    def campaign(self) -> str:
        """The campaign that it belongs to."""
        return self.identity.split("/")[0]

    @property
    def job(self) -> str:
        """The command or the file that suffered."""
        return self.identity.split("/")[1]


class Log:
    """Trials as lines of JSON; what is there already need not be tried again."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        if again:
            path.unlink(missing_ok=True)
        self.trials: dict[str, Trial] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    trial = Trial(**json.loads(line))
                except ValueError:  # the campaign itself was killed in the middle of a line
                    continue
                self.trials[trial.identity] = trial

    def add(self, trial: Trial) -> None:
        """Write a trial down."""
        self.trials[trial.identity] = trial
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(trial)) + "\n")

    def tried(self, campaign: str) -> int:
        """Count what a campaign has tried."""
        return sum(trial.tried for trial in self.trials.values() if trial.campaign == campaign)


def table(trials: Iterable[Trial]) -> str:
    """Return a Markdown table: what was tried and what went wrong, by campaign and by job."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.campaign, "all"), []).append(trial)
        groups.setdefault((trial.campaign, trial.job), []).append(trial)
    head = ["campaign", "of", "tried", "clean", "lost", "left behind", "tracebacks", "hangs"]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for (campaign, job), members in sorted(
        groups.items(), key=lambda item: (item[0][0], item[0][1] != "all")
    ):
        faults = Counter(fault for trial in members for fault, _, _ in trial.faults)
        tried = sum(trial.tried for trial in members)
        clean = tried - sum(faults.values())
        name = f"**{campaign}**" if job == "all" else ""
        cells = [name, job, f"{tried:,}", f"{clean:,}", *(str(faults[each]) for each in _FAULTS)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def faults(trials: Iterable[Trial]) -> list[str]:
    """Return a line for each kind of fault: how often, and the command that repeats the first."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for trial in trials:
        for fault, told, repeats in trial.faults:
            last = told.strip().splitlines()[-1] if told.strip() else ""
            last = re.sub(r"partial-\w+|[0-9a-f]{8,}|\d+", "*", last)  # one kind of fault, one line
            kinds.setdefault((f"{trial.campaign}/{trial.job}", fault, last[:300]), []).append(repeats)
    return [
        f"{where}: {fault}, {len(found)} times: {last}\n    python -m tests.torture --repeat '{found[0]}'"
        for (where, fault, last), found in sorted(kinds.items())
    ]
