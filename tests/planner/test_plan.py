"""A plan on paper comes back equal."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.allocation import Allocation
from budgetrec.display.plan_text import candidate_rows, memory_rows, noise_rows
from budgetrec.errors import ConfigError, PlanError
from budgetrec.planner.plan import NOISE, PARTS, Candidate, Plan

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(0, 2**50)
NUMBERS = st.floats(0, 1e12)

CANDIDATES = st.builds(
    Candidate,
    name=WORDS,
    batch_size=st.integers(1, 10**6),
    num_negatives=st.integers(1, 10**6),
    sharing=st.sampled_from(["batch", "sequence", "target"]),
    objective=st.sampled_from(["sampled-softmax", "full-softmax"]),
    predicted_bytes=COUNTS,
    noise=NUMBERS,
    step_seconds=NUMBERS,
    score=NUMBERS,
    why=WORDS,
)
ALLOCATIONS = st.builds(
    Allocation,
    batch_size=st.integers(1, 10**6),
    num_negatives=st.integers(1, 10**6),
    sharing=st.sampled_from(["batch", "sequence", "target"]),
    objective=st.sampled_from(["sampled-softmax", "full-softmax"]),
    lean=st.booleans(),
    micro_batches=st.none() | st.integers(1, 1000),
    table_updates=st.sampled_from(["dense", "row-sparse"]),
)
PLANS = st.builds(
    Plan,
    allocation=ALLOCATIONS,
    num_groups=st.integers(0, 10**6),
    num_targets=st.integers(1, 10**6),
    optimizer=st.just("adam"),
    goal=st.just("time"),
    rule=st.just("law"),
    budget_bytes=st.integers(2**20, 2**50),
    margin=st.floats(0, 0.9),
    step_seconds=NUMBERS,
    gradient=NUMBERS,
    predicted_bytes=COUNTS,
    parts=st.fixed_dictionaries(dict.fromkeys(PARTS, COUNTS)),
    noise=st.fixed_dictionaries(dict.fromkeys(NOISE, NUMBERS)),
    because=st.dictionaries(WORDS, WORDS, max_size=3),
    assumptions=st.dictionaries(WORDS, WORDS, max_size=3),
    candidates=st.lists(CANDIDATES, max_size=3).map(tuple),
    fixed=st.lists(WORDS, max_size=3).map(tuple),
    overhead_bytes=COUNTS,
    seconds_model=st.lists(st.dictionaries(WORDS, NUMBERS | WORDS, max_size=3), max_size=2).map(tuple),
)


@given(PLANS)
def test_plans_survive_toml(tmp_path_factory, plan):
    """Whatever words and numbers a plan holds, it is read as it was written."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    plan.write(path)
    assert Plan.read(path) == plan


@given(PLANS)
def test_every_plan_can_be_shown(plan):
    """Tables have a row a part, a source of noise and a candidate."""
    assert len(memory_rows(plan)) == len(PARTS) + 1
    assert len(noise_rows(plan)) == len(NOISE)
    assert len(candidate_rows(plan)) == 1 + len(plan.candidates)


@pytest.fixture
def plan():
    """Return a plan with round numbers."""
    return Plan(
        allocation=Allocation(batch_size=32, num_negatives=512, sharing="sequence", table_updates="dense"),
        num_groups=32,
        num_targets=3200,
        optimizer="adam",
        goal="time",
        rule="law",
        budget_bytes=2**31,
        margin=0.1,
        step_seconds=0.1,
        gradient=0.01,
        predicted_bytes=700,
        parts=dict.fromkeys(PARTS, 100),
        noise=dict.fromkeys(NOISE, 0.25),
        because={"batch_size": "so."},
    )


def test_settings_are_what_training_has_to_be_told(plan):
    """Negatives only where some are drawn, micro-batches only where there are some."""
    assert plan.settings == {
        "batch_size": 32,
        "objective": "sampled-softmax",
        "lean": False,
        "table_updates": "dense",
        "num_negatives": 512,
        "sharing": "sequence",
    }
    full = dataclasses.replace(plan.allocation, objective="full-softmax", micro_batches=4)
    assert full.settings.keys() == {"batch_size", "objective", "lean", "table_updates", "micro_batches"}
    assert plan.total_noise == 1.0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("batch_size = 32", 'batch_size = "32"'),
        lambda text: text.replace("[predicted_bytes]", "[elsewhere]"),
        lambda text: f"unknown = 1\n{text}",
        lambda text: "",
        lambda text: text.replace('batch_size = "so."', "batch_size = 3"),
        lambda text: re.sub(r"example = .*", 'example = "much"', text),
        lambda text: re.sub(r"example = .*", "", text),
        lambda text: text.replace("fixed = []", "fixed = [[]]"),
    ],
    ids=[
        "a word for a number",
        "no bytes",
        "an unknown key",
        "nothing",
        "a number for a reason",
        "a word for noise",
        "no noise of examples",
        "a list for a name",
    ],
)
def test_a_damaged_plan_gets_a_sentence(plan, tmp_path, damage):
    """The file is named, and what to do."""
    path = tmp_path / "plan.toml"
    plan.write(path)
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    with pytest.raises(PlanError, match=r"plan\.toml is not a plan, or is damaged: .* Plan again\."):
        Plan.read(path)


def test_a_plan_that_is_not_there_gets_a_sentence(tmp_path):
    """A missing file is told as such."""
    with pytest.raises(ConfigError, match="does not exist"):
        Plan.read(tmp_path / "plan.toml")
