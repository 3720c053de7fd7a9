"""One example of every sampler, for the contract that they share."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from budgetrec.samplers import (
    ForcedPositives,
    InBatch,
    LogUniform,
    Mixed,
    Popularity,
    QuadraticKernel,
    Sampler,
    StreamingFrequency,
    Uniform,
)

NUM_ITEMS = 40
COUNTS = torch.arange(NUM_ITEMS, 0, -1) ** 2
UNIGRAM = (COUNTS / COUNTS.sum()).log()


@dataclass(frozen=True)
class Case:
    """A sampler and, where its draws depend on them, the targets it is made for."""

    sampler: Sampler
    fixed_targets: Tensor | None = None
    distinct: bool = False
    repeats: float = 1.0  # slots that one fresh target fills, as groups of a batch share its targets
    calls: int = 400

    def targets(self, num_groups: int, size: int, generator: torch.Generator) -> Tensor:
        """Return the fixed targets, or draw some by popularity, as a stream of users would."""
        if self.fixed_targets is not None:
            return self.fixed_targets.expand(num_groups, -1)
        drawn = torch.multinomial(UNIGRAM.exp(), num_groups * size, replacement=True, generator=generator)
        return drawn.view(num_groups, size)


def _stream() -> StreamingFrequency:
    generator = torch.Generator().manual_seed(5)
    stream = StreamingFrequency(NUM_ITEMS, rate=0.0005)
    for _ in range(20_000):
        stream.observe(torch.multinomial(UNIGRAM.exp(), 8, replacement=True, generator=generator))
    return stream


def _kernel() -> Sampler:
    generator = torch.Generator().manual_seed(6)
    table = torch.randn(NUM_ITEMS, 4, generator=generator)
    hidden = torch.randn(1, 3, 4, generator=generator).expand(200, -1, -1)
    return QuadraticKernel(table, 6, alpha=2.0).given(hidden)


FORCED = torch.tensor([[3, 3, 17]])

CASES: dict[str, Callable[[], Case]] = {
    "uniform": lambda: Case(Uniform(NUM_ITEMS, 6)),
    "uniform-distinct": lambda: Case(Uniform(NUM_ITEMS, 6, replacement=False), distinct=True),
    "uniform-most": lambda: Case(Uniform(NUM_ITEMS, 30, replacement=False), distinct=True),
    "uniform-excluding": lambda: Case(Uniform(NUM_ITEMS, 6, exclude_targets=True), FORCED),
    "uniform-excluding-distinct": lambda: Case(
        Uniform(NUM_ITEMS, 6, replacement=False, exclude_targets=True), FORCED, distinct=True
    ),
    "popularity": lambda: Case(Popularity(COUNTS, 6)),
    "popularity-power": lambda: Case(Popularity(COUNTS, 6, alpha=0.75)),
    "log-uniform": lambda: Case(LogUniform(NUM_ITEMS, 6)),
    "in-batch": lambda: Case(InBatch(NUM_ITEMS, UNIGRAM), repeats=200),
    "in-batch-some": lambda: Case(InBatch(NUM_ITEMS, UNIGRAM, 6), repeats=2),
    "in-batch-streaming": lambda: Case(InBatch(NUM_ITEMS, _stream().log_q, 6), repeats=2, calls=30),
    "forced-positives": lambda: Case(ForcedPositives(NUM_ITEMS, 6), FORCED, distinct=True),
    "mixed": lambda: Case(Mixed(NUM_ITEMS, UNIGRAM, num_in_batch=4, num_uniform=2), repeats=4 / 3),
    "kernel": lambda: Case(_kernel()),
}


@pytest.fixture(params=list(CASES), scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    """Every sampler in turn."""
    return CASES[request.param]()


def chi_square_p_value(observed: Tensor, expected: Tensor) -> float:
    """Pearson's test, classes expected fewer than ten times pooled."""
    from scipy.stats import chi2

    rare = expected < 10
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]]).double()
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(chi2.sf(float(statistic), len(expected) - 1)) if math.isfinite(statistic) else 0.0
