"""The plan against the field: which runs are trained, and what is made of them."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from budgetrec.errors import ArgumentError, DataError
from budgetrec.planner.kinds import Kind
from budgetrec.planner.search import Search
from budgetrec.planner.seconds import StepSeconds
from budgetrec.settings.sections import RunConfig
from budgetrec.study.field.pages import describe_field, draw_field
from budgetrec.study.field.results import judge_plan, rank_correlation, standard_error, summarise_field
from budgetrec.study.field.study import (
    LARGEST,
    LEARNING_RATES,
    SMALLEST,
    Allocation,
    Cell,
    choose_learning_rate,
    evaluation_spacing,
    list_field,
    open_cells,
    read_finished,
    read_predicted,
    train_field,
    write_predicted,
)
from budgetrec.theory.noise import NoiseConstants

PLAN = "planned-full-8"


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


def allocation(name, *, score=1.0, n=8, k=64, sharing="batch", objective="sampled-softmax", step_seconds=0.1):
    """Return what might be predicted of an allocation."""
    return Allocation(
        allocation=name,
        batch_size=n,
        num_negatives=k,
        sharing=sharing,
        objective=objective,
        lean=False,
        table_updates="dense",
        micro_batches=None,
        predicted_bytes=2**20,
        step_seconds=step_seconds,
        example=0.1,
        shared_class=0.2,
        target_class=0.0,
        bias=0.0,
        noise=0.3,
        score=score,
    )


def write_finished(runs: Path, cell: Cell, metrics: pl.DataFrame, *, failure="", **settings):
    """Write what a training process leaves, and that it is done."""
    folder = runs / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    own = {"learning_rate": cell.learning_rate, "seed": cell.seed, "seconds": 100.0}
    RunConfig().replaced({**own, **settings}).write(folder / "run.toml", budgetrec="0", dataset={"path": "x"})
    metrics.write_parquet(folder / "metrics.parquet")
    (folder / "done").write_text(failure)


def test_the_learning_rate_has_the_lowest_mean_loss_over_the_seconds_that_all_reach():
    """Over its own 200 s the third has the lowest mean, 6; over the common 100 s it is 7 against 6.5."""
    curves = {1e-3: curve(7.5), 3e-3: curve(5.0), 1e-2: curve(4.0, seconds=200.0)}
    assert choose_learning_rate(curves) == 3e-3
    assert choose_learning_rate({}) is None


def test_other_seeds_wait_for_the_learning_rate_and_a_run_that_diverged_is_not_chosen(tmp_path):
    """Three learning rates of seed 0, then two seeds with the best that went to its end, then nothing."""
    first = [Cell("films", PLAN, rate, 0) for rate in LEARNING_RATES]
    assert open_cells("films", PLAN, read_finished(tmp_path)) == first
    write_finished(tmp_path, first[0], curve(7.0))
    write_finished(tmp_path, first[1], curve(6.0))
    assert open_cells("films", PLAN, read_finished(tmp_path)) == [first[2]]
    write_finished(tmp_path, first[2], curve(2.0, seconds=10.0), failure="the loss became NaN at step 9.\n")
    others = [Cell("films", PLAN, 3e-3, seed) for seed in (1, 2)]
    assert open_cells("films", PLAN, read_finished(tmp_path)) == others
    for cell in others:
        write_finished(tmp_path, cell, curve(6.0))
    assert open_cells("films", PLAN, read_finished(tmp_path)) == []
    assert read_finished(tmp_path)[first[2]].failure == "the loss became NaN at step 9."


def test_a_run_that_stopped_before_its_seconds_counts_as_failed(tmp_path):
    """A marker that says nothing of a failure does not make 40 of 100 s a whole run."""
    cell = Cell("films", PLAN, 1e-3, 0)
    write_finished(tmp_path, cell, curve(5.0, seconds=40.0))
    assert read_finished(tmp_path)[cell].failure == "ended after 40 of 100 s"


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupted_comparison_trains_only_what_is_left_and_gives_back_what_failed(tmp_path, workers):
    """Of two allocations with ten runs, two are there and one never ends: seven others are trained once."""
    names = (PLAN, "paper-32-512")
    write_finished(tmp_path, Cell("films", PLAN, 1e-3, 0), curve(7.0))
    write_finished(tmp_path, Cell("films", PLAN, 3e-3, 0), curve(6.0))
    (tmp_path / Cell("films", PLAN, 1e-2, 0).name).mkdir()  # interrupted: no marker
    trained = []

    def remaining():
        finished = read_finished(tmp_path)
        return [cell for name in names for cell in open_cells("films", name, finished)]

    def train(cell):
        trained.append(cell)
        if cell.seed == 2 and cell.allocation == PLAN:
            return False
        write_finished(tmp_path, cell, curve(5.0 + cell.learning_rate))
        return True

    with ThreadPoolExecutor(workers) as executor:
        failed = train_field(remaining, train, executor=executor, workers=workers)
    assert failed == [Cell("films", PLAN, 1e-2, 2)]  # 5.01 is below 6
    assert len(trained) == len({*trained}) == 8
    assert {cell.learning_rate for cell in trained if cell.allocation == "paper-32-512" and cell.seed} == {
        1e-3
    }


def test_names_of_runs_are_read_back():
    """Any name that a cell gives is read as that cell; others are of no field."""
    for name in (PLAN, "planned-240-1920-batch", "paper-32-512", LARGEST, SMALLEST):
        for rate in (*LEARNING_RATES, 1e-5):
            cell = Cell("some-films", name, rate, 11)
            assert Cell.of(cell.name) == cell
    assert Cell.of("films-x-full-16-lr0.003-s0") is None


def test_the_field_has_the_plan_the_papers_and_the_extremes_that_fit():
    """1,000 + n (100 + k) bytes within 20,000: the rungs below 188 sequences with k = 1 and k = 18,900."""
    kinds = {
        sharing: Kind(objective="sampled-softmax", sharing=sharing, lean=False, table_updates="dense")
        for sharing in ("batch", "sequence", "target")
    }
    lean = Kind(objective="sampled-softmax", sharing="batch", lean=True, table_updates="dense")
    all_kinds = (*kinds.values(), lean)
    seconds = {
        kind: StepSeconds(fixed=1e-3, sequence=1e-3, pair=1e-6, sharing=kind.sharing) for kind in all_kinds
    }
    seconds[lean] = StepSeconds(fixed=1e-4, sequence=1e-3, pair=1e-6, sharing="batch")
    search = Search(
        kinds=all_kinds,
        constants=NoiseConstants.saturating(
            example=1.0, target_class=400.0, shared_class=40.0, sequence_class=200.0, rho=10.0
        ),
        gradient=0.01,
        mean_targets=10.0,
        bytes={kind: lambda n, k, _: 1000.0 + np.asarray(n) * (100.0 + np.asarray(k)) for kind in all_kinds},
        seconds=seconds,
        num_items=100_000,
        max_batch_size=500,
        goal="time",
        limit=20_000.0,
        fixed={},
    )
    plan = SimpleNamespace(
        batch_size=16,
        num_negatives=100,
        sharing="sequence",
        objective="sampled-softmax",
        lean=False,
        table_updates="dense",
        micro_batches=None,
    )
    field = {each.allocation: each for each in list_field(SimpleNamespace(plan=plan, search=search))}
    assert list(field) == ["planned-16-100-sequence", LARGEST, SMALLEST]
    assert (field[LARGEST].batch_size, field[LARGEST].num_negatives, field[LARGEST].sharing) == (
        176,
        1,
        "target",
    )
    assert (field[SMALLEST].batch_size, field[SMALLEST].num_negatives) == (1, 18_432)
    roomy = replace(search, limit=1e9)
    field = {each.allocation: each for each in list_field(SimpleNamespace(plan=plan, search=roomy))}
    assert [name for name in field if name.startswith("paper")] == [
        "paper-32-512",
        "paper-64-256",
        "paper-128-128",
    ]
    assert field["paper-32-512"].lean  # the way that costs less
    chosen = search.choice(kinds["sequence"], 16, 100)
    assert field["planned-16-100-sequence"].score == chosen.score
    parts = field["planned-16-100-sequence"]
    assert parts.example + parts.shared_class + parts.target_class + parts.bias == pytest.approx(chosen.noise)


def test_predictions_are_read_as_they_were_written(tmp_path):
    """Also where the plan cuts steps and the others do not; a file of something else is refused."""
    written = [allocation(PLAN, objective="full-softmax"), allocation(LARGEST, score=2.5)]
    write_predicted(written, tmp_path / "predicted.csv")
    assert read_predicted(tmp_path / "predicted.csv") == written
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv holds no predictions"):
        read_predicted(tmp_path / "other.csv")


def test_evaluations_are_spaced_for_the_allocation_that_sees_least():
    """8 sequences a 0.1 s are 9,600 in 120 s, a fifteenth 640; with fewer sequences half an epoch is less."""
    field = [allocation(PLAN), allocation(LARGEST, n=5000)]
    assert evaluation_spacing(field, seconds=120, num_sequences=6040) == 640
    assert evaluation_spacing(field, seconds=120, num_sequences=1000) == 500


def write_field(folder: Path):
    """Write a field of three allocations whose losses and scores are known; the third has one seed."""
    losses = {PLAN: (5.0, 5.1, 5.2), "paper-32-512": (5.0, 5.0, 5.0), LARGEST: (7.0,)}
    for name, values in losses.items():
        full = {"objective": "full-softmax"} if name == PLAN else {"sharing": "batch"}
        for rate in LEARNING_RATES:
            for seed, loss in enumerate(values if rate == 3e-3 else values[:1]):
                shape = {"examples": 2000 if name == PLAN else 1000, "seconds": 100.0 + seed}
                last = loss if rate == 3e-3 else 7.5
                cell = Cell("films", name, rate, seed)
                write_finished(
                    folder / "runs", cell, curve(last, **shape), batch_size=8, num_negatives=64, **full
                )
    (folder / "films").mkdir()
    predicted = [
        allocation(PLAN, score=1.0, objective="full-softmax"),
        allocation("paper-32-512", score=2.0),
        allocation(LARGEST, score=3.0, sharing="target"),
        allocation(SMALLEST, score=4.0, n=1),
    ]
    write_predicted(predicted, folder / "films" / "predicted.csv")


def test_a_field_is_summarised_over_common_horizons_and_says_what_is_missing(tmp_path):
    """Means and standard errors by hand: losses that fall straight from 8 to L have the mean (8 + L) / 2."""
    write_field(tmp_path)
    (tmp_path / "runs" / "films-x-look-lr0.003-s0").mkdir()
    results = summarise_field(tmp_path)
    assert results.horizons == {"films": {"steps": 100, "examples": 1000, "seconds": 100}}
    rows = {row["allocation"]: row for row in results.summary.iter_rows(named=True)}
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
    assert len(results.runs) == 13
    told = "\n".join(results.notes)
    assert "films-x-look-lr0.003-s0: left out" in told
    assert f"films {LARGEST}: still to be trained: seed 1 and seed 2." in told
    assert f"films {LARGEST}: some runs have another n, k or sharing" in told
    assert f"films {SMALLEST}: still to be trained: learning rates 0.001, 0.003, 0.01 of seed 0" in told
    assert results.incomplete == {"films"}
    spearman = {row["measure"]: row["spearman"] for row in results.correlations.iter_rows(named=True)}
    assert spearman["mean_loss_over_seconds"] == 0.5  # order 2, 1, 3 against 1, 2, 3
    pairs = {row["allocation"]: row for row in results.pairs.iter_rows(named=True)}
    assert pairs.keys() == {"paper-32-512", LARGEST}
    assert pairs["paper-32-512"]["plan_loss"] == plan["mean_loss_over_examples"]
    assert pairs["paper-32-512"]["own_loss"] == paper["mean_loss_over_examples"]
    page = describe_field(results)
    assert "| paper-32-512 | 1,000 | **6.5000 ± 0.0000** | 7.2750 ± 0.0144 |" in page
    assert "over 100 s and over 1,000 sequences" in page
    assert f"- films {SMALLEST}: still to be trained" in page
    assert "| loss over seconds | paper-32-512 |" in page
    chart = draw_field(results).to_dict()
    assert len(chart["concat"]) == 2


def test_without_predictions_or_runs_the_summary_says_so(tmp_path):
    """Runs alone are summarised without an order; a folder of nothing is refused in one sentence."""
    with pytest.raises(DataError, match="no finished run of a field"):
        summarise_field(tmp_path)
    write_finished(tmp_path / "runs", Cell("films", "paper-32-512", 1e-3, 0), curve(5.0))
    results = summarise_field(tmp_path)
    assert results.verdicts.is_empty()
    assert results.correlations["spearman"].to_list() == [None] * 3
    assert "films: there is no predicted.csv, so no order can be compared." in results.notes
    assert "not trained yet" in describe_field(results)


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


def test_a_comparison_goes_on_as_it_began(tmp_path, script):
    """The same terms are taken, others refused."""
    script.refuse_other_terms(tmp_path / "terms.json", {"memory": "512MiB", "seconds": 120.0})
    script.refuse_other_terms(tmp_path / "terms.json", {"memory": "512MiB", "seconds": 120.0})
    with pytest.raises(ArgumentError, match=r"was begun with seconds 120\.0, not 60\.0"):
        script.refuse_other_terms(tmp_path / "terms.json", {"memory": "512MiB", "seconds": 60.0})


def test_the_command_of_a_run_has_every_setting_as_a_flag_that_training_knows(script):
    """A full softmax is not told of negatives; lean is a switch; the rest are pairs."""
    contest = script.Contest(
        name="films",
        data=Path("dataset"),
        allocations={PLAN: allocation(PLAN, objective="full-softmax"), LARGEST: allocation(LARGEST)},
        options=("--threads", "1"),
    )
    words = contest.command(Cell("films", LARGEST, 1e-3, 2), Path("run"))
    assert words[1:9] == [
        "-m",
        "budgetrec",
        "train",
        "dataset",
        "--output",
        "run",
        "--overwrite",
        "--threads",
    ]
    given = " ".join(words)
    assert "--batch-size 8 --objective sampled-softmax --no-lean --table-updates dense" in given
    assert "--num-negatives 64 --sharing batch --learning-rate 0.001 --seed 2" in given
    assert "--num-negatives" not in contest.command(Cell("films", PLAN, 1e-3, 2), Path("run"))
