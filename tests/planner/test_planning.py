"""Plans for real data on this machine, small enough for a test."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from budgetrec.cli import run
from budgetrec.display.plan_chart import draw_plan
from budgetrec.errors import ArgumentError, PlanError
from budgetrec.models import SequenceModel
from budgetrec.planner import bench, measurements
from budgetrec.planner.choosing import make_plan
from budgetrec.planner.families import possible_families
from budgetrec.planner.following import train
from budgetrec.planner.measured_noise import MeasuredNoise
from budgetrec.planner.measurements import measure
from budgetrec.planner.plan import Plan
from budgetrec.planner.planning import plan_with_search
from budgetrec.planner.replanning import measurements_of
from budgetrec.planner.request import DRAWN_ONLY, PlanOptions, make_request
from budgetrec.planner.seconds import StepSeconds
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig

SECONDS = StepSeconds(fixed=1e-3, sequence=1e-3, pair=1e-6, sharing="batch")
SMALL = {"dim": 16, "max_length": 20, "num_heads": 1, "warm_up_targets": 2000, "lean": False}


OPTIONS = {item.name for item in dataclasses.fields(PlanOptions)}
ABOUT_DATA = {"model_of_ones_own", "features", "num_items", "mean_length", "measurements"}


def request_for(memory, **asked):
    """Ask for a plan by the names of settings, as the command does."""
    options = {name: value for name, value in asked.items() if name in OPTIONS}
    config = {name: value for name, value in asked.items() if name not in OPTIONS}
    drawn = any(name in asked for name in DRAWN_ONLY)
    return make_request(memory, RunConfig().replaced(config), PlanOptions(**options, drawn=drawn))


def plan_all(dataset, memory="400MiB", **asked):
    """Return a plan with its search."""
    about = {name: asked.pop(name) for name in ABOUT_DATA & asked.keys()}
    if "model_of_ones_own" in about:
        about["model"] = about.pop("model_of_ones_own")
    return plan_with_search(request_for(memory, **asked), dataset, **about)


def plan(dataset, memory="400MiB", **asked):
    """Return a plan."""
    return plan_all(dataset, memory, **asked).plan


@pytest.fixture(scope="module")
def measured(dataset):
    """Measure once for all tests that only look."""
    return measure(request_for("400MiB", **SMALL), dataset, None)


@pytest.fixture(scope="module")
def planned(measured):
    """Plan once for all tests that only look."""
    return make_plan(request_for("400MiB", **SMALL), measured)


def test_a_plan_has_everything_that_was_promised(planned):
    """n, k, G, sharing, objective, bytes and noise by part, seconds, and a sentence for each choice."""
    document = planned.plan.to_json()
    promised = {"batch_size", "num_negatives", "num_groups", "sharing", "objective", "micro_batches"}
    assert (
        promised | {"predicted_bytes", "noise", "step_seconds", "because", "table_updates", "lean"}
        <= document.keys()
    )
    assert sum(document["predicted_bytes"]["parts"].values()) == document["predicted_bytes"]["total"]
    parts = {name: value for name, value in document["noise"].items() if name != "total"}
    assert sum(parts.values()) == pytest.approx(document["noise"]["total"])
    assert planned.plan.predicted_bytes <= 0.9 * planned.plan.budget_bytes
    assert {"batch_size", "objective", "lean", "micro_batches", "table_updates"} <= document["because"].keys()


def test_a_plan_is_followed_by_training(planned, dataset, tmp_path):
    """The settings of a plan train as they are, and the plan lies in the run's folder."""
    config = RunConfig().replaced({"dim": 16, "max_length": 20, "num_heads": 1, "steps": 3})
    run_made = train(dataset, tmp_path / "run", config, plan=planned.plan)
    assert run_made.config.training.batch_size == planned.plan.allocation.batch_size
    assert Plan.read(tmp_path / "run" / "plan.toml") == planned.plan
    assert run_made.metrics["training_bytes"].max() <= planned.plan.budget_bytes


def test_the_figure_shows_both_points(planned):
    """The chart holds the plan's point and the paper's."""
    text = json.dumps(draw_plan(planned.plan, planned.search).to_dict())
    assert "this plan" in text
    assert "the paper's n = k" in text


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(budget=st.integers(2**20, 2**34), goal=st.sampled_from(["time", "noise"]), margin=st.floats(0, 0.5))
def test_no_budget_crashes_the_planner_or_is_exceeded(measured, budget, goal, margin):
    """Any bytes give a plan that fits by its own model, or one sentence."""
    few = (measured.families[0], measured.families[-1])  # one set per sequence, and the full softmax
    request = request_for(budget, **SMALL, goal=goal, margin=margin)
    try:
        made = make_plan(request, dataclasses.replace(measured, families=few)).plan
    except PlanError as error:
        assert "nothing fits in" in str(error)
        return
    assert made.predicted_bytes <= budget * (1 - margin) + 1
    assert 1 <= made.allocation.batch_size <= len(measured.data.lengths)


def test_a_choice_of_ones_own_is_judged(planned, dataset):
    """Given n and k are kept, counted and compared, and the sentences say whose they are."""
    own = {"objective": "sampled-softmax", "sharing": "sequence", "batch_size": 64, "num_negatives": 100}
    judged = plan(dataset, memory="400MiB", measurements=planned.plan, **own, **SMALL)
    assert (judged.allocation.batch_size, judged.allocation.num_negatives) == (64, 100)
    assert judged.allocation.objective == "sampled-softmax"
    assert judged.because["batch_size"].startswith("as you asked. 64 sequences")
    assert judged.step_seconds > 0


def test_the_papers_rule_shares_one_set(dataset):
    """N = k with one set of negatives for the batch."""
    wishes = {name: value for name, value in SMALL.items() if name != "lean"}
    made = plan(dataset, rule="paper", objective="sampled-softmax", sharing="batch", **wishes)
    assert made.allocation.batch_size == made.allocation.num_negatives
    assert (made.allocation.sharing, made.num_groups) == ("batch", 1)
    assert "is 0." not in made.because["lean"]  # the other way is no better at what the rule asks for


def test_a_plan_remembers_what_its_bytes_hold_for(planned, dataset, refused, budgetrec, tmp_path):
    """Training takes dim and length from the plan, and refuses others."""
    assert {"dim": 16, "max_length": 20, "num_heads": 1}.items() <= planned.plan.settings.items()
    planned.plan.write(tmp_path / "plan.toml")
    words = ("train", dataset.folder, "-o", tmp_path / "run", "--plan", tmp_path / "plan.toml")
    assert "dim is 32, and" in refused(*words, "--dim", "32")
    assert budgetrec(*words, "--dim", "16", "--steps", "2", "--memory", "300MiB").code == 0
    config = Run.open(tmp_path / "run").config
    assert (config.model.max_length, config.training.memory) == (20, "300MiB")


def test_more_negatives_than_items_get_a_remark(planned, dataset):
    """Drawn with replacement they can be had, and scoring every item costs less."""
    own = {"objective": "sampled-softmax", "sharing": "sequence", "num_negatives": 5000}
    judged = plan(dataset, memory="400MiB", measurements=planned.plan, **own, **SMALL)
    assert "scoring all 120 items (--objective full-softmax) costs less" in judged.because["num_negatives"]


def test_an_allocation_that_lost_by_its_bias_says_so():
    """With one negative the step is nearly all bias, which no number of steps averages out."""
    made = plan(None, memory="4GiB", num_items=200_000, mean_length=40, device="cuda")
    lost = {each.name: each.why for each in made.candidates}
    assert "the bias at such a small k means" in lost["largest batch, k = 1"]
    assert "bias" not in lost["the paper's n = k"]


def test_a_budget_that_nothing_fits_says_what_would():
    """What takes the bytes is named, and three changes that fit, each with its own."""
    with pytest.raises(PlanError) as caught:
        plan(None, memory="1GiB", num_items=1_000_000, mean_length=20, dim=128, device="cuda")
    message = str(caught.value)
    assert message.startswith(
        "nothing fits in 1.0 GiB (922 MiB with the safety margin): one sequence with one"
    )
    assert re.search(r"the optimiser's state 97\d MiB, weights 48\d MiB", message)
    assert "1,000,000 items x dim 128" in message
    changes, least = message.split("These would fit: ")[1].split(". As it is, ")
    assert len(changes.split("; ")) == 3
    assert all(each.startswith("--") and each.endswith("MiB)") for each in changes.split("; "))
    memory = least.removesuffix(" would do.")
    made = plan(None, memory=memory, num_items=1_000_000, mean_length=20, dim=128, device="cuda")
    assert made.predicted_bytes > 2**30  # so that no smaller number would have done


@pytest.mark.parametrize("memory", ["20MiB", "200MiB"])
def test_the_bytes_that_would_do_do(memory):
    """Also where more bytes mean that an evaluation takes more of them."""
    wishes = {"num_items": 400_000, "mean_length": 20, "device": "cuda", "sharing": "batch"}
    with pytest.raises(PlanError) as caught:
        plan(None, memory=memory, **wishes)
    enough = str(caught.value).split("As it is, ")[1].removesuffix(" would do.")
    assert plan(None, memory=enough, **wishes).allocation.batch_size >= 1


def test_nothing_fits_is_told_of_item_features_too(dataset):
    """Changes that do not go with features are not offered."""
    features = torch.randn(dataset.num_items, 512)
    with pytest.raises(PlanError, match="nothing fits in 1 MiB") as caught:
        plan(dataset, memory="1MiB", features=features, **SMALL)
    assert "row-sparse" not in str(caught.value)


def test_what_only_drawn_negatives_have_rules_the_full_softmax_out(dataset):
    """A sampler that was asked for is used, and training takes it over from the plan."""
    made = plan(dataset, memory="400MiB", sampler="popularity", sharing="batch", **SMALL)
    assert made.allocation.objective == "sampled-softmax"
    assert made.settings["sampler"] == "popularity"


def test_a_plan_of_the_full_softmax_alone_is_drawn(dataset):
    """No other family was counted, so the figure has no edge."""
    made = plan_all(dataset, objective="full-softmax", **SMALL)
    assert "this plan" in json.dumps(draw_plan(made.plan, made.search).to_dict())


def test_families_that_do_not_fit_are_never_run(dataset, monkeypatch):
    """Logits of all items at once take too much: only the lean way is timed, and the sentence says why."""
    timed = []

    def time_family(stepper, family, *rest, **more):
        timed.append(family)
        return bench_timing(stepper, family, *rest, **more)

    bench_timing = bench.time_family
    monkeypatch.setattr(measurements, "fits", lambda request, memory, data, way, n, k: way.lean)
    monkeypatch.setattr(bench, "time_family", time_family)
    wishes = {name: value for name, value in SMALL.items() if name != "lean"}
    made = plan(dataset, memory="400MiB", objective="full-softmax", **wishes)
    assert made.allocation.lean
    assert timed
    assert all(way.lean for way in timed)


def test_a_plan_without_data_says_what_it_assumed():
    """Items, lengths, noise and seconds are named; the bytes are those of the asked device."""
    made = plan(None, memory="40GiB", num_items=200_000, mean_length=40, device="cuda")
    assert made.assumptions.keys() == {"data", "noise", "seconds"}
    assert "200,000 items" in made.assumptions["data"]
    assert "20 TFLOP/s" in made.assumptions["seconds"]
    assert made.predicted_bytes <= 0.9 * 40 * 2**30
    assert made.allocation.num_negatives > 8  # one negative would be all bias


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"memory": "2 bananas"}, "not a number of bytes"),
        ({"goal": "fame"}, "goal is 'fame'; pass one of time, noise"),
        ({"rule": "thumb"}, "rule is 'thumb'; pass one of law, paper"),
        ({"margin": 1.5}, "margin is 1.5"),
        ({"objective": "sce"}, "does not cover the objective sce"),
        ({"num_items": 5}, "are for planning without a dataset"),
        ({"batch_size": 10**6}, "the data has 300"),
        ({"device": "cuda"}, "torch sees no GPU here"),
        ({"rule": "paper", "batch_size": 8}, "the paper's rule chooses n and k"),
    ],
)
def test_requests_that_make_no_sense_get_a_sentence(dataset, wishes, words):
    """Each is refused before anything slow happens, or as soon as it is known."""
    with pytest.raises((ArgumentError, PlanError), match=words):
        plan(dataset, **{"memory": "400MiB", **SMALL, **wishes})


def test_without_data_there_must_be_a_description():
    """Neither a dataset nor a number of items is nothing to plan for."""
    with pytest.raises(ArgumentError, match="no dataset to plan for"):
        plan(None, memory="1GiB")


class Mine(SequenceModel):
    """A model of one's own: a recurrent network over a table."""

    def __init__(self, num_items):
        super().__init__()
        self.num_items, self.max_length = num_items, 20
        self.table = nn.Embedding(num_items, 8)
        self.network = nn.GRU(8, 8, batch_first=True)

    def forward(self, ids, mask):
        """Return states."""
        return self.network(self.table(ids))[0]

    def item_vectors(self, ids):
        """Return rows of the table."""
        return self.table(ids)


def test_a_model_of_ones_own_is_planned_for(dataset):
    """Only the two methods of the contract are needed."""
    torch.manual_seed(0)
    mine = Mine(dataset.num_items)
    made = plan(
        dataset, memory="400MiB", model_of_ones_own=mine, **{**SMALL, "dim": 8, "sharing": "sequence"}
    )
    assert made.parts["weights"] < 100_000
    assert made.predicted_bytes <= 0.9 * made.budget_bytes


def test_planning_leaves_a_model_as_it_was(dataset):
    """Weights are those of before, though the model was trained meanwhile."""
    torch.manual_seed(0)
    mine = Mine(dataset.num_items)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    plan(dataset, model_of_ones_own=mine, **{**SMALL, "sharing": "batch", "batch_size": 16})
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"micro_batches": 4}, "without micro-batches and row-sparse updates"),
        ({"table_updates": "row-sparse"}, "without micro-batches and row-sparse updates"),
        ({"sampler": "kernel"}, "the sampler kernel follows the model as it trains"),
    ],
)
def test_what_only_our_trainer_does_is_not_planned_for_a_model_of_ones_own(dataset, wishes, words):
    """Each is one sentence."""
    with pytest.raises(ArgumentError, match=words):
        plan(dataset, model_of_ones_own=Mine(dataset.num_items), **{**SMALL, **wishes})


def test_a_plan_for_our_model_refuses_a_loop_of_ones_own(planned, dataset):
    """Its bytes hold only where steps are cut."""
    for method in (planned.plan.batches, planned.plan.objective):
        with pytest.raises(
            PlanError, match="the plan is for sasrec as budgetrec trains it, which cuts steps"
        ):
            method(dataset)


def families(num_items=1000, *, has_features=False, **asked):
    """List what a plan would choose among."""
    return possible_families(request_for("1GiB", **asked), num_items=num_items, has_features=has_features)


def test_families_follow_what_is_fixed():
    """A fixed sharing or k rules the full softmax out, in-batch negatives are shared, features are dense."""
    assert {way.sharing for way in families() if way.draws} == {"batch", "sequence", "target"}
    assert not all(way.draws for way in families())
    assert all(way.draws for way in families(num_negatives=5))
    assert {way.sharing for way in families(10**6, sampler="in-batch")} == {"batch"}
    assert {way.table_updates for way in families(10**6, has_features=True)} == {"dense"}


def test_measurements_come_back_from_a_plan(planned, dataset):
    """With the saved seconds and overhead, planning again by the same noise gives the same allocation."""
    request = request_for("400MiB", **SMALL)
    noise = MeasuredNoise(
        constants=planned.search.constants, gradient=planned.search.gradient, assumptions={}
    )
    known = measurements_of(planned.plan, request, dataset, None, "cpu", noise)
    again = make_plan(request, known).plan
    assert again.allocation == planned.plan.allocation
    assert again.predicted_bytes == planned.plan.predicted_bytes


def test_measurements_kept_in_a_plan_give_the_same_plan_to_the_digit(measured, planned, dataset, tmp_path):
    """With --measurements nothing is timed or probed, and every number and sentence is the same."""
    planned.plan.write(tmp_path / "plan.toml")
    request = request_for("400MiB", **SMALL)
    again = plan_with_search(request, dataset, measurements=tmp_path / "plan.toml").plan
    assert again == planned.plan
    (tmp_path / "again.toml").unlink(missing_ok=True)
    again.write(tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_bytes() == (tmp_path / "plan.toml").read_bytes()


def test_measurements_of_something_else_get_a_sentence(planned, dataset):
    """Another width, another catalogue, or a plan of 0.1 that kept no constants: one sentence each."""
    other = request_for("400MiB", **SMALL | {"dim": 32})
    with pytest.raises(PlanError, match="measured for dim 16, and 32 is asked for"):
        plan_with_search(other, dataset, measurements=planned.plan)
    old = dataclasses.replace(planned.plan, noise_model={})
    with pytest.raises(PlanError, match="does not hold what was measured"):
        plan_with_search(request_for("400MiB", **SMALL), dataset, measurements=old)


def test_a_step_that_takes_longer_than_foreseen_is_planned_for_again(dataset, monkeypatch):
    """A chosen step that is timed at five times what was foreseen is foreseen as timed afterwards."""
    slow = []

    def time_allocation(stepper, allocation, clock):
        found = bench_timing(stepper, allocation, clock)
        if not slow or allocation.family in slow:
            slow[:] = [allocation.family]
            return dataclasses.replace(found, seconds=5 * found.seconds)
        return found

    bench_timing = bench.time_allocation
    monkeypatch.setattr(bench, "time_allocation", time_allocation)
    made = plan_all(dataset, objective="sampled-softmax", sharing="batch", **SMALL)
    monkeypatch.undo()
    again = plan_all(dataset, objective="sampled-softmax", sharing="batch", **SMALL)
    assert (
        made.plan.step_seconds
        > 2
        * again.search.choice(
            made.plan.allocation, made.plan.allocation.batch_size, made.plan.allocation.num_negatives
        ).seconds
    )


def test_the_command_writes_plan_and_figure(dataset, tmp_path, capsys):
    """`plan -o` leaves plan.toml and two pictures, and prints one JSON object."""
    options = (
        "--json",
        "--dim",
        "16",
        "--max-length",
        "20",
        "--warm-up-targets",
        "2000",
        "--no-lean",
        "--sharing",
        "batch",
    )
    output = tmp_path / "plan"
    code = run(["plan", str(dataset.folder), "--memory", "400MiB", "-o", str(output), *options])
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert {path.name for path in output.iterdir()} == {"plan.toml", "plan.svg", "plan.png"}
    assert Plan.read(output / "plan.toml").allocation.batch_size == document["batch_size"]
    assert np.isfinite(document["step_seconds"])
