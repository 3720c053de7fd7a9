"""What a log sees of long work: a line for each stage, and one a minute; quick work says nothing."""

import re
import time

import pytest

from budgetrec.cli import progress_lines
from budgetrec.cli.console import counted, stages
from budgetrec.cli.training_bar import TrainingBar
from tests.conftest import PROGRESS_LINE, write_csv


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Write lines at once, and every 50 ms instead of every minute."""
    monkeypatch.setattr(progress_lines, "QUIET_SECONDS", 0)
    monkeypatch.setattr(progress_lines, "SECONDS_BETWEEN", 0.05)


def _lines(capsys):
    lines = capsys.readouterr().err.splitlines()
    assert all(PROGRESS_LINE.match(line) for line in lines)
    return [line.split(maxsplit=1)[1] for line in lines]


def test_quick_work_writes_no_lines(capsys):
    """What is over within two seconds, whatever its stages."""
    with stages() as stage:
        stage("reading")
        stage("writing")
    assert _lines(capsys) == []


def test_the_first_stages_are_told_once_work_takes_longer(capsys, monkeypatch):
    """Lines of the quiet seconds are kept, and written with the time at which each stage began."""
    monkeypatch.setattr(progress_lines, "QUIET_SECONDS", 0.1)
    with stages() as stage:
        stage("reading")
        stage("ordering")
        time.sleep(0.3)
        stage("writing")
    assert _lines(capsys) == ["reading", "ordering", "writing"]


def test_a_stage_is_one_line_and_one_a_minute(capsys, in_a_hurry):
    """Half-way through 200 items: the count, the share, the speed and the time left."""
    with stages() as stage:
        stage("reading")
        time.sleep(0.2)
        stage("ranking")
        stage.progress(100, 200)
        time.sleep(0.2)
    lines = _lines(capsys)
    assert lines[0] == "reading"
    assert lines.count("reading") == lines.count("ranking") == 1
    assert 1 <= lines.count("still reading") <= 4
    told = lines[lines.index("ranking") + 1 :]
    assert 1 <= len(told) <= 4
    for line in told:
        assert re.fullmatch(r"ranking: 100 of 200 \(50%\), [\d.,e+]+ a second, [\d.]+ m?s left", line)
    speed, left = re.search(r"([\d.,]+) a second, (\d+) ms left", told[-1]).groups()
    assert 100 / float(speed.replace(",", "")) == pytest.approx(int(left) / 1000, rel=0.05)


def test_cells_of_a_study_are_counted(capsys, in_a_hurry):
    """Three of four done."""
    with counted("variance", 4) as advance:
        advance()
        advance(2)
        time.sleep(0.15)
    lines = _lines(capsys)
    assert lines[0] == "variance: 4 to do"
    assert "variance: 3 of 4 (75%)" in lines[-1]


@pytest.mark.parametrize(
    ("total_steps", "seconds", "told"),
    [
        (400, None, r"step 100 of 400 \(25%\), 1 min 30 s left"),
        (None, 40.0, r"step 100 \(75%\), 10.0 s left"),
        (None, None, r"step 100"),
    ],
)
def test_training_says_how_far_it_is(capsys, in_a_hurry, total_steps, seconds, told):
    """After 100 steps in 30 s: by steps, by seconds, or by neither where only patience ends the run."""
    bar = TrainingBar({"threads": 1})
    with bar.watching(total_steps, seconds):
        bar.step(
            step=100, seconds=30.0, examples=3000, targets=9, loss=5.25, training_bytes=95 << 20, peak_bytes=0
        )
        time.sleep(0.2)
    lines = _lines(capsys)
    assert lines[0] == "training"
    rest = ", 100 sequences a second, loss 5.250, training adds 95 MiB"
    assert re.fullmatch(told + rest, lines[-1])


def test_each_command_names_its_stages(budgetrec, in_a_hurry, tmp_path):
    """Prepare, train, evaluate, compare and recommend; results stay on stdout."""
    rows = [(f"u{user}", f"i{(user + place) % 12}", place) for user in range(30) for place in range(6)]
    events, dataset = write_csv(tmp_path / "events.csv", rows), tmp_path / "dataset"
    small = ("--dim", 8, "--num-heads", 1, "--max-length", 5, "--threads", 1, "--steps", 2)
    one, two = tmp_path / "one", tmp_path / "two"
    for arguments, told in (
        (("prepare", events, "-o", dataset), ("ordering", "splitting", "writing")),
        (("train", dataset, "-o", one, *small), ("making the model and evaluating it", "training")),
        (("train", dataset, "-o", two, *small, "--seed", 1), ("training",)),
        (("evaluate", one), ("opening the run", "ranking 30 items among 12", "writing")),
        (("compare", one, two), (f"opening {one}", f"opening {two}", "comparing")),
        (("recommend", one, "-o", tmp_path / "lists.csv"), ("ranking items", "writing")),
    ):
        answer = budgetrec(*arguments)
        assert answer.code == 0, answer.err
        for stage in told:
            assert re.search(rf"^\d+:\d\d:\d\d {re.escape(stage)}$", answer.err, re.MULTILINE), (
                stage,
                answer.err,
            )
            assert stage not in answer.out.split("\n")
