"""Learning rates warm up, then follow the schedule."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from budgetrec.errors import ArgumentError
from budgetrec.optimizers import SCHEDULES, learning_rate_factor, make_optimizers, set_learning_rate

from .conftest import random_table


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_rises_in_equal_steps_from_one_part(schedule: str):
    """Four warm-up steps take 1/4, 2/4, 3/4 and all of the learning rate."""
    factors = [
        learning_rate_factor(step, schedule=schedule, warmup_steps=4, total_steps=100) for step in range(4)
    ]
    assert factors == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup_steps", [0, 10])
def test_no_schedule_jumps_or_rises_after_the_warm_up(schedule: str, warmup_steps: int):
    """From the end of the warm-up on, factors start at 1, fall or stay, and remain in [0, 1]."""
    factors = [
        learning_rate_factor(step, schedule=schedule, warmup_steps=warmup_steps, total_steps=1000)
        for step in range(warmup_steps, 1001)
    ]
    assert factors[0] == pytest.approx(1.0, abs=0.05)
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(factors))


def test_decays_by_hand():
    """Half-way between the warm-up and the end, and at the end."""
    places = {"warmup_steps": 100, "total_steps": 300}
    assert learning_rate_factor(250, schedule="linear", **places) == 0.25
    quarter = 0.5 * (1 + math.cos(0.75 * math.pi))
    assert learning_rate_factor(250, schedule="cosine", **places) == pytest.approx(quarter)
    assert learning_rate_factor(399, schedule="inverse-sqrt", **places) == 0.5
    assert learning_rate_factor(399, schedule="constant", **places) == 1.0
    for schedule in ("linear", "cosine"):
        assert learning_rate_factor(300, schedule=schedule, **places) == 0.0
        assert learning_rate_factor(10_000, schedule=schedule, **places) == 0.0


def test_a_run_that_is_all_warm_up_ends_at_the_full_rate():
    """A warm-up over the whole run is allowed and does not divide by zero."""
    factors = [learning_rate_factor(t, schedule="linear", warmup_steps=2, total_steps=2) for t in range(3)]
    assert factors == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decay_without_an_end_says_what_to_pass(schedule: str):
    """Schedules that fall to 0 need the length of training."""
    with pytest.raises(ArgumentError, match="total_steps is None; pass epochs or steps"):
        learning_rate_factor(0, schedule=schedule, warmup_steps=0, total_steps=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin'; pass one of constant, linear, cosine, inverse-sqrt"),
        ({"warmup_steps": 11}, "total_steps is 10 with 11 warmup_steps; train longer or warm up"),
        ({"warmup_steps": -1}, "warmup_steps is -1; pass 0 or more"),
        ({"total_steps": 0}, "total_steps is 0 with 0 warmup_steps"),
    ],
)
def test_wrong_schedules_are_one_sentence(wrong: dict[str, object], message: str):
    """What is wrong, what was seen, what to do."""
    with pytest.raises(ArgumentError, match=message):
        learning_rate_factor(0, **{"schedule": "linear", "warmup_steps": 0, "total_steps": 10} | wrong)


def test_the_learning_rate_of_all_optimizers_is_set():
    """Dense and row-sparse take the new rate at their next step, and 0 changes nothing."""
    weight, table = nn.Parameter(torch.ones(1)), random_table()
    words = {"optimizer": "sgd", "table_updates": "row-sparse"}
    optimizers = make_optimizers([weight], [table], **words, learning_rate=1.0)
    for learning_rate, expected in ((0.25, 0.75), (0.0, 0.75)):
        set_learning_rate(optimizers, learning_rate)
        weight.grad = torch.ones(1)
        nn.functional.embedding(torch.tensor([3]), table, sparse=True).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert weight.item() == expected
        torch.testing.assert_close(table[3], random_table()[3] - 0.25, rtol=0, atol=1e-6)
    with pytest.raises(ArgumentError, match="learning_rate is -1"):
        set_learning_rate(optimizers, -1)
