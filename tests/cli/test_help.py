"""Help is short, grouped and true, and a mistyped flag is answered with the right one."""

import re
import subprocess
import sys
import time

import pytest

from budgetrec.cli.help import GROUP_OF, nearest_flags
from budgetrec.settings.sections import all_settings

PLANNED = (
    "batch-size",
    "num-negatives",
    "sharing",
    "objective",
    "lean",
    "micro-batches",
    "table-updates",
)
COMMANDS = (
    "fit",
    "prepare",
    "plan",
    "train",
    "evaluate",
    "compare",
    "recommend",
    "report",
    "data demo",
    "reproduce all",
)


def _flags(page: str) -> set[str]:
    """Return the flags that have an entry of their own."""
    return set(re.findall(r"^  (?:-\w, )?--([\w-]+)", page, re.MULTILINE))


def _entry(page: str, flag: str) -> str:
    found = re.search(rf"^  (?:-\w, )?--{flag} .*\n(?: {{20,}}.*\n)*", page, re.MULTILINE)
    assert found is not None, flag
    return " ".join(found[0].split())


@pytest.mark.parametrize("command", ["fit", "plan", "train"])
def test_help_is_short_and_help_all_is_complete(budgetrec, command):
    """`--help` shows at most 25 options; `--help-all` shows these and every setting."""
    short, whole = (_flags(budgetrec(command, flag).out) for flag in ("--help", "--help-all"))
    assert 15 <= len(short) <= 25
    assert short < whole
    assert {item.name.replace("_", "-") for _, item, _ in all_settings()} <= whole


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_what_the_plan_decides_is_said_to_be_planned(budgetrec, command):
    """The seven settings of an allocation have no default but the plan; with `train` they have one."""
    page = budgetrec(command, "--help-all").out
    planned = [flag for flag in sorted(_flags(page)) if "[default: planned]" in _entry(page, flag)]
    assert planned == sorted(PLANNED)
    assert "planned]" not in budgetrec("train", "--help-all").out
    assert "[default: 128]" in _entry(budgetrec("train", "--help").out, "batch-size")


def test_options_are_in_titled_groups(budgetrec):
    """Each flag of `train` stands under the title of what it is about."""
    page = budgetrec("train", "--help-all").out
    groups = dict(re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", page, re.MULTILINE))
    for title, flag in (
        ("Model", "dim"),
        ("Objective", "num-negatives"),
        ("Optimizer", "learning-rate"),
        ("Training", "batch-size"),
        ("Stopping", "epochs"),
        ("Evaluation", "metric"),
        ("Output", "output"),
    ):
        assert flag in _flags(groups[title])


def test_the_table_of_groups_names_only_options_that_exist(budgetrec):
    """A renamed option cannot leave its old name in the table."""
    renamed = {"as_json": "json", "preset_name": "preset", "layout": "format"}
    shown = set().union(
        *(_flags(budgetrec(command, "--help-all").out) for command in ("fit", "plan", "train"))
    )
    assert {renamed.get(name, name).replace("_", "-") for name in GROUP_OF} <= shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_100_columns(budgetrec, monkeypatch, command):
    """No line is longer than the terminal, and nothing is cut off."""
    monkeypatch.setenv("COLUMNS", "100")
    answer = budgetrec(*command.split(), "--help")
    assert answer.code == 0
    assert max(len(line) for line in answer.out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("train", "--lr", 1), "--learning-rate"),
        (("train", "-lr", 1), "--learning-rate"),
        (("fit", "--learning_rate", 1), "--learning-rate"),
        (("plan", "--bs", 8), "--batch-size"),
        (("train", "--batchsize=8"), "--batch-size"),
        (("fit", "--negatives", 8), "--num-negatives"),
        (("train", "--epoch", 1), "--epochs"),
        (("train", "--patiense", 1), "--patience"),
        (("prepare", "--min_users", 5), "--min-user"),
        (("evaluate", "--cutof", 5), "--cutoffs"),
        (("data", "demo", "--user", 5), "--users"),
        (("train", "--num", 1), "--num-blocks, --num-heads or --num-negatives"),
    ],
)
def test_a_mistyped_flag_is_answered_with_the_right_one(refused, arguments, meant):
    """One sentence with the flag as it was typed and the one that was meant."""
    typed = next(str(part) for part in arguments if str(part).startswith("-")).partition("=")[0]
    assert refused(*arguments) == f"budgetrec: there is no option {typed}. Did you mean {meant}?\n"


def test_a_flag_like_no_other_leads_to_the_help(refused):
    """Where nothing is near, the page with every option is named."""
    assert refused("train", "--zzz") == (
        "budgetrec: there is no option --zzz. See budgetrec train --help-all.\n"
    )
    assert "See budgetrec report --help." in refused("report", "--zzz")


def test_a_hint_never_names_a_flag_that_the_command_does_not_have():
    """An alias counts only where its flag exists."""
    assert nearest_flags("--lr", ["output", "json"]) == []


def test_help_is_instant():
    """`budgetrec --help` answers in half a second, the best of three tries on a busy machine."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "budgetrec", "--help"], capture_output=True, check=True)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.5
