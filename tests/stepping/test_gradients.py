"""A step in parts is the step as a whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.data.batches import Batch
from budgetrec.errors import ArgumentError
from budgetrec.models import Bert4Rec, SASRec
from budgetrec.objectives.modules import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.samplers import InBatch, Popularity
from budgetrec.stepping.gradients import (
    CPU_POSITIONS,
    accumulate_gradients,
    clip_gradients,
    cut,
    cut_for_cache,
    gather_in_place,
)

NUM_ITEMS = 40


def batch(num_sequences=12, width=9, seed=0):
    """Draw a batch of training sequences."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (num_sequences, 1), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths
    ids, targets = (torch.randint(NUM_ITEMS, mask.shape, generator=generator) * mask for _ in range(2))
    return Batch(ids, targets, mask)


def popularity():
    """Sample by made-up counts."""
    counts = torch.arange(1, NUM_ITEMS + 1)
    return Popularity(counts, 6)


OBJECTIVES = {
    "shared": lambda: SampledSoftmax(NUM_ITEMS, 6, "batch"),
    "per sequence": lambda: SampledSoftmax(NUM_ITEMS, 6, "sequence"),
    "per target": lambda: SampledSoftmax(NUM_ITEMS, 6, "target"),
    "lean": lambda: SampledSoftmax(NUM_ITEMS, 6, "sequence", lean=True),
    "popular": lambda: SampledSoftmax(NUM_ITEMS, 6, "sequence", sampler=popularity()),
    "popular, shared": lambda: SampledSoftmax(NUM_ITEMS, 6, "batch", sampler=popularity()),
    "in-batch": lambda: SampledSoftmax(
        NUM_ITEMS, 6, "batch", "logq", sampler=InBatch(NUM_ITEMS, popularity().log_q, 6)
    ),
    "gbce": lambda: BinaryCrossEntropy(NUM_ITEMS, 6, "target", calibration=0.5),
    "full": FullSoftmax,
}


def gradients(objective, micro_batches, *, model_kind=SASRec, last_only=False, sparse=False, in_place=True):
    """Return the sums of one step and the gradient of every parameter."""
    model = model_kind(
        NUM_ITEMS, dim=8, max_length=10, dropout=0.0, generator=torch.Generator().manual_seed(1)
    ).double()
    tables = gather_in_place(model, sparse=sparse) if in_place else []
    for table in tables:
        table.begin()
    sums = accumulate_gradients(
        model,
        objective,
        batch(),
        micro_batches=micro_batches,
        last_only=last_only,
        generator=torch.Generator().manual_seed(2),
        backward=lambda loss: loss.backward(),
    )
    for table in tables:
        table.finish()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return sums, {name: grad.to_dense() for name, grad in found.items() if grad is not None}


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("model_kind", [SASRec, Bert4Rec])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_four_parts_give_the_gradient_of_one(name, model_kind, last_only):
    """Loss and every gradient agree to 1e-6 (here to 1e-10, in float64) for 1, 4 and 12 parts."""
    settings = {"model_kind": model_kind, "last_only": last_only}
    whole, wanted = gradients(OBJECTIVES[name](), 1, **settings)
    for micro_batches in (4, 12):
        sums, found = gradients(OBJECTIVES[name](), micro_batches, **settings)
        assert sums.num_parts > 1
        assert sums.loss == pytest.approx(whole.loss, abs=1e-6)
        assert (sums.num_targets, sums.num_logits) == (whole.num_targets, whole.num_logits)
        assert found.keys() == wanted.keys()
        for parameter, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[parameter], atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_gathering_in_place_gives_torchs_gradients(sparse):
    """The tables' own sums are what torch's embedding would have given."""
    if sparse:
        _, found = gradients(OBJECTIVES["per sequence"](), 3, sparse=True)
    else:
        _, found = gradients(OBJECTIVES["full"](), 3)
    objective = OBJECTIVES["per sequence" if sparse else "full"]()
    _, wanted = gradients(objective, 1, in_place=False)
    torch.testing.assert_close(found["items.weight"], wanted["items.weight"], atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize("objective", [ScalableCrossEntropy(4, 8, 8), ReducedCrossEntropy(4)])
def test_objectives_over_the_whole_batch_cannot_be_cut(objective):
    """SCE and RECE compare targets of the whole batch: they run in one part and say so when cut."""
    sums, _ = gradients(objective, None)
    assert sums.num_parts == 1
    with pytest.raises(ArgumentError, match="cannot be cut"):
        gradients(objective, 2)


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=60).map(lambda x: sorted(x, reverse=True)),
    st.integers(1, 70),
)
def test_parts_cover_every_sequence_once(lengths, num_parts):
    """Parts are runs without gaps, at most as many as asked, and none holds much more than its share."""
    parts = cut(torch.tensor(lengths), num_parts)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(lengths)))
    assert len(parts) <= num_parts
    share = sum(lengths) / num_parts
    for part in parts:
        assert sum(lengths[part]) <= share + 2 * max(lengths)


def test_padding_is_hardly_computed():
    """Of a batch that is nearly half padding, parts that fit the cache compute a tenth of it."""
    lengths = torch.randint(1, 200, (128,), generator=torch.Generator().manual_seed(0))
    ordered = lengths.sort(descending=True).values
    parts = cut_for_cache(ordered)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(128))
    computed = sum(len(ordered[part]) * int(ordered[part][0]) for part in parts)
    padding = 128 * int(lengths.max()) - int(lengths.sum())
    assert padding > 0.45 * 128 * int(lengths.max())
    assert computed - int(lengths.sum()) < 0.1 * padding
    assert max(len(ordered[part]) * int(ordered[part][0]) for part in parts) <= CPU_POSITIONS


def test_clipping_counts_sparse_rows():
    """A gradient of norm 5, part of it row-sparse, is shortened to norm 1."""
    dense, sparse = (torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(2))
    dense.grad = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    sparse.grad = torch.sparse_coo_tensor(
        torch.tensor([[2]]), torch.tensor([[0.0, 4.0]]), (3, 2), is_coalesced=True, check_invariants=False
    )
    assert clip_gradients([dense, sparse], 1.0) == pytest.approx(5)
    assert float(dense.grad[0, 0]) == pytest.approx(0.6)
    assert float(sparse.grad.to_dense()[2, 1]) == pytest.approx(0.8)


def test_clipping_adds_up_a_row_that_is_listed_twice():
    """Row 2 has 6 and -2, which is 4: with a dense 3 the norm is 5 and not 7, and 1 once it is clipped."""
    dense, sparse = (torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(2))
    dense.grad = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    rows, values = torch.tensor([[2, 2]]), torch.tensor([[0.0, 6.0], [0.0, -2.0]])
    sparse.grad = torch.sparse_coo_tensor(rows, values, (3, 2), check_invariants=False)
    assert clip_gradients([dense, sparse], 1.0) == pytest.approx(5)
    clipped = torch.cat([dense.grad, sparse.grad.to_dense()])
    assert float(clipped.norm()) == pytest.approx(1)
    assert clipped[5, 1] == pytest.approx(0.8)
