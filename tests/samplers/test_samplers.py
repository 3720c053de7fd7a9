"""What each sampler promises for itself."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError
from budgetrec.samplers import (
    AliasTable,
    ForcedPositives,
    InBatch,
    LogUniform,
    Mixed,
    Negatives,
    Popularity,
    QuadraticKernel,
    StreamingFrequency,
    Uniform,
)

from .conftest import COUNTS, NUM_ITEMS, UNIGRAM, chi_square_p_value


def seeded(seed: int) -> torch.Generator:
    """Return a generator of its own."""
    return torch.Generator().manual_seed(seed)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=50))
def test_an_alias_table_owns_exactly_the_probabilities_it_was_given(weights):
    """What the slots of an item sum to is its weight over the total, for any weights."""
    wanted = np.array(weights) / np.sum(weights)
    table = AliasTable(np.array(weights))
    np.testing.assert_allclose(table.probabilities().numpy(), wanted, rtol=1e-9, atol=1e-15)
    assert bool(((table.keep >= 0) & (table.keep <= 1)).all())


def test_an_alias_table_of_ten_million_items_is_quick_small_and_right():
    """10^7 Zipf weights: under 2 s, under 200 MB with log q, every probability to a millionth."""
    counts = 1e7 / torch.arange(1, 10**7 + 1, dtype=torch.float64)
    seconds = []
    for _ in range(3):  # best of three, CPU time: other work on the machine is not what is measured
        start = time.process_time()
        sampler = Popularity(counts, 8)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 2
    assert sampler.num_bytes < 200e6
    wanted = counts / counts.sum()
    assert float(((sampler._table.probabilities() - wanted) / wanted).abs().max()) < 1e-6


def test_popularity_serves_catalogues_that_multinomial_refuses():
    """Peer defect: torch.multinomial stops at 2^24 classes; the alias table draws the last item too."""
    counts = torch.ones(2**24 + 10)
    counts[-1] = 1e7
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(counts, 5, replacement=True)
    ids = Popularity(counts, 1000).draw(torch.tensor([[0]]), seeded(0)).ids
    assert float((ids == 2**24 + 9).float().mean()) == pytest.approx(1e7 / (1e7 + 2**24), abs=0.05)


def test_log_uniform_does_not_keep_the_lowest_ids():
    """Peer defect: unique ids cut to length are the lowest ones; ours reach the tail as often as q says."""
    ids = LogUniform(1000, 200).draw(torch.zeros(500, 1, dtype=torch.int64), seeded(1)).ids
    cut = torch.stack([row.unique()[:50] for row in ids])
    tail = float(LogUniform(1000, 1).log_q(torch.arange(500, 1000)).exp().sum())
    assert float((ids >= 500).float().mean()) == pytest.approx(tail, rel=0.05)
    assert float((cut >= 500).float().mean()) < tail / 10


def test_mixed_draws_follow_the_mixture_and_not_the_unigram():
    """Peer defect: half uniform negatives weighed by the unigram q; the same draws refute that q."""
    sampler = Mixed(NUM_ITEMS, UNIGRAM, num_in_batch=8, num_uniform=8)
    generator = seeded(2)
    observed = torch.zeros(NUM_ITEMS)
    for _ in range(2000):
        targets = torch.multinomial(UNIGRAM.exp(), 16, replacement=True, generator=generator)
        observed += torch.bincount(sampler.draw(targets[None], generator).ids[0], minlength=NUM_ITEMS)
    everything = torch.arange(NUM_ITEMS)
    assert chi_square_p_value(observed, observed.sum() * sampler.log_q(everything).exp()) > 1e-4
    assert chi_square_p_value(observed, observed.sum() * UNIGRAM.exp()) < 1e-12


def test_unique_in_batch_items_are_there_as_often_as_log_q_says():
    """With one target fixed, k q_j is the probability that class j is among the other targets."""
    sampler = InBatch(NUM_ITEMS, UNIGRAM, unique=True)
    generator = seeded(3)
    observed, calls = torch.zeros(NUM_ITEMS), 4000
    inclusion = torch.zeros(NUM_ITEMS, dtype=torch.float64)
    for _ in range(calls):
        others = torch.multinomial(UNIGRAM.exp(), 19, replacement=True, generator=generator)
        negatives = sampler.draw(torch.cat([torch.tensor([0]), others])[None], generator)
        observed[negatives.ids[0]] += 1
        inclusion[negatives.ids[0]] = (negatives.log_q[0] + math.log(negatives.num_negatives)).double().exp()
    assert int(negatives.ids[0].unique().numel()) == negatives.num_negatives
    torch.testing.assert_close(inclusion, 1 - (1 - UNIGRAM.double().exp()) ** 19, rtol=1e-4, atol=0)
    variance = calls * inclusion * (1 - inclusion)
    assert bool(((observed - calls * inclusion).abs() < 4.5 * variance.sqrt())[1:].all())


def test_in_batch_pads_a_small_batch_with_slots_that_do_not_count():
    """Two targets cannot fill five slots."""
    negatives = InBatch(NUM_ITEMS, UNIGRAM, 5).draw(torch.tensor([[4, 9]]), seeded(0))
    assert negatives.valid.tolist() == [[True, True, False, False, False]]
    mixed = Mixed(NUM_ITEMS, UNIGRAM, num_in_batch=5, num_uniform=1)
    assert mixed.draw(torch.tensor([[4, 9]]), seeded(0)).valid.sum() == 3


def test_forced_positives_hold_every_target_once():
    """The paper's S: all positives of the group, then distinct others, k in all."""
    targets = torch.tensor([[3, 3, 17, 0], [5, 5, 5, 5], [1, 2, 3, 4]])
    for num_negatives in (4, 6, NUM_ITEMS - 1):
        ids = ForcedPositives(NUM_ITEMS, num_negatives).draw(targets, seeded(4)).ids
        assert int(ids.max()) < NUM_ITEMS
        for row, own in zip(ids, targets, strict=True):
            assert row.unique().numel() == num_negatives
            assert set(own.tolist()) <= set(row.tolist())


def test_kernel_q_is_the_normalised_kernel():
    """Exact q for single targets and for the mean kernel of a group, held to the dense formula."""
    table = torch.randn(300, 8, generator=seeded(5), dtype=torch.float64)
    hidden = torch.randn(4, 3, 8, generator=seeded(6), dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False], [False, True, True]])
    targets = torch.randint(300, (4, 3), generator=seeded(7))
    negatives = QuadraticKernel(table, 7, alpha=3.0).given(hidden, mask).draw(targets, seeded(8), mask=mask)
    kernel = 3.0 * (hidden @ table.T) ** 2 + 1  # (G, m, K)
    q = (kernel * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    q = q / q.sum(1, keepdim=True)
    torch.testing.assert_close(negatives.log_q.exp(), q.gather(1, negatives.ids))
    torch.testing.assert_close(negatives.log_q_targets.exp()[mask], q.gather(1, targets)[mask])


def test_kernel_draws_change_when_the_table_does():
    """After update() the tree is the one a fresh table would give, and draws follow it."""
    table = torch.randn(100, 4, generator=seeded(9))
    sampler = QuadraticKernel(table, 50, alpha=5.0)
    changed = torch.tensor([3, 50, 99])
    table = table.clone()
    table[changed] += 3
    sampler.update(changed, table)
    fresh = QuadraticKernel(table, 50, alpha=5.0)
    for ours, wanted in zip(sampler._sums, fresh._sums, strict=True):
        torch.testing.assert_close(ours, wanted)
    hidden = torch.randn(1, 1, 4, generator=seeded(10)).expand(400, 1, 4)
    ids = sampler.given(hidden).draw(torch.zeros(400, 1, dtype=torch.int64), seeded(11)).ids
    kernel = 5.0 * (table @ hidden[0, 0]) ** 2 + 1
    observed = torch.bincount(ids.flatten(), minlength=100)
    assert chi_square_p_value(observed, ids.numel() * kernel / kernel.sum()) > 1e-4


def test_streaming_frequency_finds_the_probability_of_one_draw():
    """20,000 batches of 5 targets fix log q, and 20,000 others turn it round."""
    q = torch.tensor([0.4, 0.3, 0.2, 0.09, 0.01])
    stream, generator = StreamingFrequency(5, rate=0.005), seeded(12)
    for _ in range(20_000):
        stream.observe(torch.multinomial(q, 5, replacement=True, generator=generator))
    assert float((stream.log_q(torch.arange(5)) - q.log()).abs().max()) < 0.15
    for _ in range(20_000):
        stream.observe(torch.multinomial(q.flip(0), 5, replacement=True, generator=generator))
    assert float((stream.log_q(torch.arange(5)) - q.flip(0).log()).abs().max()) < 0.2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Uniform(2**31 + 5, 4), "num_items is 2147483653; item ids are 32-bit"),
        (lambda: Uniform(1, 4), "num_items is 1"),
        (lambda: Uniform(10, 0), "num_negatives is 0"),
        (lambda: Uniform(10, 10, replacement=False), "10 without replacement but there are 10 items"),
        (lambda: ForcedPositives(10, 10), "10 distinct classes but there are 10 items"),
        (lambda: Popularity(torch.tensor([3, 0, 1]), 2), "1 of 3 items .the first is item 1 with count 0"),
        (lambda: Popularity(torch.ones(2, 2), 2), "counts have shape .2, 2."),
        (lambda: InBatch(3, torch.tensor([0.5, 0.5, 0.0]).log()), "q is zero for 1 of 3 items"),
        (lambda: InBatch(3, torch.tensor([0.5, 0.5]).log()), "log_q has shape .2,. .*pass .*.3,."),
        (lambda: InBatch(2, torch.tensor([0.5, 0.7]).log()), "sums to 1.2"),
        (lambda: QuadraticKernel(torch.ones(4, 2), 2, alpha=0), "alpha is 0"),
        (lambda: QuadraticKernel(torch.ones(4), 2), "the table has shape .4,."),
        (
            lambda: QuadraticKernel(torch.ones(4, 2), 2).given(torch.ones(1, 2, 3)),
            "hidden has shape .1, 2, 3.",
        ),
        (lambda: QuadraticKernel(torch.ones(4, 2), 2).update(torch.arange(2), torch.ones(3, 2)), ".3, 2."),
        (lambda: StreamingFrequency(5, rate=1.0), "rate is 1.0"),
        (lambda: StreamingFrequency(5).log_q(torch.tensor([0])), "no batch has been seen"),
        (lambda: StreamingFrequency(5).observe(torch.tensor([7])), "run from 7 to 7"),
        (lambda: Negatives(torch.zeros(3), torch.zeros(1, 1), torch.zeros(1, 1)), "shape .3,."),
        (
            lambda: Negatives(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(1, 1)),
            "log_q has shape .2, 4.",
        ),
        (
            lambda: Uniform(3, 2, exclude_targets=True).draw(torch.tensor([[0, 1, 2]]), seeded(0)),
            "leave 0 of 3 items",
        ),
        (lambda: ForcedPositives(9, 2).draw(torch.tensor([[0, 1, 2]]), seeded(0)), "3 distinct classes"),
        (
            lambda: Popularity(COUNTS, 2).draw(torch.tensor([[1]]), seeded(0), mask=torch.tensor([[False]])),
            "leaves no target",
        ),
        (lambda: Popularity(COUNTS, 2).draw(torch.tensor([1]), seeded(0)), "targets have shape .1,."),
        (
            lambda: Popularity(COUNTS, 2).draw(torch.tensor([[1]]), seeded(0), mask=torch.tensor([True])),
            "mask has shape .1,.",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(make, says):
    """Each message names what was seen, on one line."""
    with pytest.raises(ArgumentError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
