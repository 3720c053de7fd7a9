import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError
from budgetrec.theory import rules
from budgetrec.theory.noise import NoiseConstants, predict_noise
from budgetrec.theory.optimum import allocate

SHARINGS = {"shared": lambda n: n * 0 + 1, "sequence": lambda n: n}


def _law(constants):
    def objective(n, k, groups):
        return predict_noise(constants, batch_size=n, num_negatives=k, num_groups=groups).total

    return objective


def _brute(objective, cost, budget, rows, columns):
    """Every (sharing, n, k), one after the other: least objective, first sharing, smallest n, largest k."""
    best = None
    for order, rule in enumerate(SHARINGS.values()):
        n, k = (part.ravel() for part in np.mgrid[1 : rows + 1, 1 : columns + 1])
        groups = rule(n)
        fits = cost(n, k, groups) <= budget
        for value, row, column in zip(objective(n, k, groups)[fits], n[fits], k[fits], strict=True):
            key = (float(value), order, int(row), -int(column))
            if (
                best is None
                or key[0] < best[0] * (1 - 1e-12)
                or (key[0] <= best[0] * (1 + 1e-12) and key[1:] < best[1:])
            ):
                best = key
    return best


positive = st.floats(0.01, 100.0)


@settings(max_examples=1000, deadline=None)
@given(
    example=positive,
    shared=positive,
    target=positive,
    rho=st.floats(0, 50),
    rates=st.tuples(st.floats(0, 9), st.floats(0.1, 9), st.floats(0, 9)),
    fill=st.floats(0, 1),
    rows=st.integers(1, 24),
    columns=st.integers(1, 24),
    seconds=st.booleans(),
)
def test_the_allocator_agrees_with_brute_force(
    example, shared, target, rho, rates, fill, rows, columns, seconds
):
    """T18: the same choice as trying everything, on 1,000 random problems, for law and law x seconds."""
    constants = NoiseConstants.saturating(example=example, shared_class=shared, target_class=target, rho=rho)
    law = _law(constants)

    def objective(n, k, groups):
        return law(n, k, groups) * (1 + 0.05 * n * k + groups * 0.1 if seconds else 1.0)

    def cost(n, k, groups):
        return rates[0] * n + rates[1] * n * k + rates[2] * groups * k

    least, most = cost(1, 1, 1), cost(rows, columns, rows)
    budget = max(least, least + fill * (most - least))
    found = allocate(
        objective=objective,
        cost=cost,
        budget=budget,
        max_batch_size=rows,
        max_num_negatives=columns,
        sharings=SHARINGS,
        falls_with_negatives=not seconds,
    )
    value, order, n, minus_k = _brute(objective, cost, budget, rows, columns)
    assert found.exhaustive
    assert found.objective == pytest.approx(value, rel=1e-12)
    assert (found.batch_size, found.num_negatives) == (n, -minus_k)
    assert found.sharing == list(SHARINGS)[order]
    assert found.cost <= budget


def test_the_allocator_meets_the_closed_form_for_shared_negatives():
    """T17, T18: under T k = B with B = 2^20 it lands within 1% of T = B / (sqrt(B C_p / C_y) - rho)."""
    budget = 2**20
    for rho in (0.0, 30.0):
        constants = NoiseConstants.saturating(example=9.0, shared_class=4.0, target_class=1e-9, rho=rho)
        found = allocate(
            objective=_law(constants),
            cost=lambda n, k, groups: n * k,
            budget=budget,
            max_batch_size=budget,
            max_num_negatives=budget,
            sharings={"shared": SHARINGS["shared"]},
        )
        targets, negatives = rules.shared_optimum(budget, example=9.0, shared_class=4.0, rho=rho)
        assert found.batch_size == pytest.approx(targets, rel=0.01)
        assert found.num_negatives == pytest.approx(negatives, rel=0.01)


def test_per_target_negatives_want_one_negative():
    """T17: with a set per target the optimum under T k = B is n = B, k = 1, as the paper says."""
    constants = NoiseConstants.saturating(example=1.0, shared_class=5.0, target_class=40.0)
    found = allocate(
        objective=_law(constants),
        cost=lambda n, k, groups: n * k,
        budget=4096,
        max_batch_size=4096,
        max_num_negatives=4096,
        sharings={"target": lambda n: n},
    )
    assert (float(found.batch_size), float(found.num_negatives)) == rules.per_target_optimum(4096)


def test_groups_move_the_closed_form():
    """T17: the closed form with G sets minimises C_y/T + C_p/(G (k + rho)) over a fine grid, within 0.1%."""
    k = np.geomspace(1, 10_000, 200_001)
    noise = 9.0 * k / 10_000 + 4.0 / (3 * (k + 2.0))
    _, best = rules.shared_optimum(10_000, example=9.0, shared_class=4.0, rho=2.0, num_groups=3)
    assert k[noise.argmin()] == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("falls", [True, False])
def test_large_ranges_take_well_under_a_second_and_miss_nothing(falls):
    """T18: n to 10^6 and k to 10^7 in under a second; the law's value is within 1e-4 of the exact edge."""
    constants = NoiseConstants.saturating(example=30.0, shared_class=200.0, target_class=4000.0, rho=40.0)
    law = _law(constants)

    def cost(n, k, groups):
        return 3e5 * n + 4.0 * 50 * n * k + 512.0 * groups * k

    start = time.process_time()
    found = allocate(
        objective=law,
        cost=cost,
        budget=8e9,
        max_batch_size=10**6,
        max_num_negatives=10**7,
        sharings={"shared": SHARINGS["shared"]},
        falls_with_negatives=falls,
    )
    assert time.process_time() - start < 1.0
    n = np.arange(1, 26_000)
    k = np.floor((8e9 - 3e5 * n) / (200 * n + 512)).astype(int)
    exact = law(n[k >= 1], k[k >= 1], n[k >= 1] * 0 + 1).min()
    assert found.objective <= exact * (1 + 1e-4)


def test_a_search_beyond_enumeration_agrees_with_the_exact_edge():
    """T18: with 10^6 feasible n the search's value is within 1e-6 of trying every n, on 20 random laws."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        example, shared = np.exp(generator.uniform(-3, 3, 2))
        law = _law(NoiseConstants.saturating(example=example, shared_class=shared, target_class=1.0, rho=3.0))
        found = allocate(
            objective=law,
            cost=lambda n, k, groups: n * k,
            budget=10**6,
            max_batch_size=10**6,
            max_num_negatives=10**6,
            sharings={"shared": SHARINGS["shared"]},
        )
        n = np.arange(1, 10**6 + 1)
        exact = law(n, 10**6 // n, np.ones_like(n)).min()
        assert not found.exhaustive
        assert found.objective <= exact * (1 + 1e-6)


def test_ties_are_broken_and_reported():
    """A flat objective yields the first sharing, smallest n and largest k; the other ties are counted."""
    found = allocate(
        objective=lambda n, k, groups: np.ones(len(n)),
        cost=lambda n, k, groups: n + k + 0.0,
        budget=4,
        max_batch_size=3,
        max_num_negatives=3,
        sharings=SHARINGS,
        falls_with_negatives=False,
    )
    assert (found.sharing, found.batch_size, found.num_negatives) == ("shared", 1, 3)
    assert found.num_ties == 8  # 6 pairs of 2 sharings less the choice, less 3 with G = n = 1 met twice


def test_the_paper_rules_agree_with_its_objective():
    """T16: n*, k* minimise C_y/(K n) + C_p/(B K k) under n k = B: on a fine grid within 0.1%."""
    n = np.geomspace(1e-3, 1e5, 400_001)
    objective = 2.0 / n + 3.0 * n / 1000.0**2
    best, negatives = rules.paper_optimum(1000, example_constant=2.0, class_constant=3.0)
    assert n[objective.argmin()] == pytest.approx(best, rel=1e-3)
    assert best * negatives == pytest.approx(1000)


def test_a_budget_below_one_example_is_one_sentence():
    """Nothing fits: the message names the budget and the least cost."""
    with pytest.raises(ArgumentError, match="budget of 5 is below the cost 12 of one example"):
        allocate(
            objective=lambda n, k, groups: 1.0 / n,
            cost=lambda n, k, groups: 12.0 * n * k,
            budget=5,
            max_batch_size=4,
            max_num_negatives=4,
            sharings=SHARINGS,
        )
    with pytest.raises(ArgumentError, match="below one example with one negative"):
        rules.paper_square_rule(0)
