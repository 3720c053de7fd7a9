"""The plan against the field: which runs are trained, and what is made of them."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from budgetrec.allocation import Allocation
from budgetrec.errors import DataError
from budgetrec.planner.search import Search
from budgetrec.planner.seconds import StepSeconds
from budgetrec.study.engine.frame import begin_folder
from budgetrec.study.engine.grid import Failure, Grid, Outcome, run_stages
from budgetrec.study.engine.outputs import write_marker
from budgetrec.study.engine.workers import Idle
from budgetrec.study.field.contenders import (
    LARGEST,
    SMALLEST,
    Contender,
    evaluation_spacing,
    list_field,
    read_predicted,
    write_predicted,
)
from budgetrec.study.field.design import LEARNING_RATES, Field, choose_learning_rate, stages
from budgetrec.study.field.findings import describe, judge_plan, rank_correlation, standard_error
from budgetrec.theory.noise import NoiseConstants

PLAN = "planned-full-8"
TERMS = {"memory": "512MiB", "seconds": 100.0, "max_length": 200, "evaluate_every": 10}


def curve(last, *, seconds=100.0, examples=1000, start=8.0):
    """Return a loss that falls straight from `start` to `last`."""
    shares = np.array([0.0, 0.5, 1.0])
    return pl.DataFrame(
        {
            "step": (shares * 100).astype(int),
            "examples": (shares * examples).astype(int),
            "seconds": shares * seconds,
            "val_loss": start + shares * (last - start),
            "ndcg@10": 0.1 + shares * (8.0 - last) / 100,
            "peak_bytes": [2**20] * 3,
        }
    )


def contender(name, *, score=1.0, n=8, k=64, sharing="batch", draws=True, step_seconds=0.1):
    """Return what might be predicted of an allocation."""
    objective = "sampled-softmax" if draws else "full-softmax"
    return Contender(
        name=name,
        allocation=Allocation(batch_size=n, num_negatives=k, sharing=sharing, objective=objective),
        draws=draws,
        predicted_bytes=2**20,
        step_seconds=step_seconds,
        example=0.1,
        shared_class=0.2,
        target_class=0.0,
        bias=0.0,
        noise=0.3,
        score=score,
    )


class Pretender:
    """An engine that makes up what cells find: a function of learning rate, seed and n gives a curve."""

    def __init__(self, find):
        self.find, self.trained = find, []

    def run(self, cells, folder, *, alone):
        """Run all cells in their order; text is how one diverged, and None a failure."""
        for place, cell in enumerate(cells):
            own = cell.settings["run"]
            self.trained.append((own["batch_size"], own["learning_rate"], own["seed"]))
            found = self.find(*self.trained[-1])
            if found is None:
                yield place, Failure(reason="it broke")
            elif isinstance(found, str):
                yield place, Outcome(values={"diverged": found})
            else:
                yield place, Outcome(values={}, measured={"curve": found.to_dict(as_series=False)})


def a_field(*contenders):
    """Return a field as the benchmark opens it."""
    settings = {**TERMS, "evaluation_growth": 0.15, "validation_users": 2000}
    return Field(name="films", dataset="identity", place="", contenders=contenders, settings=settings)


def run(field, folder, find):
    """Run what is missing of a field; return what is found, what was trained and what failed."""
    engine = Pretender(find)
    grid = Grid(folder, engine, lambda more: None)
    return run_stages(stages(field), grid), engine.trained, grid.failures


def test_the_learning_rate_has_the_lowest_mean_loss_over_the_seconds_that_all_reach():
    """Over its own 200 s the third has the lowest mean, 6; over the common 100 s it is 7 against 6.5."""
    curves = {1e-3: curve(7.5), 3e-3: curve(5.0), 1e-2: curve(4.0, seconds=200.0)}
    assert choose_learning_rate(curves) == 3e-3
    assert choose_learning_rate({}) is None


def test_other_seeds_wait_for_the_learning_rate_and_a_run_that_diverged_is_not_chosen(tmp_path):
    """Three learning rates of seed 0, of which one breaks; when it has diverged, two seeds with the best."""
    field = a_field(contender(PLAN))
    losses = {1e-3: curve(7.0), 3e-3: curve(6.0), 1e-2: None}
    _, trained, failures = run(field, tmp_path, lambda n, rate, seed: losses[rate])
    assert trained == [(8, rate, 0) for rate in LEARNING_RATES]
    assert len(failures) == 1
    losses[1e-2] = "the loss became NaN at step 9."
    found, trained, _ = run(field, tmp_path, lambda n, rate, seed: losses[rate])
    assert trained == [(8, 1e-2, 0), (8, 3e-3, 1), (8, 3e-3, 2)]
    assert [each.failure for each in found.runs] == [None, None, losses[1e-2], None, None]


def test_a_run_that_stopped_before_its_seconds_counts_as_failed(tmp_path):
    """40 of 100 s are no whole run, and no learning rate is chosen by them."""
    found, trained, _ = run(a_field(contender(PLAN)), tmp_path, lambda *about: curve(5.0, seconds=40.0))
    assert [each.failure for each in found.runs] == ["ended after 40 of 100 s"] * 3
    assert len(trained) == 3


def test_an_interrupted_comparison_trains_only_what_is_left(tmp_path):
    """Of two contenders with ten runs, one run breaks: the next try trains that one and nothing else."""
    field = a_field(contender(PLAN), contender("paper-32-512", n=32))

    def find(n, rate, seed):
        return None if (n, seed) == (8, 2) else curve(5.0 + rate)

    _, trained, failures = run(field, tmp_path, find)
    assert len(trained) == len({*trained}) == 10
    assert len(failures) == 1
    _, trained, _ = run(field, tmp_path, lambda *about: curve(5.0))
    assert trained == [(8, 1e-3, 2)]


def test_the_field_has_the_plan_the_papers_and_the_extremes_that_fit():
    """1,000 + n (100 + k) bytes within 20,000: the rungs below 188 sequences with k = 1 and k = 18,900."""
    ways = {
        sharing: Allocation(batch_size=1, num_negatives=1, sharing=sharing, lean=False, table_updates="dense")
        for sharing in ("batch", "sequence", "target")
    }
    lean = Allocation(batch_size=1, num_negatives=1, sharing="batch", lean=True, table_updates="dense")
    all_ways = (*ways.values(), lean)
    seconds = {
        way: StepSeconds(fixed=1e-3, sequence=1e-3, pair=1e-6, sharing=way.sharing) for way in all_ways
    }
    seconds[lean] = StepSeconds(fixed=1e-4, sequence=1e-3, pair=1e-6, sharing="batch")
    search = Search(
        families=all_ways,
        constants=NoiseConstants.saturating(
            example=1.0, target_class=400.0, shared_class=40.0, sequence_class=200.0, rho=10.0
        ),
        gradient=0.01,
        mean_targets=10.0,
        bytes={way: lambda n, k, _: 1000.0 + np.asarray(n) * (100.0 + np.asarray(k)) for way in all_ways},
        seconds=seconds,
        num_items=100_000,
        max_batch_size=500,
        goal="time",
        limit=20_000.0,
        fixed={},
    )
    plan = SimpleNamespace(allocation=ways["sequence"].at(16, 100))
    field = {each.name: each for each in list_field(SimpleNamespace(plan=plan, search=search))}
    assert list(field) == ["planned-16-100-sequence", LARGEST, SMALLEST]
    largest, smallest = field[LARGEST].allocation, field[SMALLEST].allocation
    assert (largest.batch_size, largest.num_negatives, largest.sharing) == (176, 1, "target")
    assert (smallest.batch_size, smallest.num_negatives) == (1, 18_432)
    roomy = replace(search, limit=1e9)
    field = {each.name: each for each in list_field(SimpleNamespace(plan=plan, search=roomy))}
    assert [name for name in field if name.startswith("paper")] == [
        "paper-32-512",
        "paper-64-256",
        "paper-128-128",
    ]
    assert field["paper-32-512"].allocation.lean  # the way that costs less
    chosen = search.choice(ways["sequence"], 16, 100)
    assert field["planned-16-100-sequence"].score == chosen.score
    parts = field["planned-16-100-sequence"]
    assert parts.example + parts.shared_class + parts.target_class + parts.bias == pytest.approx(chosen.noise)


def test_predictions_are_read_as_they_were_written(tmp_path):
    """Also where the plan draws nothing and the others do; a file of something else is refused."""
    written = [contender(PLAN, draws=False), contender(LARGEST, score=2.5)]
    write_predicted(written, tmp_path / "predicted.csv")
    assert read_predicted(tmp_path / "predicted.csv") == written
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv holds no predictions"):
        read_predicted(tmp_path / "other.csv")


def test_evaluations_are_spaced_for_the_contender_that_sees_least():
    """8 sequences a 0.1 s are 9,600 in 120 s, a fifteenth 640; with fewer sequences half an epoch is less."""
    field = [contender(PLAN), contender(LARGEST, n=5000)]
    assert evaluation_spacing(field, seconds=120, num_sequences=6040) == 640
    assert evaluation_spacing(field, seconds=120, num_sequences=1000) == 500


def write_field(folder: Path):
    """Write a field whose losses and scores are known; the third has one seed, the fourth no run."""
    field = a_field(
        contender(PLAN, score=1.0, n=8, draws=False),
        contender("paper-32-512", score=2.0, n=32),
        contender(LARGEST, score=3.0, n=64, sharing="target"),
        contender(SMALLEST, score=4.0, n=1),
    )
    losses = {8: (5.0, 5.1, 5.2), 32: (5.0, 5.0, 5.0), 64: (7.0, None, None), 1: (None,)}

    def find(n, rate, seed):
        loss = losses[n][seed]
        shape = {"examples": 2000 if n == 8 else 1000, "seconds": 100.0 + seed}
        return None if loss is None else curve(loss if rate == 3e-3 else 7.5, **shape)

    (folder / "films" / "plans").mkdir(parents=True)
    write_marker(folder / "films", {"study": "field", "dataset": "identity", **TERMS})
    write_predicted(field.contenders, folder / "films" / "plans" / "predicted.csv")
    run(field, folder / "films", find)
    return run_stages(stages(field), Grid(folder / "films", Idle(), lambda more: None))


def test_a_field_is_summarised_over_common_horizons_and_says_what_is_missing(tmp_path):
    """Means and standard errors by hand: losses that fall straight from 8 to L have the mean (8 + L) / 2."""
    findings = describe([write_field(tmp_path)])
    assert findings.summary["horizons"] == {"films": {"steps": 100, "examples": 1000, "seconds": 100}}
    tables = {name: table for name, (_, table) in findings.tables.items()}
    rows = {row["allocation"]: row for row in tables["summary"].frame.iter_rows(named=True)}
    assert list(rows) == [PLAN, "paper-32-512", LARGEST]
    plan, paper = rows[PLAN], rows["paper-32-512"]
    assert plan["mean_loss_over_examples"] == pytest.approx(8 - 2.9 / 4)  # half of its way of 2.9 on average
    assert paper["mean_loss_over_examples"] == pytest.approx(6.5)
    slower = [8 - 3 / 2 * 100 / seconds for seconds in (100, 101, 102)]
    assert paper["mean_loss_over_seconds"] == pytest.approx(np.mean(slower))
    assert plan["val_loss_error"] == pytest.approx(0.1 / np.sqrt(3))
    assert plan["aul_steps"] == pytest.approx(100 * (8 + 5.1) / 2)
    assert (plan["num_negatives"], plan["sharing"]) == (None, "full")
    assert (rows[LARGEST]["seeds"], rows[LARGEST]["val_loss_error"]) == (1, None)
    assert [row["rank_mean_loss_over_seconds"] for row in rows.values()] == [2, 1, 3]
    assert len(findings.frames["results"]) == 13
    told = "\n".join(findings.text)
    assert f"films {LARGEST}: still to be trained: seed 1 and seed 2." in told
    assert f"- films {SMALLEST}: still to be trained: learning rates 0.001, 0.003, 0.01 of seed 0" in told
    assert "films over 100 s and over 1,000 sequences" in told
    verdicts = {row["measure"]: row for row in tables["verdicts"].frame.iter_rows(named=True)}
    assert verdicts["mean_loss_over_seconds"]["spearman"] == 0.5  # order 2, 1, 3 against 1, 2, 3
    assert "| films, so far | loss over seconds | paper-32-512 |" in tables["verdicts"].to_markdown()
    pairs = {row["allocation"]: row for row in tables["pairs"].frame.iter_rows(named=True)}
    assert pairs.keys() == {"paper-32-512", LARGEST}
    assert pairs["paper-32-512"]["plan_loss"] == plan["mean_loss_over_examples"]
    assert pairs["paper-32-512"]["own_loss"] == paper["mean_loss_over_examples"]
    assert "| paper-32-512 | 1,000 | **6.5000 ± 0.0000** | 7.2750 ± 0.0144 |" in tables["pairs"].to_markdown()
    assert len(findings.charts["curves"][1].to_dict()["concat"]) == 2


def test_without_runs_there_is_no_summary_and_without_the_plan_no_verdict(tmp_path):
    """A field of nothing is refused in one sentence; one contender alone has neither plan nor order."""
    field = a_field(contender("paper-32-512", n=32))
    found, _, _ = run(field, tmp_path, lambda *about: None)
    with pytest.raises(DataError, match="no finished run of a field"):
        describe([found])
    found, _, _ = run(field, tmp_path, lambda *about: curve(5.0))
    verdicts = describe([found]).tables["verdicts"][1].frame
    assert verdicts["spearman"].to_list() == [None] * 3
    assert verdicts["verdict"].to_list() == ["not trained yet"] * 3


def test_the_plan_is_judged_by_the_standard_error_of_the_best():
    """Behind by 0.05: within an error of 0.06, behind with one of 0.04; of NDCG the larger is the better."""
    frame = pl.DataFrame(
        {
            "dataset": ["films"] * 2,
            "allocation": [PLAN, "paper-32-512"],
            "mean_loss_over_seconds": [6.05, 6.0],
            "mean_loss_over_seconds_error": [0.5, 0.06],
            "mean_loss_over_examples": [6.05, 6.0],
            "mean_loss_over_examples_error": [0.5, 0.04],
            "ndcg@10": [0.2, 0.1],
            "ndcg@10_error": [0.01, 0.01],
            "predicted_score": [1.0, 2.0],
        }
    )
    verdicts = {row["measure"]: row for row in judge_plan(frame)}
    assert verdicts["mean_loss_over_seconds"]["verdict"] == "within one standard error"
    assert verdicts["mean_loss_over_examples"]["verdict"] == "behind"
    assert verdicts["mean_loss_over_examples"]["behind"] == pytest.approx(0.05)
    assert (verdicts["ndcg@10"]["verdict"], verdicts["ndcg@10"]["best"]) == ("best", PLAN)


def test_small_samples_have_no_standard_error_and_no_order():
    """One value has no spread; two pairs, or pairs that are all equal, have no rank correlation."""
    assert standard_error([3.0]) is None
    assert rank_correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) is None
    assert rank_correlation([1.0, 2.0, 3.0], [9.0, 5.0, 1.0]) == -1


@pytest.fixture
def script(monkeypatch):
    """Import the benchmark from its file."""
    path = Path(__file__).parents[2] / "benchmarks" / "field.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_the_field", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_writes_its_files_beside_others_and_replaces_its_own(
    tmp_path, script, monkeypatch, capsys
):
    """Tables, figure and page are there after a second summary too, and a README stays."""
    write_field(tmp_path / "work")
    monkeypatch.setattr(
        sys, "argv", ["field.py", "summarise", str(tmp_path / "work"), "-o", str(tmp_path / "out")]
    )
    assert script.main() == 0
    (tmp_path / "out" / "README.md").write_text("kept")
    assert script.main() == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"results.csv", "summary.csv", "summary.md", "predicted.csv", "curves.svg", "curves.png"} <= names
    assert "README.md" in names and not any(name.startswith(".") for name in names)
    assert "# The plan against the field" in capsys.readouterr().out


def test_a_comparison_goes_on_as_it_began(tmp_path):
    """The same terms are taken, others refused."""
    terms = {"study": "field", "memory": "512MiB", "seconds": 120.0}
    begin_folder(tmp_path / "films", terms, overwrite=False)
    begin_folder(tmp_path / "films", terms, overwrite=False)
    with pytest.raises(DataError, match=r"holds a study with seconds 120\.0, not 60\.0"):
        begin_folder(tmp_path / "films", {**terms, "seconds": 60.0}, overwrite=False)
