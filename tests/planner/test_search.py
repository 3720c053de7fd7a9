"""The search: the best that fits, by its own predictions."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.allocation import Allocation
from budgetrec.planner.reasons import give_reasons, paper_choice, runner_ups
from budgetrec.planner.search import Search, ladder
from budgetrec.planner.seconds import StepSeconds
from budgetrec.theory.noise import NoiseConstants


def family(**words):
    """Return a way to take a step, whatever n and k are."""
    return Allocation(batch_size=1, num_negatives=1, **words)


SEQUENCE = family(objective="sampled-softmax", sharing="sequence", lean=False, table_updates="dense")
BATCH = dataclasses.replace(SEQUENCE, sharing="batch")
FULL = family(objective="full-softmax", sharing="batch", lean=True, table_updates="dense")


def make_search(**changes):
    """Return a search over two ways of sharing and the full softmax, with round numbers."""

    def count(way, per_logit):
        def total(n, k, micro_batches):
            part = np.ceil(np.asarray(n) / (micro_batches or 1))
            return 1000.0 + part * (100 + per_logit * np.asarray(k)) + 8 * np.asarray(n)

        return total

    values = {
        "families": (SEQUENCE, BATCH, FULL),
        "constants": NoiseConstants.saturating(
            example=1.0, target_class=400.0, shared_class=40.0, sequence_class=200.0, rho=10.0
        ),
        "gradient": 0.01,
        "mean_targets": 10.0,
        "bytes": {SEQUENCE: count(SEQUENCE, 2), BATCH: count(BATCH, 1), FULL: count(FULL, 1)},
        "seconds": {
            SEQUENCE: StepSeconds(fixed=1e-3, sequence=1e-3, pair=1e-6),
            BATCH: StepSeconds(fixed=1e-3, sequence=1e-3, pair=1e-6, sharing="batch"),
            FULL: StepSeconds(fixed=1e-3, sequence=11e-3, pair=0.0, sharing="batch"),
        },
        "num_items": 10_000,
        "max_batch_size": 500,
        "goal": "time",
        "limit": 50_000.0,
        "fixed": {},
    }
    return Search(**(values | changes))


def every_choice(search, way):
    """Look at every (n, k) of the ladders one by one."""
    return [
        search.choice(way, int(n), int(k))
        for n in search.batch_sizes()
        for k in search.negatives(way)
        if float(search.total_bytes(way, int(n), int(k))) <= search.limit
    ]


@pytest.mark.parametrize("goal", ["time", "noise"])
def test_the_best_of_a_kind_is_the_best_of_all_its_candidates(goal):
    """Trying every (n, k) that fits finds nothing better than the search does."""
    search = make_search(goal=goal, max_batch_size=40, num_items=60, limit=4000.0)
    for way in search.families:
        found = search.best(way)
        assert found.score == pytest.approx(min(choice.score for choice in every_choice(search, way)))


@settings(deadline=None, max_examples=60)
@given(
    limit=st.floats(900, 1e9),
    gradient=st.floats(-1e-3, 10),
    most=st.integers(1, 10_000),
    items=st.integers(2, 100_000),
    goal=st.sampled_from(["time", "noise"]),
)
def test_no_budget_breaks_the_search_or_is_exceeded(limit, gradient, most, items, goal):
    """Whatever the bytes, the data and the noise, all that is offered fits, and its reasons can be told."""
    search = make_search(limit=limit, gradient=gradient, max_batch_size=most, num_items=items, goal=goal)
    ranked = search.best_of_all()
    assert all(choice.bytes <= limit for choice in ranked)
    assert [choice.score for choice in ranked] == sorted(choice.score for choice in ranked)
    if ranked:
        reasons = give_reasons(search, ranked[0], ranked, set())
        assert all(sentence.endswith(".") for sentence in reasons.values())
        losers = runner_ups(search, ranked[0], ranked)
        assert all(math.isfinite(each.score) and each.score >= 1 - 1e-9 for each in losers)
        assert all(each.predicted_bytes <= math.ceil(limit) for each in losers)
    else:
        assert limit < 1111


def test_steps_are_cut_where_only_that_makes_the_best_batch_fit():
    """With bytes for a part of the batch only, more micro-batches give more than a smaller batch."""
    search = make_search(families=(SEQUENCE,), goal="noise", limit=9000.0)
    best = search.best_of_all()[0]
    assert best.allocation.micro_batches is not None
    assert best.score < search.best(SEQUENCE).score


def test_without_gradient_and_fixed_costs_the_law_times_seconds_asks_for_the_shared_optimum():
    """With one set for the batch, no bias and seconds in proportion to logits, T/k comes near C_y / C_p."""
    constants = NoiseConstants.saturating(example=4.0, target_class=1e-9, shared_class=1.0)
    seconds = StepSeconds(fixed=0.0, sequence=0.0, pair=1e-6, sharing="batch")
    search = make_search(
        families=(BATCH,),
        constants=constants,
        gradient=0.0,
        mean_targets=1.0,
        seconds={BATCH: seconds},
        bytes={BATCH: lambda n, k, micro: 1.0 * np.asarray(n) * np.asarray(k)},
        limit=4096.0,
        goal="noise",
        max_batch_size=4096,
    )
    best = search.best(BATCH)
    assert best.allocation.batch_size / best.allocation.num_negatives == pytest.approx(4.0, rel=0.3)


def test_a_bias_above_the_gradient_rules_small_k_out():
    """The same costs with a bias that vanishes at large k ask for more negatives."""
    plain = make_search(families=(SEQUENCE,))
    biased = make_search(
        families=(SEQUENCE,),
        constants=dataclasses.replace(
            plain.constants, bias=lambda k: 0.02 / (1 + (np.asarray(k, dtype=float) / 100) ** 2)
        ),
    )
    without, with_bias = plain.best(SEQUENCE), biased.best(SEQUENCE)
    assert with_bias.allocation.num_negatives > 1.5 * without.allocation.num_negatives


def test_the_papers_rule_gives_the_largest_square_that_fits():
    """N = k fits, and n + 1 does not."""
    search = make_search()
    choice = paper_choice(search, BATCH)
    square = choice.allocation
    assert square.batch_size == square.num_negatives
    assert choice.bytes <= search.limit
    beyond = square.batch_size + 1
    assert float(search.total_bytes(BATCH, beyond, beyond)) > search.limit


def test_what_a_person_fixes_stays():
    """Only the asked batch size and negatives are looked at."""
    search = make_search(fixed={"batch_size": 16, "num_negatives": 100}, families=(SEQUENCE, BATCH))
    assert {(each.allocation.batch_size, each.allocation.num_negatives) for each in search.best_of_all()} == {
        (16, 100)
    }


@given(st.integers(1, 10**7))
def test_ladders_rise_to_their_end_by_an_eighth_at_most(most):
    """Rungs rise strictly, the last is the end, and none is more than an eighth (or 1) above the last."""
    rungs = ladder(most)
    assert rungs[0] == 1
    assert rungs[-1] == most
    assert (np.diff(rungs) > 0).all()
    assert (rungs[1:] <= np.maximum(rungs[:-1] + 1, rungs[:-1] * 1.125 + 1e-9)).all()


def test_a_batch_has_no_more_negatives_of_its_own_than_targets():
    """With negatives from the batch, noise stops falling at k = n x targets; half and half, at twice that."""
    independent, whole, half = (make_search(share_from_batch=share) for share in (0.0, 1.0, 0.5))
    n, most = 4, 40  # sequences, and their targets
    assert whole.noise(BATCH, n, 8 * most).total == pytest.approx(independent.noise(BATCH, n, most).total)
    assert whole.score(BATCH, n, 8 * most) > whole.score(BATCH, n, most)
    assert half.noise(BATCH, n, 8 * most).total == pytest.approx(independent.noise(BATCH, n, 5 * most).total)
