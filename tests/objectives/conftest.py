"""Small problems with everything that makes a loss hard: masks, repeated draws, hits, empty slots."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from budgetrec.samplers import Negatives


@dataclass(frozen=True)
class Problem:
    """One call of an objective, in double precision."""

    hidden: Tensor
    targets: Tensor
    table: Tensor
    negatives: Negatives
    mask: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Negatives, Tensor]:
        """Return the arguments in order."""
        return self.hidden, self.targets, self.table, self.negatives, self.mask


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Make shapes, masks, proposals and draws; catalogues are small, so repeats and hits abound."""
    num_groups, size, dim = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    num_items, num_negatives = draw(st.integers(2, 7)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    one_q, padded = draw(st.booleans()), draw(st.booleans())

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets = torch.randint(num_items, (num_groups, size), generator=generator)
    ids = torch.randint(num_items, (num_groups, num_negatives), generator=generator)
    mask = torch.rand(num_groups, size, generator=generator) < 0.7
    mask[0, 0] = True
    log_q = torch.log_softmax(0 * randn(num_items) if one_q else randn(num_items), 0)
    valid = torch.rand(ids.shape, generator=generator) < 0.8 if padded else None
    num_draws = draw(st.none() | st.floats(0.5, 8))
    if one_q:
        negatives = Negatives(ids, log_q[:1, None], log_q[:1, None], valid, num_draws)
    else:
        negatives = Negatives(ids, log_q[ids], log_q[targets], valid, num_draws)
    hidden = randn(num_groups, size, dim).requires_grad_()
    table = randn(num_items, dim).requires_grad_()
    return Problem(hidden, targets, table, negatives, mask)


def value_and_gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the loss and its gradient with respect to each input."""
    return (loss.detach(), *torch.autograd.grad(loss, inputs))


def assert_same(ours: Tensor, wanted: Tensor, *inputs: Tensor) -> None:
    """Compare values and gradients in double precision."""
    pairs = zip(value_and_gradients(ours, *inputs), value_and_gradients(wanted, *inputs), strict=True)
    for number, reference in pairs:
        torch.testing.assert_close(number, reference, rtol=1e-7, atol=1e-9)
