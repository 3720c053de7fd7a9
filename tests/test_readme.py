"""What the README shows is what happens: its commands and its Python run, one after the other, as written."""

import re
import shlex
from pathlib import Path

import pytest

from budgetrec import PlanOptions, fit, plan
from budgetrec.data import demo

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
# Pages whose Python runs on what the README made.
PAGES = [ROOT / "docs" / name for name in ("training.md", "planning.md", "evaluation.md")]
# What makes planning short, and changes nothing that the README says.
SMALL = ("--warm-up-targets", "3000", "--dim", "16", "--max-length", "20", "--sharing", "batch", "--no-lean")
QUICK = {"fit": (*SMALL, "--epochs", "2"), "plan": SMALL}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def first_words(text: str) -> set[str]:
    """Return what stands before the first number or bar of each line: the names of rows and sentences."""
    return {re.split(r"[\d,.█▉▊▋▌▍▎▏:]", line)[0].strip() for line in text.splitlines()} - {""}


@pytest.fixture
def events(monkeypatch, tmp_path):
    """Put a small file where the README's commands expect one."""
    monkeypatch.chdir(tmp_path)
    planning = PlanOptions(warm_up_targets=3000, sharing="sequence", lean=False)
    monkeypatch.setitem(fit.__kwdefaults__, "planning", planning)
    monkeypatch.setitem(plan.__kwdefaults__, "options", planning)
    truth = demo.make_truth(num_users=200, num_items=60, seed=0)
    demo.generate_events(truth, num_rows=4000, seed=1).write_parquet("events.parquet")


def test_commands_and_python_run_as_written(budgetrec, events):
    """Every `budgetrec ...` line succeeds and every Python block runs on what those lines made.

    What `fit` prints has the rows that the README shows of `make demo`; which allocation is best depends on
    data and machine, so its numbers are not compared.
    """
    commands, said = 0, ""
    for language, text in blocks(README):
        if language == "python":
            exec(compile(text, "README.md", "exec"), {})  # noqa: S102 - our own page
        for line in text.splitlines() if language == "sh" else ():
            program, *arguments = shlex.split(line, comments=True)
            if program != "budgetrec":
                continue
            answer = budgetrec(*arguments, *QUICK.get(arguments[0], ()))
            assert answer.code == 0, f"{line}: {answer.err}"
            said += answer.out if arguments[0] == "fit" else ""
            commands += 1
    assert commands >= 8
    (shown,) = (text for language, text in blocks(README) if language == "text")
    rows = first_words(shown.partition("\nallocation")[0])
    assert {"memory             bytes", "weights", "which sequences are drawn"} <= rows
    assert not rows - first_words(said)
    for page in PAGES:
        for language, text in blocks(page):
            if language == "python" and ">>>" not in text:
                exec(compile(text, page.name, "exec"), {})  # noqa: S102 - our own page
