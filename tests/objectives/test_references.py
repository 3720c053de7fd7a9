"""Every objective equals its few-line reference in value and gradient, plain and lean."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.objectives import reduced, scalable
from budgetrec.objectives.binary import binary_cross_entropy
from budgetrec.objectives.full_softmax import full_softmax, full_softmax_in_tiles
from budgetrec.objectives.reduced import choose_rounds, reduced_cross_entropy
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.objectives.scalable import (
    choose_buckets,
    scalable_cross_entropy,
)
from budgetrec.objectives.specification import CORRECTIONS
from budgetrec.samplers import Negatives
from tests.objectives.references import (
    binary_cross_entropy_reference,
    full_softmax_reference,
    reduced_cross_entropy_reference,
    sampled_softmax_reference,
    scalable_cross_entropy_reference,
)

from .conftest import Problem, assert_same, problems

BLOCK = 200  # bytes


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of a few numbers, so that small problems have many of them."""
    for module in (scalable, reduced):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("correction", list(CORRECTIONS))
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_sampled_softmax_is_its_reference(problem: Problem, correction: str, lean: bool):
    """All five corrections, over masks, repeats, hits and empty slots."""
    ours = sampled_softmax(*problem.parts, correction=correction, lean=lean, block_bytes=BLOCK)
    wanted = sampled_softmax_reference(*problem.parts, correction=correction)
    assert_same(ours, wanted, problem.hidden, problem.table)


@pytest.mark.parametrize("lean", [False, True])
@settings(max_examples=30, deadline=None)
@given(problem=problems(), temperature=st.floats(0.3, 3), cosine=st.booleans())
def test_temperature_and_cosine_are_the_references(problem, temperature, cosine, lean):
    """Scores are divided by the temperature, of unit vectors when asked."""
    options = {"temperature": temperature, "cosine": cosine}
    ours = sampled_softmax(*problem.parts, lean=lean, block_bytes=BLOCK, **options)
    wanted = sampled_softmax_reference(*problem.parts, **options)
    assert_same(ours, wanted, problem.hidden, problem.table)


@pytest.mark.parametrize("lean", [False, True])
@settings(max_examples=40, deadline=None)
@given(problem=problems(), calibration=st.sampled_from([0.0, 0.3, 0.75, 1.0]))
def test_binary_cross_entropy_is_its_reference(problem: Problem, calibration: float, lean: bool):
    """BCE and gBCE with one or many negatives."""
    ours = binary_cross_entropy(*problem.parts, calibration=calibration, lean=lean, block_bytes=BLOCK)
    wanted = binary_cross_entropy_reference(*problem.parts, calibration=calibration)
    assert_same(ours, wanted, problem.hidden, problem.table)


@pytest.mark.parametrize("lean", [False, True])
@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_full_softmax_is_its_reference(problem: Problem, lean: bool):
    """Materialised, and in torch's blocks."""
    hidden, targets, table, _, mask = problem.parts
    ours = full_softmax(hidden, targets, table, mask, lean=lean)
    assert_same(ours, full_softmax_reference(hidden, targets, table, mask), hidden, table)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), tile_items=st.integers(1, 8))
def test_tiles_are_the_full_softmax(problem: Problem, tile_items: int):
    """Our own blocks over items, whatever their size."""
    hidden, targets, table, _, mask = problem.parts
    ours = full_softmax_in_tiles(hidden[mask], table, targets[mask], tile_items=tile_items)
    assert_same(ours, full_softmax_reference(hidden, targets, table, mask), hidden, table)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("correction", ["theorem", "logq-negatives", "refined-logq", "none"])
@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_drawing_every_class_once_is_the_full_softmax(problem: Problem, correction: str, lean: bool):
    """With N = all classes, uniform q and the own class masked, nothing is estimated any more."""
    hidden, targets, table, _, mask = problem.parts
    num_items = table.shape[0]
    ids = torch.arange(num_items).expand(targets.shape[0], -1)
    log_q = torch.full((1, 1), 1 / num_items, dtype=torch.float64).log()
    ours = sampled_softmax(
        hidden,
        targets,
        table,
        Negatives(ids, log_q, log_q),
        mask,
        correction=correction,
        lean=lean,
        block_bytes=BLOCK,
    )
    wanted = full_softmax_reference(hidden, targets, table, mask)
    if correction == "refined-logq":  # its gradient estimates the full one; its value is no likelihood
        ours = ours - ours.detach() + wanted.detach()
    assert_same(ours, wanted, hidden, table)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("correction", [*CORRECTIONS, "gbce"])
def test_gradcheck(correction: str, lean: bool):
    """Numerical differentiation agrees, with a target whose negatives are all hits among them."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    table = torch.randn(5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 4, 0], [2, 2, 3]])
    ids = torch.tensor([[1, 3, 0, 0], [2, 2, 2, 2]])
    log_q = torch.log_softmax(torch.randn(5, generator=generator, dtype=torch.float64), 0)
    negatives = Negatives(ids, log_q[ids], log_q[targets])
    loss = partial(binary_cross_entropy, calibration=0.6)
    if correction != "gbce":
        loss = partial(sampled_softmax, correction=correction)
    if correction == "refined-logq":  # a stopped gradient cannot be differenced: use the reference
        ours = loss(hidden, targets, table, negatives, lean=lean, block_bytes=BLOCK)
        mask = torch.ones_like(targets, dtype=torch.bool)
        wanted = sampled_softmax_reference(hidden, targets, table, negatives, mask, correction=correction)
        assert_same(ours, wanted, hidden, table)
        return
    assert torch.autograd.gradcheck(
        lambda h, w: 3 * loss(h, targets, w, negatives, lean=lean, block_bytes=BLOCK), (hidden, table)
    )


@pytest.mark.parametrize("lean", [False, True])
@settings(max_examples=30, deadline=None)
@given(
    problem=problems(),
    num_buckets=st.integers(1, 4),
    bucket_targets=st.integers(1, 6),
    mix=st.booleans(),
    seed=st.integers(0, 99),
)
def test_scalable_cross_entropy_is_its_reference(problem, num_buckets, bucket_targets, mix, seed, lean):
    """SCE with the same buckets, one state at a time."""
    hidden, targets, table, _, mask = problem.parts
    options = {
        "num_buckets": num_buckets,
        "bucket_targets": bucket_targets,
        "bucket_items": min(3, len(table)),
        "mix": mix,
    }
    generator = torch.Generator().manual_seed(seed)
    ours = scalable_cross_entropy(hidden, targets, table, mask, generator=generator, lean=lean, **options)
    states, generator = hidden[mask], torch.Generator().manual_seed(seed)
    rows, items = choose_buckets(states, table, generator=generator, **options)
    wanted = scalable_cross_entropy_reference(states, targets[mask], table, rows, items)
    assert_same(ours, wanted, hidden, table)


@pytest.mark.parametrize("lean", [False, True])
@settings(max_examples=30, deadline=None)
@given(
    problem=problems(),
    num_chunks=st.integers(1, 4),
    num_neighbors=st.integers(0, 2),
    num_rounds=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_reduced_cross_entropy_is_its_reference(problem, num_chunks, num_neighbors, num_rounds, seed, lean):
    """RECE equals cross-entropy over the set of items met: an item met in several rounds counts once."""
    hidden, targets, table, _, mask = problem.parts
    num_chunks = min(num_chunks, len(table))
    options = {"num_chunks": num_chunks, "num_neighbors": num_neighbors, "num_rounds": num_rounds}
    generator = torch.Generator().manual_seed(seed)
    ours = reduced_cross_entropy(hidden, targets, table, mask, generator=generator, lean=lean, **options)
    states, generator = hidden[mask], torch.Generator().manual_seed(seed)
    rounds = choose_rounds(states, table, generator=generator, num_anchors=num_chunks, **options)
    wanted = reduced_cross_entropy_reference(states, targets[mask], table, rounds)
    assert_same(ours, wanted, hidden, table)


def test_reduced_cross_entropy_of_one_chunk_is_the_full_softmax():
    """When every state meets every item, in every round, nothing is left out or counted twice."""
    generator = torch.Generator().manual_seed(1)
    hidden, table = torch.randn(2, 3, 4, generator=generator), torch.randn(9, 4, generator=generator)
    targets = torch.randint(9, (2, 3), generator=generator)
    ours = reduced_cross_entropy(hidden, targets, table, generator=generator, num_chunks=1, num_rounds=3)
    torch.testing.assert_close(ours, full_softmax(hidden, targets, table))
