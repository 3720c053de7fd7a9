"""A new objective and a new sampler are a few lines and one entry each; every stage takes them."""

import math

import pytest
import torch
from torch.nn import functional

from budgetrec import PlanOptions, RunConfig, evaluate, fit, resume, train
from budgetrec.data import demo
from budgetrec.objectives.modules import SampledObjective
from budgetrec.objectives.registry import OBJECTIVES
from budgetrec.objectives.specification import ObjectiveSpecification
from budgetrec.runs.checkpoint import load_checkpoint
from budgetrec.runs.layout import LAST
from budgetrec.samplers import Negatives
from budgetrec.samplers.registry import SAMPLERS
from budgetrec.samplers.specification import SamplerSpecification


def hinge(scores):
    """Ask every negative to score at least 1 less than the positive."""
    margins = functional.relu(1 + scores.negatives - scores.positive[..., None])
    return margins.masked_fill(scores.dropped, 0.0).sum(-1) / scores.num_kept().clamp(min=1)


def build_hinge(parts):
    """Make the objective from what settings say."""
    return SampledObjective(
        parts.num_items, parts.num_negatives, parts.sharing, hinge, sampler=parts.sampler, lean=parts.lean
    )


class Walking:
    """Draws neighbouring items, and begins one further with every draw, so that it has a state to keep."""

    refresh_steps = 1000

    def __init__(self, parts):
        self.num_items, self.num_negatives = parts.num_items, parts.num_negatives
        self.begin = torch.zeros(1, dtype=torch.int64)

    def draw(self, targets, generator, *, mask=None):
        """Draw the same items for each group."""
        self.begin += 1
        ids = (self.begin + torch.arange(self.num_negatives)) % self.num_items
        log_q = torch.full((1, 1), -math.log(self.num_items))
        return Negatives(ids.repeat(len(targets), 1), log_q, log_q)

    def refresh(self, table):
        """Nothing of the item table is looked at."""

    def state(self):
        """Return where the next draw begins."""
        return {"begin": self.begin}

    def load_state(self, tensors):
        """Begin where another left off."""
        self.begin.copy_(tensors["begin"])


HINGE = ObjectiveSpecification(name="toy-hinge", build=build_hinge, draws=True, law="guide")
WALKING = SamplerSpecification(name="toy-walking", build=Walking, lasting=lambda sampler: sampler)


@pytest.fixture
def toys(monkeypatch):
    """Enter them, as one line each in the registries would."""
    monkeypatch.setitem(OBJECTIVES, HINGE.name, HINGE)
    monkeypatch.setitem(SAMPLERS, WALKING.name, WALKING)


def test_toys_plan_train_resume_and_report(toys, tmp_path):
    """Nothing else of the house is touched, and a resumed run draws on where the sampler was."""
    truth = demo.make_truth(num_users=150, num_items=90, seed=0)
    demo.generate_events(truth, num_rows=2500, seed=1).write_parquet(tmp_path / "events.parquet")
    config = RunConfig().replaced(
        {
            "objective": HINGE.name,
            "sampler": WALKING.name,
            "dim": 8,
            "num_blocks": 1,
            "num_heads": 1,
            "max_length": 10,
            "steps": 12,
            "threads": 1,
        }
    )
    wanted = PlanOptions(objective=HINGE.name, warm_up_targets=2000, batch_size=16)
    files = tmp_path / "events.parquet"
    whole = fit(files, tmp_path / "whole", memory="400MiB", config=config, planning=wanted)
    plan = whole.plan
    assert plan.allocation.objective == HINGE.name
    assert "guide" in plan.assumptions["objective"]
    assert HINGE.name in whole.report.read_text("utf-8")
    assert math.isfinite(whole.evaluation.metrics["ndcg@10"])

    cut = train(whole.run.dataset, tmp_path / "cut", config.replaced({"steps": 5}), plan=plan)
    resumed = resume(cut.folder, steps=12)
    ours, theirs = (load_checkpoint(run.folder / LAST)[0] for run in (resumed, whole.run))
    assert ours.keys() == theirs.keys()
    assert "sampler.begin" in ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert evaluate(resumed).metrics == evaluate(whole.run).metrics


def test_toys_are_named_where_something_is_unknown(toys, refused, tmp_path):
    """Errors list what is registered, toys too."""
    assert HINGE.name in refused("train", "DATASET", "-o", tmp_path / "run", "--objective", "cross")
