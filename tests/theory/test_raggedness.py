"""What unequal lengths do to the noise of a step, against steps that are put together at random."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.theory.noise import NoiseConstants, predict_noise
from budgetrec.theory.raggedness import EVEN, measure_raggedness


def sequences():
    """Return geometric lengths, and the parts of the noise of each sequence that go with its length."""
    generator = np.random.default_rng(0)
    lengths = 1 + generator.geometric(0.1, 400)
    scatter = generator.gamma(4, 0.25, (3, 400))
    return lengths, scatter * np.stack([lengths**1.5, lengths, lengths * (lengths - 1.0)])


def test_factors_are_those_of_random_steps():
    """For 2 to 48 sequences of geometric lengths every factor is that of 40,000 random steps to 1.5%."""
    lengths, (example, target, pairs) = sequences()
    ragged = measure_raggedness(lengths, example=example, target=target, sequence=pairs)
    generator = np.random.default_rng(1)
    for n in (2, 8, 10, 48):
        chosen = generator.integers(0, 400, (40_000, n))
        total = lengths[chosen].sum(1) ** 2
        squares = (lengths**2)[chosen].sum(1)
        assert float(ragged.at("pairs", n)) == pytest.approx(n * (squares / total).mean(), rel=0.015)
        for name, values in (("example", example), ("target", target), ("sequence", pairs)):
            drawn = (values[chosen].sum(1) / total).mean() * n * lengths.mean() ** 2 / values.mean()
            assert float(ragged.at(name, n)) == pytest.approx(drawn, rel=0.015), (name, n)
    assert float(ragged.at("target", 8)) > 1.04  # the reason why any of this matters


def test_large_steps_forget_that_lengths_differ():
    """At n = 100,000 factors are 1 to 0.1%, and a share of pairs of E l^2 / (E l)^2 is of one sequence."""
    lengths, (example, target, pairs) = sequences()
    ragged = measure_raggedness(lengths, example=example, target=target, sequence=pairs)
    for name in ("example", "target", "sequence"):
        assert float(ragged.at(name, 100_000)) == pytest.approx(1, abs=1e-3)
    uneven = (lengths**2).mean() / lengths.mean() ** 2
    assert float(ragged.at("pairs", 100_000)) == pytest.approx(uneven, rel=1e-3)


@given(length=st.integers(1, 50), count=st.integers(2, 20))
@settings(deadline=None, max_examples=20)
def test_equal_lengths_change_nothing(length, count):
    """All factors are 1, and the law is as it was."""
    ones = np.ones(count)
    assert measure_raggedness(length * ones, example=ones, target=ones, sequence=ones) is EVEN


def test_the_law_multiplies_its_parts_by_the_factors():
    """One part at a time: shared pairs of two sequences are those that are left, however many groups."""
    lengths, (example, target, pairs) = sequences()
    ragged = measure_raggedness(lengths, example=example, target=target, sequence=pairs)
    mean = lengths.mean()
    nothing = {"example": 0.0, "target_class": 0.0, "shared_class": 0.0, "sequence_class": 0.0}
    for name, factor, groups, expected in (
        ("example", "example", 8, 1 / 8),
        ("target_class", "target", 8, 1 / (8 * mean)),
        ("sequence_class", "sequence", 8, 1 / 8 - 1 / (8 * mean)),
    ):
        even = NoiseConstants.saturating(**{**nothing, name: 1.0})
        constants = type(even)(**{**even.__dict__, "raggedness": ragged})
        law = predict_noise(constants, batch_size=8, num_targets=8 * mean, num_negatives=1, num_groups=groups)
        assert float(law.total) == pytest.approx(float(ragged.at(factor, 8)) * expected)
    even = NoiseConstants.saturating(**{**nothing, "shared_class": 1.0})
    constants = type(even)(**{**even.__dict__, "raggedness": ragged})
    for groups, together in ((1, 1.0), (2, 3 / 7), (8, 0.0)):
        law = predict_noise(constants, batch_size=8, num_targets=8 * mean, num_negatives=1, num_groups=groups)
        left = 1 - float(ragged.at("pairs", 8)) / 8
        assert float(law.shared_class) == pytest.approx(left * together)
