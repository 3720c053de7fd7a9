import numpy as np
import pytest

from budgetrec.errors import ArgumentError
from budgetrec.theory import convergence
from budgetrec.theory.convergence import Descent, MomentumDescent

CURVATURE = np.array([1.0, 4.0])  # c = 1, L = 4


def _descent(noise, initial_regret=5.0):
    """Return SGD on that quadratic."""
    return Descent(strong_convexity=1.0, smoothness=4.0, initial_regret=initial_regret, noise=noise)


def _descend(steps, *, noise, seed=0, runs=4000):
    """Mean regret after each SGD step on a quadratic, from (1, 1), with noise of total variance `noise`."""
    generator = np.random.default_rng(seed)
    w = np.ones((runs, 2))
    regrets = [float((CURVATURE * w * w).sum(1).mean() / 2)]
    for step in steps:
        gradient = CURVATURE * w + generator.normal(0, np.sqrt(noise / 2), w.shape)
        w = w - step * gradient
        regrets.append(float((CURVATURE * w * w).sum(1).mean() / 2))
    return np.array(regrets)


def test_constant_step_bound_holds():
    """T19: 4,000 runs stay below the bound at every step and end at the exact stationary regret within 5%."""
    regrets = _descend([0.1] * 80, noise=2.0)
    descent = _descent(2.0, regrets[0])
    assert np.all(regrets <= [descent.constant_step_bound(t, step_size=0.1) for t in range(1, 82)])
    floor = descent.constant_step_floor(0.1)
    stationary = np.sum(0.1 * 2.0 / (4 * (2 - 0.1 * CURVATURE)))  # of a quadratic: never above the floor
    assert regrets[-20:].mean() == pytest.approx(stationary, rel=0.05)
    assert stationary < floor


def test_diminishing_step_bound_holds_and_its_regret_falls_as_one_over_t():
    """T20: simulated regret stays below nu / (gamma + t); its slope from t = 100 is -1 within 5%."""
    beta, gamma = 2.0, 7.0
    regrets = _descend([beta / (gamma + t) for t in range(1, 801)], noise=2.0)
    steps = np.arange(1, 802)
    descent = _descent(2.0, regrets[0])
    bounds = [descent.diminishing_step_bound(int(t), beta=beta, gamma=gamma) for t in steps]
    assert np.all(regrets <= bounds)
    late = steps >= 100
    slope = np.polyfit(np.log(steps[late] + gamma), np.log(regrets[late]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)


def test_simulated_steps_between_two_allocations_are_as_predicted():
    """T22: twice the noise takes twice the steps to the same regret, within 5%."""
    steps = [2.0 / (7.0 + t) for t in range(1, 1601)]
    quiet, loud = (_descend(steps, noise=noise, seed=1) for noise in (1.0, 2.0))
    target = quiet[600]
    # The fitted 1/t law crosses the target where single runs would only flicker around it.
    counts = [np.mean(r[400:] * (np.arange(400, 1601) + 8)) / target for r in (quiet, loud)]
    assert counts[1] / counts[0] == pytest.approx(convergence.step_ratio(2.0, 1.0), rel=0.05)


def test_step_counts_invert_the_bounds():
    """T19 to T21: the count meets the target and one step less does not."""
    t = _descent(1.0).constant_step_count(0.5, step_size=0.05)
    bound = [_descent(1.0).constant_step_bound(s, step_size=0.05) for s in (t - 1, t)]
    assert bound[0] > 0.5 >= bound[1]
    t = _descent(50.0).diminishing_step_count(0.1, beta=2.0, gamma=7.0)
    bound = [_descent(50.0).diminishing_step_bound(s, beta=2.0, gamma=7.0) for s in (t - 1, t)]
    assert bound[0] > 0.1 >= bound[1]
    for scale in (None, 0.7):
        momentum = MomentumDescent(noise=2.0, gradient_bound=1.0, initial_regret=3.0, scale=scale)
        t = momentum.count(0.3)
        assert momentum.bound(t - 1) > 0.3 >= momentum.bound(t)


def test_steps_grow_in_proportion_to_noise():
    """T22: 4 times the noise is 4 times the steps within 2%, best constant and diminishing steps."""
    descents = [_descent(noise) for noise in (10.0, 40.0)]
    best = [descent.constant_step_count(1e-3) for descent in descents]
    falling = [descent.diminishing_step_count(1e-3, beta=2.0, gamma=7.0) for descent in descents]
    assert best[1] / best[0] == pytest.approx(4, rel=0.02)
    assert falling[1] / falling[0] == pytest.approx(4, rel=0.02)


def test_momentum_bound_is_least_at_its_own_scale():
    """T21: no fixed C beats the default one."""
    force = {"noise": 2.0, "gradient_bound": 1.0, "initial_regret": 3.0}
    least = min(MomentumDescent(scale=scale, **force).bound(100) for scale in np.geomspace(0.01, 100, 4001))
    assert MomentumDescent(**force).bound(100) == pytest.approx(least, rel=1e-5)


def test_momentum_gradients_fall_at_least_as_fast_as_the_bound():
    """T21: heavy-ball SGD with step C / sqrt(t) has its least squared gradient below the bound."""
    generator = np.random.default_rng(0)
    for horizon in (25, 100, 400):
        w, speed = np.ones((500, 2)), np.zeros((500, 2))
        norms = []
        for _ in range(horizon):
            gradient = CURVATURE * w
            norms.append((gradient * gradient).sum(1).mean())
            speed = 0.5 * speed + gradient + generator.normal(0, 1, w.shape)
            w = w - 0.25 / np.sqrt(horizon) * speed
        momentum = MomentumDescent(noise=2.0, gradient_bound=np.sqrt(17), initial_regret=2.5, scale=0.5)
        assert min(norms) < momentum.bound(horizon)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _descent(1.0).constant_step_floor(0.5), "exceeds 1 / smoothness"),
        (lambda: _descent(9.0).constant_step_count(0.1, 0.2), "below the floor 3.6 of step_size 0.2"),
        (lambda: _descent(1.0).diminishing_step_bound(1, beta=1.0, gamma=9.0), "pass a larger beta"),
        (lambda: _descent(1.0).diminishing_step_bound(1, beta=2.0, gamma=1.0), "pass gamma >= 7"),
        (lambda: _descent(1.0, initial_regret=0.0), "initial_regret is 0.0; pass a number above 0"),
        (lambda: convergence.step_ratio(0.0, 1.0), "noise is 0.0; pass a number above 0"),
    ],
)
def test_invalid_arguments_are_one_sentence(call, message):
    """Steps and targets that the theorems do not cover are refused with what to do."""
    with pytest.raises(ArgumentError, match=message):
        call()


def test_the_best_step_gains_what_the_formula_says():
    """The best of many step sizes on a quadratic, simulated, gains G^2 / (2 (G + V / (1 - beta)^2))."""
    generator = np.random.default_rng(0)
    point = np.full(16, 0.5)
    gradient = float(point @ point)
    for variance, beta in ((1.0, 0.0), (4.0, 0.5), (0.1, 0.2)):
        noise = generator.normal(size=(20_000, 16)) * np.sqrt(variance / 16)
        estimates = (1 - beta) * point + noise
        sizes = np.linspace(0.01, 2.5, 500)
        after = [0.5 * np.square(point - size * estimates).sum(1).mean() for size in sizes]
        steps = float(
            convergence.steps_to_gain(variance=variance, bias=beta**2 * gradient, gradient=gradient)
        )
        assert gradient / 2 - min(after) == pytest.approx(gradient**2 / (2 * steps), rel=0.02)


def test_a_bias_as_large_as_the_gradient_leaves_nothing_to_gain():
    """Beyond 95% of the gradient the steps stay 400 times those without a bias."""
    unbiased = convergence.steps_to_gain(variance=1.0, bias=0.0, gradient=1.0) - 1
    biased = convergence.steps_to_gain(variance=1.0, bias=np.array([0.9025, 1.0, 9.0]), gradient=1.0) - 1
    assert np.allclose(biased / unbiased, 400)
    assert convergence.steps_to_gain(variance=1.0, bias=0.0, gradient=0.0) == 1
