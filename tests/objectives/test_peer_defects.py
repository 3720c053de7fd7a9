"""One test for each defect found in released code of the field, showing that ours does not have it.

Draw-side defects (log-uniform lists cut to the lowest ids, unigram q for mixed draws, the 2^24 limit of
multinomial) are in tests/samplers/test_samplers.py. A training step that runs the forward pass twice and
holds both logit tensors cannot happen in a function of hidden states: nothing here calls a model, and
`test_the_loss_is_one_pass` counts the products.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from budgetrec.objectives.binary import binary_cross_entropy
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.reduced import choose_rounds, reduced_cross_entropy
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.objectives.scalable import scalable_cross_entropy
from budgetrec.samplers import Negatives, Uniform


def uniform_over(num_items: int, ids: Tensor) -> Negatives:
    """Return draws that claim to be uniform."""
    log_q = torch.full((1, 1), -math.log(num_items))
    return Negatives(ids, log_q, log_q)


def problem(seed: int = 0, num_items: int = 20, size: int = 6, dim: int = 4):
    """Return hidden (1, m, d), targets (1, m) and a table."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, size, dim, generator=generator)
    table = torch.randn(num_items, dim, generator=generator)
    return hidden, torch.randint(num_items, (1, size), generator=generator), table


@pytest.mark.parametrize("lean", [False, True])
def test_a_hit_is_left_out_and_not_counted_as_logit_zero(lean):
    """CCE-: hits enter the forward sum as e^0. Ours: a hit changes nothing but the count."""
    hidden, _, table = problem(size=1)
    targets = torch.tensor([[3]])
    with_hit = sampled_softmax(hidden, targets, table, uniform_over(20, torch.tensor([[5, 3, 8]])), lean=lean)
    without = sampled_softmax(hidden, targets, table, uniform_over(20, torch.tensor([[5, 8]])), lean=lean)
    torch.testing.assert_close(with_hit, without)
    positive, others = hidden[0, 0] @ table[3], table[[5, 8]] @ hidden[0, 0]
    as_zero = torch.logaddexp(positive, torch.cat([others, torch.zeros(1)]).logsumexp(0) + math.log(19 / 3))
    assert abs(float(with_hit - (as_zero - positive))) > 0.01


@pytest.mark.parametrize("lean", [False, True])
def test_sampled_losses_do_not_push_the_own_positive_down(lean):
    """RecTools and gBCE of several peers keep accidental hits as negatives. Ours: only hits, no push."""
    hidden, _, table = problem(size=1)
    table.requires_grad_()
    only_hits = uniform_over(20, torch.tensor([[3, 3, 3]]))
    loss = sampled_softmax(hidden, torch.tensor([[3]]), table, only_hits, lean=lean)
    assert loss.item() == 0.0
    assert float(torch.autograd.grad(loss, table)[0].abs().max()) == 0.0
    loss = binary_cross_entropy(hidden, torch.tensor([[3]]), table, only_hits, lean=lean)
    torch.testing.assert_close(loss, -torch.nn.functional.logsigmoid(hidden[0, 0] @ table[3]))


def test_scalable_cross_entropy_teaches_the_output_embeddings():
    """SCE in two libraries scores against a detached copy; ours gives the items of the buckets a gradient."""
    hidden, targets, table = problem()
    table.requires_grad_()
    loss = scalable_cross_entropy(
        hidden,
        targets,
        table,
        generator=torch.Generator().manual_seed(0),
        num_buckets=2,
        bucket_targets=3,
        bucket_items=5,
    )
    loss.backward()
    moved = (table.grad.abs().sum(1) > 0).sum()
    assert int(moved) > targets.unique().numel()


def test_logq_corrects_the_positive_too():
    """The 'old' script leaves the positive's column as it is; with the true logQ a constant in q cancels."""
    hidden, targets, table = problem()
    ids = torch.arange(20)[None]
    log_q = torch.log_softmax(torch.randn(20, generator=torch.Generator().manual_seed(1)), 0)
    drawn = Negatives(ids, log_q[ids], log_q[targets])
    shifted = Negatives(ids, log_q[ids] - 5, log_q[targets] - 5)
    ours = [sampled_softmax(hidden, targets, table, some, correction="logq") for some in (drawn, shifted)]
    torch.testing.assert_close(ours[0], ours[1])
    scores = hidden[0] @ table.T - log_q
    torch.testing.assert_close(ours[0], torch.nn.functional.cross_entropy(scores, targets[0]))


def test_refined_logq_takes_the_q_of_the_draws():
    """The released scripts mix uniform draws in and keep the unigram q; ours reads the q of the draws."""
    hidden, targets, table = problem()
    ids = torch.tensor([[1, 5, 9, 12]])
    unigram = torch.log_softmax(torch.randn(20, generator=torch.Generator().manual_seed(2)), 0)
    mixture = torch.logaddexp(unigram, torch.tensor(-math.log(20.0))) - math.log(2)
    losses = [
        sampled_softmax(hidden, targets, table, Negatives(ids, q[ids], q[targets]), correction="refined-logq")
        for q in (unigram, mixture)
    ]
    assert abs(float(losses[0] - losses[1])) > 1e-3


@pytest.mark.parametrize("logit", [-60.0, 60.0, 300.0])
def test_gbce_is_finite_in_float32_where_the_transform_overflows(logit):
    """GSASRec turns probabilities back into logits in float64; at these logits that is infinite."""
    hidden = torch.tensor([[[logit]]], requires_grad=True)
    drawn = uniform_over(2, torch.tensor([[1]]))
    loss = binary_cross_entropy(hidden, torch.tensor([[0]]), torch.ones(2, 1), drawn, calibration=0.75)
    power = 1 - 0.75 * (1 - 1 / 1)
    wanted = (power * max(0.0, -logit) + max(0.0, logit)) / 2
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    assert bool(torch.autograd.grad(loss, hidden)[0].isfinite().all())
    probability = torch.sigmoid(torch.tensor(abs(logit), dtype=torch.float64))
    transformed = torch.log(1 / (probability.pow(-0.5) - 1))
    assert bool(transformed.isinf())


def test_reduced_cross_entropy_counts_an_item_met_twice_once():
    """Joining rounds without the count weighs an item by how often it was met."""
    hidden, targets, table = problem(num_items=9)
    options = {"num_chunks": 3, "num_neighbors": 1, "num_rounds": 4}
    ours = reduced_cross_entropy(
        hidden, targets, table, generator=torch.Generator().manual_seed(0), **options
    )
    rounds = choose_rounds(
        hidden[0], table, generator=torch.Generator().manual_seed(0), num_anchors=3, **options
    )
    twice, once = [], []
    for row, own in enumerate(targets[0].tolist()):
        near = (rounds.of_items - rounds.of_states[:, row, None]).abs() <= 1
        times = near.sum(0).float()
        times[own] = 0
        scores = table @ hidden[0, row]
        twice.append(torch.logaddexp(scores[own], (scores + times.log()).logsumexp(0)) - scores[own])
        seen = (times > 0).float().log()
        once.append(torch.logaddexp(scores[own], (scores + seen).logsumexp(0)) - scores[own])
    torch.testing.assert_close(ours, torch.stack(once).mean())
    assert float(torch.stack(twice).mean() - ours) > 0.1


def test_the_corrected_loss_is_consistent_where_the_vanilla_one_is_not():
    """Several peers apply no correction: their gradient's bias stays; the corrected one's falls with k."""
    hidden, _, table = problem(num_items=200, size=1, dim=3)
    targets = (table @ hidden[0, 0]).argmax()[None, None]
    hidden.requires_grad_()
    wanted = torch.autograd.grad(full_softmax(hidden, targets, table), hidden)[0]
    biases = {}
    for correction in ("none", "theorem"):
        for num_negatives in (8, 128):
            copies = 2000
            drawn = Uniform(200, num_negatives).draw(
                targets.expand(copies, 1), torch.Generator().manual_seed(3)
            )
            states = hidden.detach().expand(copies, 1, 3).requires_grad_()
            loss = sampled_softmax(states, targets.expand(copies, 1), table, drawn, correction=correction)
            mean = torch.autograd.grad(loss, states)[0].sum(0)
            biases[correction, num_negatives] = float((mean - wanted[0]).norm() / wanted.norm())
    assert biases["none", 8] > 0.5
    assert biases["none", 128] > 0.1
    assert biases["theorem", 8] < 0.3
    assert biases["theorem", 128] < 0.04


class _CountProducts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.mm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lean", [False, True])
def test_the_loss_is_one_pass(lean):
    """One product forward and two backward, plain and lean: nothing is computed twice."""
    hidden, targets, table = problem()
    hidden.requires_grad_()
    table.requires_grad_()
    drawn = uniform_over(20, torch.tensor([[1, 2, 3]]))
    with _CountProducts() as products:
        sampled_softmax(hidden, targets, table, drawn, lean=lean).backward()
    assert products.count == 3
