import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from budgetrec.errors import ArgumentError, DataError, InterruptedRunError
from budgetrec.study.engine.grid import Cell, Grid, Outcome, Stage, run_stages
from budgetrec.study.engine.scale import EngineName
from budgetrec.study.engine.workers import Local, Serial, running

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))  # processes that are started take the path over


def _cells(count: int, **settings: object) -> list[Cell]:
    return [
        Cell(
            study="squares",
            version=1,
            function="cells_for_tests:square",
            settings={"number": number, **settings},
        )
        for number in range(count)
    ]


def _grid(folder: Path, engine: object) -> Grid:
    return Grid(folder, engine, lambda done: None)  # type: ignore[arg-type]


def _calls(folder: Path) -> list[int]:
    return sorted(map(int, (folder / "calls.txt").read_text().split()))


def test_a_key_depends_on_study_version_and_settings_alone():
    """The order of settings, the function's name and where data lies change nothing; all else does."""
    cell = Cell(study="s", version=1, function="m:f", settings={"a": 1, "b": {"c": 2.0, "d": None}})
    same = Cell(
        study="s",
        version=1,
        function="other:name",
        settings={"b": {"d": None, "c": 2.0}, "a": 1},
        places={"data": "/elsewhere"},
    )
    assert cell.key == same.key == Cell.from_json(same.to_json()).key
    others = [
        Cell(study="t", version=1, function="m:f", settings=cell.settings),
        Cell(study="s", version=2, function="m:f", settings=cell.settings),
        Cell(study="s", version=1, function="m:f", settings={**cell.settings, "a": 2}),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 4


def test_done_cells_are_read_and_doubles_run_once(tmp_path):
    """Six cells, two of them twice: each is called once, a second try calls none, and order is kept."""
    cells = [*_cells(6), *_cells(2)]
    first = _grid(tmp_path, Serial()).run(cells)
    assert [outcome.values["square"] for outcome in first] == [0, 1, 4, 9, 16, 25, 0, 1]
    assert _grid(tmp_path, Serial()).run(list(reversed(cells))) == list(reversed(first))
    assert _calls(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_processes_give_what_this_process_gives_even_when_some_fail_or_die(tmp_path):
    """Cell 1 raises and cell 2 kills its process: both are recorded, the others are as without processes."""
    with running(EngineName.LOCAL, workers=2) as engine:
        grid = _grid(tmp_path, engine)
        outcomes = grid.run(_cells(5, wrong=1, deadly=2))
    expected = _grid(tmp_path / "serial", Serial()).run([_cells(5, wrong=1, deadly=2)[i] for i in (0, 3, 4)])
    assert [outcome and outcome.values for outcome in outcomes] == [
        expected[0].values,
        None,
        None,
        expected[1].values,
        expected[2].values,
    ]
    wrong, deadly = (_cells(5, wrong=1, deadly=2)[i].key for i in (1, 2))
    assert grid.failures[wrong].reason == "ValueError: 1 is wrong"
    assert "cells_for_tests.py" in grid.failures[wrong].traceback
    assert "ended with code -9" in grid.failures[deadly].reason
    kept = json.loads((tmp_path / "cells" / f"{wrong}.failed.json").read_text())
    assert kept["reason"] == "ValueError: 1 is wrong"
    (tmp_path / "spared").touch()
    with running(EngineName.LOCAL, workers=1) as engine:
        again = _grid(tmp_path, engine).run(_cells(5, wrong=1, deadly=2))
    assert [outcome and outcome.values["square"] for outcome in again] == [0, None, 4, 9, 16]
    assert _calls(tmp_path) == [0, 1, 1, 2, 2, 3, 4]  # what failed was tried again, and nothing else
    assert not (tmp_path / "cells" / f"{deadly}.failed.json").exists()


_STUDY = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from budgetrec.study.engine.workers import Serial
from budgetrec.study.engine.grid import Cell, Grid
done = 0
def count(more):
    global done
    done += more
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
cells = [Cell(study="squares", version=1, function="cells_for_tests:square", settings={{"number": number}})
         for number in range(5)]
Grid(Path({folder!r}), Serial(), count).run(cells)
"""


def test_a_killed_study_goes_on_and_ends_with_the_same_numbers(tmp_path):
    """Killed after three of five cells, a rerun makes two, and all equal those of a study left alone."""
    code = _STUDY.format(here=str(HERE), folder=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert killed.returncode == -9
    assert _calls(tmp_path) == [0, 1, 2]
    resumed = _grid(tmp_path, Serial()).run(_cells(5))
    assert _calls(tmp_path) == [0, 1, 2, 3, 4]
    alone = _grid(tmp_path / "alone", Serial()).run(_cells(5))
    assert [outcome.values for outcome in resumed] == [outcome.values for outcome in alone]


def test_an_outcome_that_is_no_number_is_a_failure(tmp_path, monkeypatch):
    """NaN cannot be written as JSON, so the cell counts as failed and says why."""
    import cells_for_tests

    monkeypatch.setattr(cells_for_tests, "square", lambda *given: Outcome(values={"x": float("nan")}))
    grid = _grid(tmp_path, Serial())
    assert grid.run(_cells(1)) == [None]
    assert "not JSON compliant" in grid.failures[_cells(1)[0].key].reason


def test_an_interrupted_run_stops_the_study_and_is_no_failure(tmp_path, monkeypatch):
    """When training saves and stops on Ctrl-C, the study stops too, and its cell is simply not done."""
    import cells_for_tests

    def interrupted(*given: object) -> Outcome:
        raise InterruptedRunError("interrupted at step 3; everything is saved.", "budgetrec train --resume x")

    monkeypatch.setattr(cells_for_tests, "square", interrupted)
    grid = _grid(tmp_path, Serial())
    with pytest.raises(KeyboardInterrupt):
        grid.run(_cells(2))
    assert grid.failures == {}
    assert list((tmp_path / "cells").iterdir()) == []


def test_a_damaged_cell_is_told(tmp_path):
    """A file that is no JSON is named, with what to do."""
    grid = _grid(tmp_path, Serial())
    (tmp_path / "cells" / f"{_cells(1)[0].key}.json").write_text("{")
    with pytest.raises(DataError, match="Delete it, and it will be computed again"):
        grid.run(_cells(1))


def test_a_stage_sees_what_the_stage_before_found(tmp_path):
    """A study that squares the largest square of its first stage gets 16 * 16."""

    def stages():
        found = yield Stage(_cells(5))
        best = max(outcome.values["square"] for outcome in found)
        (last,) = yield Stage(
            [Cell(study="s", version=1, function="cells_for_tests:square", settings={"number": best})],
            alone=True,
        )
        return last.values["square"]

    assert run_stages(stages(), _grid(tmp_path, Serial())) == 256


def test_engines_that_make_no_sense_are_refused():
    """Serial with two workers, an address without Ray, and no worker at all."""
    for name, settings, told in (
        (EngineName.SERIAL, {"workers": 2}, "one worker, not 2"),
        (EngineName.LOCAL, {"ray_address": "auto"}, "no address"),
    ):
        with pytest.raises(ArgumentError, match=told), running(name, **settings):
            pass
    with pytest.raises(ArgumentError, match="workers is 0"):
        Local(0)
