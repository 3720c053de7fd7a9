"""Masks, precision, row-sparse gradients, memory, and what is refused."""

import math

import pytest
import torch

from budgetrec.errors import ArgumentError
from budgetrec.objectives.binary import binary_cross_entropy
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.reduced import reduced_cross_entropy
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.objectives.scalable import scalable_cross_entropy
from budgetrec.objectives.specification import CORRECTIONS
from budgetrec.samplers import InBatch, Mixed, Negatives, Uniform

K = 50


def setup(seed: int = 0, num_groups: int = 3, size: int = 4, dim: int = 8, num_negatives: int = 6):
    """Return hidden, targets, table and uniform draws."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_groups, size, dim, generator=generator).requires_grad_()
    table = torch.randn(K, dim, generator=generator).requires_grad_()
    targets = torch.randint(K, (num_groups, size), generator=generator)
    return hidden, targets, table, Uniform(K, num_negatives).draw(targets, generator)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("loss", [sampled_softmax, binary_cross_entropy])
def test_row_sparse_gradients_are_the_dense_ones(loss, lean):
    """The table's gradient holds the rows of the step and nothing else."""
    hidden, targets, table, drawn = setup()
    dense = torch.autograd.grad(loss(hidden, targets, table, drawn, lean=lean), (hidden, table))
    loss(hidden, targets, table, drawn, lean=lean, sparse_grad=True).backward()
    assert table.grad.is_sparse
    touched = torch.cat([targets.flatten(), drawn.ids.flatten()]).unique()
    assert torch.equal(table.grad.coalesce().indices()[0], touched)
    torch.testing.assert_close(table.grad.to_dense(), dense[1])
    torch.testing.assert_close(hidden.grad, dense[0])


@pytest.mark.parametrize("lean", [False, True])
def test_the_table_may_be_a_function_of_ids(lean):
    """A model's item encoder works in the table's place; lean mode asks for distinct ids in one call."""
    hidden, targets, table, drawn = setup()
    asked = []

    def item_vectors(ids):
        asked.append(ids)
        return 2 * table[ids]

    ours = sampled_softmax(hidden, targets, item_vectors, drawn, lean=lean)
    wanted = sampled_softmax(hidden, targets, 2 * table, drawn)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (hidden, table)), torch.autograd.grad(wanted, (hidden, table)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    if lean:
        assert len(asked) == 1
        assert asked[0].unique().numel() == asked[0].numel()


@pytest.mark.parametrize("lean", [False, True])
def test_lean_scales_with_what_comes_after_it(lean):
    """Micro-batches weigh losses before backward, and a second backward over a kept graph gives the same."""
    hidden, targets, table, drawn = setup()
    once = torch.autograd.grad(sampled_softmax(hidden, targets, table, drawn, lean=lean), table)[0]
    loss = sampled_softmax(hidden, targets, table, drawn, lean=lean)
    (loss / 4).backward(retain_graph=True)
    (3 * loss / 4).backward()
    torch.testing.assert_close(table.grad, once)


def test_lean_computes_no_gradient_when_none_is_wanted():
    """Under no_grad, or with frozen inputs, only the value is computed."""
    hidden, targets, table, drawn = setup()
    wanted = sampled_softmax(hidden, targets, table, drawn)
    with torch.no_grad():
        torch.testing.assert_close(sampled_softmax(hidden, targets, table, drawn, lean=True), wanted.detach())
    frozen = sampled_softmax(hidden, targets, table.detach(), drawn, lean=True)
    ours, theirs = (torch.autograd.grad(loss, hidden)[0] for loss in (frozen, wanted))
    torch.testing.assert_close(ours, theirs)


LOSSES = {
    "sampled": lambda h, t, w, n, m, lean: sampled_softmax(h, t, w, n, m, lean=lean),
    "binary": lambda h, t, w, n, m, lean: binary_cross_entropy(h, t, w, n, m, calibration=0.5, lean=lean),
    "full": lambda h, t, w, n, m, lean: full_softmax(h, t, w, m, lean=lean),
    "scalable": lambda h, t, w, n, m, lean: scalable_cross_entropy(
        h,
        t,
        w,
        m,
        lean=lean,
        generator=torch.Generator().manual_seed(0),
        num_buckets=3,
        bucket_targets=4,
        bucket_items=9,
    ),
    "reduced": lambda h, t, w, n, m, lean: reduced_cross_entropy(
        h, t, w, m, lean=lean, generator=torch.Generator().manual_seed(0), num_chunks=4, num_rounds=2
    ),
}


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", list(LOSSES))
def test_a_masked_place_may_hold_anything(name, lean):
    """NaN states and padding ids under the mask reach neither the loss nor a gradient."""
    hidden, targets, table, drawn = setup()
    mask = torch.ones_like(targets, dtype=torch.bool)
    mask[:, :2] = False
    wanted = LOSSES[name](hidden, targets, table, drawn, mask, lean)
    spoilt = hidden.detach().masked_fill(~mask[..., None], math.nan).requires_grad_()
    ours = LOSSES[name](spoilt, targets.masked_fill(~mask, -100), table, drawn, mask, lean)
    torch.testing.assert_close(ours, wanted)
    of_spoilt, of_table = torch.autograd.grad(ours, (spoilt, table))
    of_hidden, of_same = torch.autograd.grad(wanted, (hidden, table))
    assert float(of_spoilt[~mask].abs().max()) == 0.0
    torch.testing.assert_close(of_spoilt, of_hidden)
    torch.testing.assert_close(of_table, of_same)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", list(LOSSES))
def test_infinite_and_undefined_logits_are_refused(name, lean):
    """NaN, +inf and -inf in hidden, and in the vectors that a step meets: one sentence with the shapes."""
    hidden, targets, table, drawn = setup()
    for value in (math.nan, math.inf, -math.inf):
        wrong = hidden.detach().clone()
        wrong[0, 1, 2] = value
        with pytest.raises(ArgumentError, match="logits are NaN or infinite") as error:
            LOSSES[name](wrong, targets, table, drawn, None, lean)
        assert "1 of the numbers in hidden of shape (3, 4, 8)" in str(error.value)
        spoilt = table.detach().clone()
        spoilt[:, 3] = value
        with pytest.raises(ArgumentError, match=r"50 of those in the table of shape \(50, 8\)"):
            LOSSES[name](hidden, targets, spoilt, drawn, None, lean)


def test_a_negative_of_minus_infinity_is_refused():
    """Its logit vanishes from the sum, and its gradient would be NaN."""
    hidden, targets, table, drawn = setup()
    hidden, spoilt = hidden.detach().abs(), table.detach().clone()
    spoilt[drawn.ids[0, 0]] = -math.inf
    targets[targets == drawn.ids[0, 0]] = (drawn.ids[0, 0] + 1) % K
    for lean in (False, True):
        with pytest.raises(ArgumentError, match="logits are NaN or infinite"):
            sampled_softmax(hidden, targets, spoilt, drawn, lean=lean)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # said by the switch below
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", ["sampled", "binary", "full"])
def test_bfloat16_autocast_keeps_the_log_sum_exp_in_float32(name, lean):
    """Products are in bfloat16, sums are not: the loss is float32 and equals that of rounded inputs."""
    hidden, targets, table, drawn = setup(num_negatives=40)
    # oneDNN's bfloat16 kernels die on virtual machines that announce AMX and do not grant it.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        ours = LOSSES[name](hidden, targets, table, drawn, None, lean)
    assert ours.dtype == torch.float32
    rounded = [x.detach().bfloat16().float() for x in (hidden, table)]
    wanted = LOSSES[name](rounded[0], targets, rounded[1], drawn, None, lean)
    # Logits of size 5 are rounded to 2^-6 each; a sum of exponentials in bfloat16 would be off by far more.
    assert ours.item() == pytest.approx(wanted.item(), abs=0.01)
    with torch.backends.mkldnn.flags(enabled=False):
        gradients = torch.autograd.grad(ours, (hidden, table))
    for gradient in gradients:
        assert gradient.dtype == torch.float32
        assert bool(gradient.isfinite().all())


def test_lean_memory_does_not_grow_with_the_number_of_logits():
    """Bytes allocated by torch at one time, forward and backward: far below one copy of the logits."""
    hidden, targets, table, drawn = setup(num_groups=16, size=64, dim=8, num_negatives=4096)
    logits = 16 * 64 * 4096 * 4
    plain, lean = (_peak_bytes(hidden, targets, table, drawn, lean=lean) for lean in (False, True))
    assert plain > 2 * logits
    assert lean < 2 * 4 * 2**20 + logits
    assert lean < plain / 3


def _peak_bytes(hidden, targets, table, drawn, *, lean):
    with torch.profiler.profile(profile_memory=True) as profile:
        sampled_softmax(hidden, targets, table, drawn, lean=lean).backward()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"targets": torch.full((3, 4), K)}, r"targets of shape \(3, 4\) run from 50 to 50 but there are 50"),
        (
            {"targets": torch.zeros(3, 5, dtype=torch.int64)},
            r"hidden has shape \(3, 4, 8\) and targets \(3, 5\)",
        ),
        ({"table": torch.zeros(K, 7)}, r"table has shape \(50, 7\) and hidden \(3, 4, 8\)"),
        ({"mask": torch.zeros(3, 4, dtype=torch.bool)}, r"mask of shape \(3, 4\) leaves no target"),
        ({"mask": torch.ones(3, 4)}, r"mask has shape \(3, 4\) and type torch.float32"),
        ({"correction": "magic"}, "correction is 'magic'; pass one of 'none', 'theorem'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        (
            {
                "negatives": Negatives(
                    torch.zeros(2, 3, dtype=torch.int64), torch.zeros(1, 1), torch.zeros(1, 1)
                )
            },
            r"negatives of shape \(2, 3\) .* do not fit targets of shape \(3, 4\)",
        ),
        (
            {"negatives": Negatives(torch.full((3, 2), K), torch.zeros(1, 1), torch.zeros(1, 1))},
            r"negatives of shape \(3, 2\) run from 50 to 50 but the table has 50",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_shapes_seen(change, says):
    """One sentence each, on one line."""
    hidden, targets, table, drawn = setup()
    call = {"hidden": hidden, "targets": targets, "table": table, "negatives": drawn, **change}
    with pytest.raises(ArgumentError, match=says) as error:
        sampled_softmax(**call)
    assert "\n" not in str(error.value)


def test_sizes_that_make_no_sense_are_refused():
    """gBCE, SCE and RECE name what they were given."""
    hidden, targets, table, drawn = setup()
    with pytest.raises(ArgumentError, match=r"calibration is 1\.5"):
        binary_cross_entropy(hidden, targets, table, drawn, calibration=1.5)
    with pytest.raises(ArgumentError, match="needs the size of the catalogue"):
        binary_cross_entropy(hidden, targets, lambda ids: table[ids], drawn, calibration=0.5)
    generator = torch.Generator()
    with pytest.raises(ArgumentError, match=r"bucket_items 51 for a table of shape \(50, 8\)"):
        scalable_cross_entropy(
            hidden, targets, table, generator=generator, num_buckets=1, bucket_targets=1, bucket_items=51
        )
    with pytest.raises(ArgumentError, match="num_chunks is 0"):
        reduced_cross_entropy(hidden, targets, table, generator=generator, num_chunks=0)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("correction", ["theorem", "logq-negatives"])
def test_empty_slots_are_no_draws(correction, lean):
    """20 targets, k = 256, zero logits: log K = 6.91 to 0.002, in-batch and mixed (it was 4.32 in-batch)."""
    log_q, targets = torch.full((1000,), 1 / 1000).log(), torch.arange(20)[None]
    hidden, table = torch.zeros(1, 20, 4), torch.zeros(1000, 4)
    for sampler in (
        InBatch(1000, log_q, 256),
        InBatch(1000, log_q, 8),
        InBatch(1000, log_q),
        Mixed(1000, log_q, num_in_batch=200, num_uniform=56),
    ):
        losses = [
            float(
                sampled_softmax(
                    hidden,
                    targets,
                    table,
                    sampler.draw(targets, torch.Generator().manual_seed(seed)),
                    correction=correction,
                    lean=lean,
                )
            )
            for seed in range(40)
        ]
        assert sum(losses) / 40 == pytest.approx(math.log(1000), abs=0.002)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_empty_slots_change_no_correction(correction):
    """Ten more slots that hold nothing leave value and gradients of every correction as they were."""
    hidden, targets, table, drawn = setup()
    log_q = torch.log_softmax(torch.arange(K) / K, 0)
    wide = torch.nn.functional.pad(drawn.ids, (0, 10))
    valid = (torch.arange(16) < 6).expand(3, -1)
    plain = Negatives(drawn.ids, log_q[drawn.ids], log_q[targets])
    padded = Negatives(wide, log_q[wide], log_q[targets], valid)
    results = []
    for negatives in (plain, padded):
        loss = sampled_softmax(hidden, targets, table, negatives, correction=correction)
        results.append((loss.detach(), *torch.autograd.grad(loss, (hidden, table))))
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_a_target_alone_in_its_batch_learns_nothing_and_stays_finite():
    """One target and only itself to meet: loss and gradient are 0 with every correction."""
    log_q, targets = torch.full((K,), 1 / K).log(), torch.tensor([[3]])
    hidden, table = torch.ones(1, 1, 4, requires_grad=True), torch.ones(K, 4, requires_grad=True)
    drawn = InBatch(K, log_q, 8).draw(targets, torch.Generator())
    for correction in CORRECTIONS:
        loss = sampled_softmax(hidden, targets, table, drawn, correction=correction)
        assert float(loss.detach()) == 0
        assert all(bool((grad == 0).all()) for grad in torch.autograd.grad(loss, (hidden, table)))
