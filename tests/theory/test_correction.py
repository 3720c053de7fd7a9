import itertools

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError
from budgetrec.theory import correction
from budgetrec.theory.moments import Target, quadrature_nodes, target_moments

ITEMS = 2000


@given(seed=st.integers(0, 2**32 - 1), num_negatives=st.integers(1, 40), extra=st.integers(1, 500))
def test_diag_c_times_p_is_the_softmax_with_shifted_negatives(seed, num_negatives, extra):
    """T14: the theorem's exact factors and a shift of log((K-1)/k) give the same numbers, to 1e-12."""
    generator = np.random.default_rng(seed)
    num_items = num_negatives + extra
    positive, negatives = generator.normal(0, 2, 3), generator.normal(0, 2, (3, num_negatives))
    shift = correction.negative_shift(num_negatives=num_negatives, num_items=num_items)
    np.testing.assert_allclose(
        correction.factor_softmax(positive, negatives, num_items=num_items),
        correction.shifted_softmax(positive, negatives, shift=shift),
        rtol=1e-12,
    )


def test_uniform_proposal_gives_the_uniform_shift():
    """T14: -log(k q) with q = 1/(K-1) on the other items is log((K-1)/k)."""
    shift = correction.proposal_shift(-np.log(ITEMS - 1), num_negatives=8)
    assert shift == pytest.approx(correction.negative_shift(num_negatives=8, num_items=ITEMS))


def test_printed_factors_approach_the_exact_ones_as_k_grows():
    """T14: the paper's k, K and the exact k, K-1 differ by less than 1/k once both count the same classes."""
    for k in (8, 64, 512):
        printed = correction.paper_factors(2.0, num_classes=k, num_items=50_000)
        exact = correction.proof_factors(2.0, num_classes=k, num_items=50_000)
        assert abs(printed[0] / exact[0] - 1) < 1 / (k - 1)
        assert abs(printed[1] / exact[1] - 1) < 1 / (k - 1)


def _measure_bias(num_negatives, *, corrected, num_draws=100_000):
    """Mean of p'' - p over draws, for one target with uniform negatives among the other items."""
    generator = np.random.default_rng(num_negatives)
    logits = np.random.default_rng(5).normal(0, 1, ITEMS)
    logits[0] = np.log(ITEMS / 2)  # a model that has learnt something: the positive holds about a quarter
    p = np.exp(logits) / np.exp(logits).sum()
    total = np.zeros(ITEMS)
    for _ in range(20):
        ids = generator.integers(1, ITEMS, (num_draws // 20, num_negatives))  # item 0 is the positive
        shift = correction.negative_shift(num_negatives=num_negatives, num_items=ITEMS) if corrected else 0.0
        weights = correction.shifted_softmax(np.full(len(ids), logits[0]), logits[ids], shift=shift)
        total += np.bincount(ids.ravel(), weights[:, 1:].ravel(), minlength=ITEMS)
        total[0] += weights[:, 0].sum()
    return total / num_draws - p, p


def test_corrected_bias_falls_as_one_over_k_and_the_vanilla_one_does_not():
    """The slope of log bias against log k is -1 within 5% when corrected; the vanilla bias stays within 10%.

    The corrected bias is the exact one, held to 100,000 draws at k = 16 within 5%.
    """
    ladder = np.array([16.0, 128.0, 256.0, 512.0])
    measured, p = _measure_bias(16, corrected=True)
    q = np.full(ITEMS, 1 / (ITEMS - 1))
    q[0] = 1e-300  # the positive is never drawn
    target = Target.of(p, q, 0)
    exact = target_moments(target, q, nodes=quadrature_nodes(ladder), num_negatives=ladder)
    bias = np.linalg.norm((exact.mean_weight - 1) * p, axis=1)
    assert np.linalg.norm(measured) == pytest.approx(bias[0], rel=0.05)
    assert np.polyfit(np.log(ladder[1:]), np.log(bias[1:]), 1)[0] == pytest.approx(-1, abs=0.05)
    vanilla = [np.linalg.norm(_measure_bias(k, corrected=False, num_draws=20_000)[0]) for k in (16, 64)]
    assert vanilla[1] > 0.9 * vanilla[0]
    assert vanilla[1] > 20 * bias[1]


def test_the_bias_left_is_the_predicted_one():
    """T15: at k = 64 each class's bias is within 10% of the largest of the leading-order form."""
    measured, p = _measure_bias(64, corrected=True)
    q = np.full(ITEMS, 1 / (ITEMS - 1))
    predicted = correction.remaining_bias(p, np.log(q), positive=0, num_negatives=64)
    assert np.abs(measured - predicted).max() < 0.1 * np.abs(predicted).max()
    assert predicted.sum() == pytest.approx(0, abs=1e-12)


def _minimiser(p, shares, *, shift):
    """Return the softmax of the scores with the least expected loss; the loss is exact, over all draws.

    `shares` holds the counts of each positive's negatives by class, (m, K), and their probabilities, (m,).
    """

    def expected(scores):
        total = 0.0
        for positive, (counts, chances) in enumerate(shares):
            with np.errstate(divide="ignore"):
                terms = np.log(counts) + scores + shift
            rest = scipy.special.logsumexp(terms, axis=1)
            total += p[positive] * (chances @ (np.logaddexp(scores[positive], rest) - scores[positive]))
        return total

    found = scipy.optimize.minimize(expected, np.zeros(len(p)), method="BFGS", options={"gtol": 1e-9})
    return scipy.special.softmax(found.x)


def _subsets(num_items, num_negatives):
    """Return every set of distinct negatives for each positive, all as likely."""
    for positive in range(num_items):
        others = [item for item in range(num_items) if item != positive]
        chosen = list(itertools.combinations(others, num_negatives))
        counts = np.zeros((len(chosen), num_items))
        for row, items in enumerate(chosen):
            counts[row, items] = 1.0
        yield counts, np.full(len(chosen), 1 / len(chosen))


def _multisets(num_items, num_negatives):
    """Return every count of negatives drawn with replacement from the other three classes."""
    one, two = (part.ravel() for part in np.mgrid[: num_negatives + 1, : num_negatives + 1])
    drawn = np.stack([one, two, num_negatives - one - two], axis=1)[one + two <= num_negatives]
    chances = scipy.stats.multinomial(num_negatives, [1 / 3] * 3).pmf(drawn)
    for positive in range(num_items):
        counts = np.zeros((len(drawn), num_items))
        counts[:, [item for item in range(num_items) if item != positive]] = drawn
        yield counts, chances


def test_the_vanilla_loss_aims_at_the_truth_for_every_k():
    """T24: with distinct uniform negatives its minimiser is p to 1e-5, be k 1, 2, 3 or all."""
    p = np.random.default_rng(3).dirichlet(np.ones(6))
    for k in (1, 2, 3, 5):
        found = _minimiser(p, list(_subsets(6, k)), shift=0.0)
        assert np.abs(found - p).max() < 1e-5


def test_the_corrected_loss_aims_beside_the_truth_by_one_over_k():
    """T24: at k = 1 it makes the likely likelier; the distance from p has slope -1 in k, 0 with all."""
    p = np.random.default_rng(3).dirichlet(np.ones(6))
    shift = correction.negative_shift(num_negatives=1, num_items=6)
    found = _minimiser(p, list(_subsets(6, 1)), shift=shift)
    assert found.max() > p.max() + 0.1
    assert (np.argsort(found) == np.argsort(p)).all()
    assert np.abs(_minimiser(p, list(_subsets(6, 5)), shift=0.0) - p).max() < 1e-5
    p, ladder = np.array([0.4, 0.3, 0.2, 0.1]), (16, 32, 64)
    distances = [
        np.linalg.norm(_minimiser(p, list(_multisets(4, k)), shift=np.log(3 / k)) - p) for k in ladder
    ]
    assert np.polyfit(np.log(ladder), np.log(distances), 1)[0] == pytest.approx(-1, abs=0.05)


def test_estimated_alpha_is_consistent():
    """T14: the estimate with 100,000 negatives is within 1% of h_pos / E h_neg."""
    negatives = np.random.default_rng(0).normal(0, 1, 100_000)
    assert correction.positive_ratio(1.0, negatives) == pytest.approx(np.exp(1 - 0.5), rel=0.01)


def test_more_negatives_than_items_is_one_sentence():
    """Both k > K - 1 and a set that holds only the positive are refused."""
    with pytest.raises(ArgumentError, match="num_negatives is 10, but 10 items leave 9"):
        correction.negative_shift(num_negatives=10, num_items=10)
    with pytest.raises(ArgumentError, match="leaves no negative; pass 2 or more"):
        correction.proof_factors(1.0, num_classes=1, num_items=10)
