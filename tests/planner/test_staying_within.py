"""A run that grows above its budget is cut finer, and ends where it would have ended."""

import dataclasses
import os
import signal

import pytest
import torch

from budgetrec.errors import ArgumentError, TrainingError
from budgetrec.memory.budget import MemoryWatch
from budgetrec.planner.following import resume, train
from budgetrec.planner.planning import plan
from budgetrec.planner.request import PlanOptions
from budgetrec.runs.checkpoint import load_checkpoint
from budgetrec.runs.layout import LAST
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper
from budgetrec.training.tracking import Watcher

SMALL = {"dim": 16, "max_length": 20, "num_heads": 1, "batch_size": 32, "num_negatives": 16, "dropout": 0.0}


def config(**settings):
    """Return small settings, some of them changed."""
    return RunConfig().replaced({**SMALL, **settings})


class Listener(Watcher):
    """Keeps what it is told."""

    def __init__(self):
        self.sentences = []

    def change(self, sentence):
        """Keep a sentence."""
        self.sentences.append(sentence)


def test_a_run_above_its_budget_cuts_steps_and_says_so(dataset, tmp_path, monkeypatch):
    """With no bytes to spare, parts double until there is one a sequence; the weights end nearly the same."""
    monkeypatch.setattr(MemoryWatch, "excess", lambda watch: 5 * 2**20 if watch.budget_bytes else 0)
    listener = Listener()
    tight = train(dataset, tmp_path / "tight", config(steps=8, memory="1MiB"), watcher=listener)
    roomy = train(dataset, tmp_path / "roomy", config(steps=8))
    cut = "above the budget of 1 MiB; steps are cut into"
    assert listener.sentences[0].startswith(f"step 1: 5 MiB {cut} 4 parts from now on instead of 2")
    assert listener.sentences[3].startswith(f"step 4: 5 MiB {cut} 32 parts")
    assert listener.sentences[4].endswith("and steps cannot be cut any finer.")
    assert len(listener.sentences) == 5  # which is said once
    for name, tensor in tight.network.state_dict().items():
        assert torch.allclose(tensor, roomy.network.state_dict()[name], atol=1e-4), name


def test_steps_that_take_more_than_twice_the_planned_seconds_are_told_once(dataset, planned, tmp_path):
    """A plan that foresaw a thousandth of the seconds gets one sentence, one that foresaw enough none."""
    for foreseen, sentences in ((planned.step_seconds / 1000, 1), (planned.step_seconds * 1000, 0)):
        listener = Listener()
        other = dataclasses.replace(planned, step_seconds=foreseen)
        config = REPLANNED.replaced({"replan": None, "steps": 60})
        train(dataset, tmp_path / str(sentences), config, plan=other, watcher=listener)
        assert len(listener.sentences) == sentences
        assert all("instead of the planned" in sentence for sentence in listener.sentences)


def test_a_watch_counts_what_a_run_adds():
    """Sixty-four mebibytes that are touched show as growth, and as an excess over half of them."""
    watch = MemoryWatch(torch.device("cpu"), 32 * 2**20)
    held = torch.ones(16 * 2**20)
    assert 60 * 2**20 < watch.growth() < 90 * 2**20
    assert watch.excess() > 28 * 2**20
    del held
    watch.forget_peak()
    assert watch.excess() < 16 * 2**20
    assert watch.growth() > 60 * 2**20


def test_a_device_without_memory_gets_smaller_parts(dataset):
    """A step that runs out of memory is done again in more parts, with the same negatives and gradient."""
    whole = Stepper(dataset, config(micro_batches=1))
    scarce = Stepper(dataset, config(micro_batches=1))
    model_forward = scarce.model.forward

    def forward(ids, mask):
        if len(ids) > 8:
            raise torch.OutOfMemoryError("no memory")
        return model_forward(ids, mask)

    scarce.model.forward = forward
    batch = max(whole.batches.epoch(torch.Generator().manual_seed(0)), key=lambda each: len(each.ids))
    sums, parts = whole.gradient(batch), scarce.gradient(batch)
    assert parts.loss == pytest.approx(sums.loss, abs=1e-5)
    assert parts.num_parts >= 4
    assert scarce.micro_batches >= 4
    for one, other in zip(whole.model.parameters(), scarce.model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_a_device_that_cannot_hold_one_sequence_is_told(dataset):
    """When parts cannot get smaller the error of the device comes through."""
    stepper = Stepper(dataset, config())

    def forward(ids, mask):
        raise torch.OutOfMemoryError("no memory")

    stepper.model.forward = forward
    with pytest.raises(torch.OutOfMemoryError):
        stepper.gradient(next(stepper.batches.epoch(torch.Generator().manual_seed(0))))


@pytest.fixture(scope="module")
def planned(dataset):
    """Plan, and put an allocation in the plan's place that replanning will not keep."""
    narrow = RunConfig().replaced({"dim": 16, "max_length": 20, "num_heads": 1})
    wanted = PlanOptions(warm_up_targets=2000, objective="sampled-softmax", lean=False)
    made = plan(dataset, memory="400MiB", config=narrow, options=wanted)
    worse = dataclasses.replace(made.allocation, batch_size=4, num_negatives=2, sharing="batch")
    return dataclasses.replace(made, allocation=worse, fixed=("lean", "objective"))


REPLANNED = RunConfig().replaced(
    {"dim": 16, "max_length": 20, "num_heads": 1, "dropout": 0.0, "replan": 30, "epochs": 2}
)


def test_replanning_changes_negatives_at_once_and_the_batch_at_the_epochs_end(dataset, planned, tmp_path):
    """From n = 4 and k = 2 of one set, more negatives come at step 30 and more sequences with epoch 2."""
    listener = Listener()
    often = REPLANNED.replaced({"evaluate_every": 40})
    run = train(dataset, tmp_path / "run", often, plan=planned, watcher=listener)
    assert listener.sentences[0].startswith("step 30: planned again; k = ")
    assert "less time to the same loss than n = 4, k = 2 per batch" in listener.sentences[0]
    rows = run.metrics
    assert rows["batch_size"][0] == 4
    assert rows["num_negatives"][0] == 2
    assert rows.filter(rows["step"] >= 30)["num_negatives"].min() > 2
    assert rows.filter(rows["epoch"] <= 0.9)["batch_size"].max() == 4
    assert rows["batch_size"][-1] != 4
    assert rows["epoch"][-1] == 2.0


def test_a_replanned_run_resumes_bit_for_bit(dataset, planned, tmp_path):
    """Killed after its allocation has changed, a run ends bit for bit as one that was not."""

    class Killer(Watcher):
        def step(self, *, step, **seen):
            if step == 50:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = train(dataset, tmp_path / "whole", REPLANNED, plan=planned)
    with pytest.raises(TrainingError, match="everything is saved"):
        train(dataset, tmp_path / "broken", REPLANNED, plan=planned, watcher=Killer())
    broken = resume(tmp_path / "broken")
    first, second = (load_checkpoint(run.folder / LAST)[0] for run in (whole, broken))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_replanning_without_a_plan_is_refused(dataset, tmp_path):
    """There must be something to change."""
    with pytest.raises(ArgumentError, match=r"there is none\. Pass --plan"):
        train(dataset, tmp_path / "run", config(replan=5))
