"""A small campaign of faults, for every change; `make torture` runs the large one."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

_CAMPAIGNS = {
    "kills of forked children",
    "kills of real processes",
    "mutants of hypothesis",
    "disks that fill",
    "two at once",
}


def test_a_small_campaign_loses_nothing_and_ends_in_sentences(tmp_path):
    """Kills, mutants, full disks, two at once: no result lost, no traceback, no hang."""
    command = [sys.executable, "-m", "tests.torture", "--small", "--minutes", "5", "--work", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    tried = Counter[str]()
    for trial in trials:
        assert trial["faults"] == []
        tried[trial["identity"].split("/")[0]] += trial["tried"]
    assert set(tried) == _CAMPAIGNS
    assert min(tried.values()) >= 2
    assert "| **kills of forked children** | all |" in done.stdout
