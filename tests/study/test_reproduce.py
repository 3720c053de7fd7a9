import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from budgetrec.cli import run
from budgetrec.errors import DataError
from budgetrec.study.engine.frame import Request
from budgetrec.study.engine.grid import Grid, run_stages
from budgetrec.study.engine.scale import EngineName, Scale
from budgetrec.study.engine.workers import Idle, running
from budgetrec.study.everything import STUDIES

NAMES = ("lognormal", "variance", "synthetic", "timing", "table")


def _json(capsys, *arguments):
    assert run(["reproduce", *map(str, arguments), "--scale", "smoke", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _values(folder: Path) -> dict[str, object]:
    """Return what must not depend on who ran the cells, by key."""
    return {path.stem: json.loads(path.read_text())["values"] for path in folder.glob("cells/*.json")}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return the folder of `reproduce all --scale smoke`, run once."""
    folder = tmp_path_factory.mktemp("study") / "all"
    assert run(["reproduce", "all", "--scale", "smoke", "-o", str(folder)]) == 0
    return folder


def test_all_leads_through_every_study(everything):
    """The page links to each study's page, no cell failed, and every file that a page names is there."""
    page = (everything / "study.md").read_text()
    for name in NAMES:
        assert f"]({name}/study.md)" in page
        assert json.loads((everything / name / "study.json").read_text())["failed_cells"] == 0
    for source in (everything / "study.md", *(everything / name / "study.md" for name in NAMES)):
        links = [part.split(")")[0] for part in source.read_text().split("](")[1:]]
        assert len(links) >= 3
        assert all((source.parent / link).is_file() for link in links)
    assert (everything / "table" / "table.tex").read_text().count(r"\textbf{") >= 6


def test_a_second_run_of_all_runs_no_cell_and_writes_the_same(everything, capsys, monkeypatch):
    """With every cell done nothing is run, and tables come out the same to the byte."""
    before = {path: path.read_text() for path in everything.rglob("*.csv")}

    def refuse(*given: object) -> str:
        raise AssertionError("a cell was run again")

    monkeypatch.setattr("budgetrec.study.engine.workers.run_cell", refuse)
    result = _json(capsys, "all", "-o", everything)
    assert [each["study"] for each in result["studies"]] == list(NAMES)
    assert {path: path.read_text() for path in everything.rglob("*.csv")} == before


def test_variance_at_smoke_scale_measures_the_law(everything, capsys):
    """The law is within 5% of 150 steps in every row where A2 holds, and the files are there, as told."""
    result = _json(capsys, "variance", "-o", everything / "variance")
    rows = result["tables"]["noise"]
    assert result["max_relative_error"] < 0.05
    assert {row["sharing"] for row in rows} == {"shared", "grouped", "per target"}
    folder = everything / "variance"
    assert len(pl.read_csv(folder / "noise.csv")) == len(rows) == 48
    assert sorted(path.name for path in folder.iterdir()) == sorted([*result["files"], "cells"])
    assert (folder / "noise.png").read_bytes().startswith(b"\x89PNG")
    held = [abs(row["law_error"]) for row in rows if row["a2_holds"] and row["num_negatives"] >= 8]
    assert result["max_relative_error"] == max(held)


def test_lognormal_prints_a_table_and_repeats_with_its_seed(everything, tmp_path, capsys):
    """Fenton-Wilkinson is nearer than the central limit, and the same seed gives the same numbers."""
    first = _json(capsys, "lognormal", "-o", everything / "lognormal")["tables"]["distances"]
    second = _json(capsys, "lognormal", "-o", tmp_path / "b")["tables"]["distances"]
    other = _json(capsys, "lognormal", "-o", tmp_path / "b", "--seed", 1, "--overwrite")
    assert first == second != other["tables"]["distances"]
    assert all(a["ks_distance"] < b["ks_distance"] for a, b in zip(first[::2], first[1::2], strict=True))
    assert run(["reproduce", "lognormal", "-o", str(everything / "lognormal"), "--scale", "smoke"]) == 0
    assert "Fenton-Wilkinson" in capsys.readouterr().out


def test_the_synthetic_study_finds_what_the_law_says(everything):
    """More examples and fewer negatives win for every budget with SGD, and the law ranks them the same."""
    best = pl.read_csv(everything / "synthetic" / "best.csv").filter(axis="steps", optimizer="sgd")
    assert best["best_k"].to_list() == [1] * 8
    law = pl.read_csv(everything / "synthetic" / "law.csv").filter(optimizer="sgd")
    assert law["noise_at_truth"].min() > 0.8
    runs = pl.read_csv(everything / "synthetic" / "runs.csv")
    assert runs["seed"].unique().sort().to_list() == [0, 1]
    assert runs["final_loss"].is_between(2.5, 5.4).all()


def test_the_table_has_the_printed_shape(everything):
    """Two optimisers, losses and ways of sharing, three allocations; AUL is steps times mean loss."""
    table = pl.read_csv(everything / "table" / "table.csv")
    assert len(table.filter(source="paper")) == 16
    assert len(table.filter(source="budgetrec plan")) == 8
    assert table["test_ndcg"].is_between(0.03, 0.6).all()
    runs = pl.read_csv(everything / "table" / "runs.csv")
    largest = runs["batch_size"].max()
    fewest = runs.filter(batch_size=largest)  # whose own steps are as many as all runs have
    steps = fewest["aul_steps"] / fewest["mean_loss_over_steps"]
    assert (steps - 2 * -(-80 // largest)).abs().max() < 1e-9  # 80 users, 2 epochs
    tested = pl.read_csv(everything / "table" / "corrections.csv")
    assert set(tested["metric"]) == {"test_ndcg", "mean_loss_over_examples"}
    assert (tested["p_adjusted"] >= tested["p_value"]).all()


def test_timing_has_a_curve_for_each_seed(everything):
    """Three ways of sharing, two k and two seeds, each with a time above zero."""
    runs = pl.read_csv(everything / "timing" / "runs.csv")
    assert len(runs) == 12
    assert (runs["epoch_seconds"] > 0).all()


def test_an_existing_folder_is_kept_without_overwrite(tmp_path, everything, capsys):
    """A folder of something else is refused, and one of another study or seed too, and nothing changes."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    for place, told in (
        (tmp_path / "taken", "exists already. Pass --overwrite"),
        (everything / "lognormal", "holds a study with study lognormal, not variance"),
    ):
        before = sorted(place.iterdir())
        assert run(["reproduce", "variance", "-o", str(place), "--scale", "smoke"]) == 2
        assert told in capsys.readouterr().err
        assert sorted(place.iterdir()) == before


def test_data_is_given_by_name_and_wrong_names_are_told(everything, tmp_path, capsys):
    """NAME=FOLDER runs on it with the printed numbers beside; a folder without a known name is refused."""
    data = everything / "table" / "data" / "generated"
    result = _json(capsys, "table", "-o", tmp_path / "t", "--data", f"Gowalla={data}")
    assert {row["dataset"] for row in result["tables"]["table"]} == {"Gowalla"}
    assert "Not given: MovieLens-1M, Netflix, MovieLens-20M" in (tmp_path / "t" / "study.md").read_text()
    assert run(["reproduce", "table", "-o", str(tmp_path / "u"), "--data", str(data)]) == 2
    assert "Pass NAME=FOLDER" in capsys.readouterr().err
    assert not (tmp_path / "u").exists()


def test_a_killed_command_goes_on_to_the_same_numbers(everything, tmp_path):
    """`reproduce table` in a process, killed with some cells done, ends after a rerun as if never killed."""
    folder = tmp_path / "table"
    command = [sys.executable, "-m", "budgetrec", "reproduce", "table", "--scale", "smoke", "-o", str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while len(list(folder.glob("cells/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path.name: path.stat().st_mtime_ns for path in folder.glob("cells/*.json")}
    expected = _values(everything / "table")
    assert 3 <= len(done) < len(expected)
    assert run(["reproduce", "table", "--scale", "smoke", "-o", str(folder)]) == 0
    assert {name: (folder / "cells" / name).stat().st_mtime_ns for name in done} == done
    assert _values(folder) == expected


def test_processes_and_ray_give_the_same_numbers(tmp_path):
    """With two processes, or two CPUs of Ray, cells of the synthetic study come out the same to the bit."""
    found = {}
    for name in EngineName:
        folder = tmp_path / name
        with running(name, workers=1 if name is EngineName.SERIAL else 2) as engine:
            grid = Grid(folder, engine, lambda done: None)
            stages = STUDIES["synthetic"].stages(Request(scale=Scale.SMOKE), folder)
            rates = stages.send(grid.run(next(stages).cells))
            grid.run(rates.cells[:12])
        assert grid.failures == {}
        found[name] = _values(folder)
    assert len(found["serial"]) >= 10
    assert found["serial"] == found["local"] == found["ray"]


@pytest.mark.parametrize("name", NAMES[:-1])  # planning for the table takes seconds
def test_a_study_without_any_finished_cell_says_where_to_look(name, tmp_path):
    """Where no cell gave numbers there is one sentence that names the failed cells, and no page."""
    request = Request(scale=Scale.SMOKE)
    with pytest.raises(DataError, match=r"Look into cells/\*\.failed\.json\.$"):
        run_stages(STUDIES[name].stages(request, tmp_path), Grid(tmp_path, Idle(), lambda more: None))
    assert not (tmp_path / "study.md").exists()
