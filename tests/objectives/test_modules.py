"""The modules that people put behind their own models."""

import subprocess
import sys

import pytest
import torch

import budgetrec
from budgetrec.errors import ArgumentError
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.modules import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.samplers import InBatch, Popularity, QuadraticKernel, Uniform

N, LENGTH, DIM, K = 4, 5, 8, 60


def batch(seed: int = 0):
    """Return hidden (n, L, d), targets and mask (n, L), and a table."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, LENGTH, DIM, generator=generator).requires_grad_()
    targets = torch.randint(K, (N, LENGTH), generator=generator)
    mask = torch.arange(LENGTH) >= torch.arange(N)[:, None]  # padded on the left
    table = torch.randn(K, DIM, generator=generator).requires_grad_()
    return hidden, targets, mask, table


def test_import_does_not_load_torch():
    """`import budgetrec` stays cheap; the public names load what they need."""
    code = "import sys, budgetrec; assert 'torch' not in sys.modules; budgetrec.SampledSoftmax"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"SampledSoftmax", "samplers"} <= set(dir(budgetrec))
    assert budgetrec.SampledSoftmax is SampledSoftmax
    with pytest.raises(AttributeError, match="no attribute 'sampled_softmax'"):
        _ = budgetrec.sampled_softmax


@pytest.mark.parametrize("sharing", ["batch", "sequence", "target"])
@pytest.mark.parametrize("correction", ["none", "theorem", "logq", "refined-logq"])
def test_every_sharing_and_correction_trains_a_model(sharing, correction):
    """Twenty steps lower the exact loss, and the generator alone decides the draws."""
    hidden, targets, mask, table = batch()
    objective = SampledSoftmax(K, 16, sharing=sharing, correction=correction)
    first, second = (
        objective(hidden, targets, table, mask=mask, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(first, second)
    optimizer = torch.optim.Adam([hidden, table], lr=0.05)
    before = full_softmax(hidden, targets, table, mask).item()
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        optimizer.zero_grad()
        objective(hidden, targets, table, mask=mask, generator=generator).backward()
        optimizer.step()
    assert full_softmax(hidden, targets, table, mask).item() < before - 1


@pytest.mark.parametrize("sharing", ["batch", "sequence", "target"])
def test_the_corrected_loss_estimates_the_full_one(sharing):
    """The mean over many draws is close to the exact loss, whoever shares them."""
    hidden, targets, mask, table = batch()
    hidden = (
        hidden / 4
    )  # logits of size one: the estimate is a ratio, biased when few classes carry all of it
    objective, generator = SampledSoftmax(K, 40, sharing=sharing, lean=True), torch.Generator().manual_seed(3)
    with torch.no_grad():
        losses = [objective(hidden, targets, table, mask=mask, generator=generator) for _ in range(300)]
        wanted = full_softmax(hidden, targets, table, mask)
    assert float(torch.stack(losses).mean()) == pytest.approx(float(wanted), rel=0.02)


def test_any_sampler_fits_and_adaptive_ones_see_the_hidden_states():
    """Popularity, in-batch and kernel draws go through the same door."""
    hidden, targets, mask, table = batch()
    counts = torch.arange(1, K + 1)
    for sampler in (
        Popularity(counts, 30),
        InBatch(K, (counts / counts.sum()).log()),
        QuadraticKernel(table, 30, alpha=1.0),
    ):
        for sharing in ("batch", "sequence", "target"):
            objective = SampledSoftmax(K, 30, sharing=sharing, sampler=sampler)
            loss = objective(hidden, targets, table, mask=mask, generator=torch.Generator().manual_seed(4))
            assert bool(torch.autograd.grad(loss, table)[0].isfinite().all())
            assert type(sampler).__name__ in repr(objective)


def test_kernel_draws_estimate_the_loss_better_than_uniform_ones():
    """With peaked logits, the adaptive proposal has less error at the same k, and no more bias."""
    hidden, targets, mask, table = batch()
    hidden = 2 * hidden.detach()
    wanted = full_softmax(hidden, targets, table, mask).item()
    errors = {}
    for name, sampler in (("uniform", None), ("kernel", QuadraticKernel(table, 8, alpha=100.0))):
        objective = SampledSoftmax(K, 8, sharing="target", sampler=sampler)
        generator = torch.Generator().manual_seed(5)
        losses = [objective(hidden, targets, table, mask=mask, generator=generator) for _ in range(200)]
        errors[name] = (torch.stack(losses) - wanted).square().mean().item()
    assert errors["kernel"] < errors["uniform"] / 2


def test_siblings_share_the_call():
    """BCE, gBCE, full softmax, SCE and RECE are called in the same way."""
    hidden, targets, mask, table = batch()
    for objective in (
        BinaryCrossEntropy(K),
        BinaryCrossEntropy(K, 16, calibration=0.75, lean=True),
        FullSoftmax(),
        ScalableCrossEntropy(4, 6, 10, mix=True),
        ReducedCrossEntropy(4, num_rounds=2, lean=True),
    ):
        loss = objective(hidden, targets, table, mask=mask, generator=torch.Generator().manual_seed(6))
        for gradient in torch.autograd.grad(loss, (hidden, table)):
            assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SampledSoftmax(K, 8, sharing="user"), "sharing is 'user'; pass one of 'batch', 'sequence'"),
        (lambda: SampledSoftmax(K, 8, correction="log"), "correction is 'log'"),
        (lambda: SampledSoftmax(2**31, 8), "num_items is 2147483648"),
        (lambda: SampledSoftmax(K, 0), "num_negatives is 0"),
        (
            lambda: SampledSoftmax(K, 8, sampler=Uniform(K, 64)),
            "the sampler draws 64 negatives and the objective asks for 8",
        ),
        (
            lambda: SampledSoftmax(K, 8, sampler=Uniform(K + 1, 8)),
            "made for 61 items and the objective for 60",
        ),
    ],
)
def test_wrong_words_and_sizes_are_refused_at_once(make, says):
    """Not at the first step."""
    with pytest.raises(ArgumentError, match=says):
        make()


def test_batches_that_do_not_fit_are_refused_with_their_shapes():
    """Hidden and targets, the mask, and the table."""
    hidden, targets, mask, table = batch()
    objective, generator = SampledSoftmax(K, 8), torch.Generator()
    with pytest.raises(ArgumentError, match=r"hidden has shape \(4, 5, 8\) and targets \(3, 5\)"):
        objective(hidden, targets[:3], table, generator=generator)
    with pytest.raises(ArgumentError, match=r"mask has shape \(3, 5\) for targets of shape \(4, 5\)"):
        objective(hidden, targets, table, mask=mask[:3], generator=generator)
    with pytest.raises(ArgumentError, match=r"table has shape \(59, 8\) but the objective was made for 60"):
        objective(hidden, targets, table[1:], generator=generator)
    for sharing in ("batch", "sequence", "target"):
        with pytest.raises(ArgumentError, match="no target"):
            SampledSoftmax(K, 8, sharing=sharing)(
                hidden, targets, table, mask=torch.zeros_like(mask), generator=generator
            )


@pytest.mark.parametrize(
    "build",
    [
        FullSoftmax,
        lambda **named: ScalableCrossEntropy(4, 6, 20, **named),
        lambda **named: ReducedCrossEntropy(4, **named),
    ],
    ids=["full", "sce", "rece"],
)
def test_a_whole_table_may_be_a_function_of_ids(build):
    """With `num_items` the loss is that of the table itself, to the bit; without, a sentence asks for it."""
    hidden, targets, mask, table = batch()
    ways = (build(), table), (build(num_items=K), lambda ids: table[ids])
    losses = [
        objective(hidden, targets, given, mask=mask, generator=torch.Generator().manual_seed(0))
        for objective, given in ways
    ]
    assert torch.equal(*losses)
    with pytest.raises(ArgumentError, match="scores every item; pass it num_items"):
        build()(hidden, targets, lambda ids: table[ids], mask=mask, generator=torch.Generator())
