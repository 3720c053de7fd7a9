import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError
from budgetrec.study.variance.study import Setting, World
from budgetrec.theory.constants import OutputLayer, measure_constants, pair_products
from budgetrec.theory.gaussian import gaussian_constants
from budgetrec.theory.moments import Target, quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import NoiseConstants, Tabulated, predict_noise

ITEMS, DIM = 1000, 16


def _pair(*, spread, tilt, num_items=400):
    """Two softmaxes that share half of their logits' variance, a proposal, and their positives."""
    generator = np.random.default_rng(4)
    q = np.arange(1.0, num_items + 1) ** -tilt
    common = generator.standard_normal(num_items)
    softmaxes = []
    for _ in range(2):
        weights = np.exp(spread * (common + generator.standard_normal(num_items)) / np.sqrt(2))
        softmaxes.append(weights / weights.sum())
    return softmaxes, q / q.sum(), (3, int(softmaxes[1].argmax()))


@pytest.mark.parametrize(("spread", "tilt"), [(1.0, 0.0), (1.0, 0.8), (2.5, 0.0), (2.5, 0.8)])
def test_exact_moments_match_simulation_for_any_proposal(spread, tilt):
    """T10, T11: within 4 standard errors of 20,000 draws (and 2% for pairs), diffuse and concentrated."""
    softmaxes, q, positives = _pair(spread=spread, tilt=tilt)
    ladder = np.array([4.0, 32.0])
    nodes = quadrature_nodes(ladder)
    targets = [Target.of(p, q, y) for p, y in zip(softmaxes, positives, strict=True)]
    moments = [target_moments(target, q, nodes=nodes, num_negatives=ladder) for target in targets]
    shared, independent = shared_products(*targets, q, nodes=nodes, num_negatives=ladder)
    generator = np.random.default_rng(9)
    for column, k in enumerate((4, 32)):
        errors = []
        ids = generator.choice(len(q), (20_000, k), p=q)
        for p, y in zip(softmaxes, positives, strict=True):
            weights = np.where(ids == y, 0.0, p[ids] / q[ids] / k)
            total = p[y] + weights.sum(1)
            error = np.tile(-p, (len(ids), 1))
            np.add.at(error, (np.arange(len(ids))[:, None], ids), weights / total[:, None])
            error[:, y] += p[y] / total
            errors.append(error)
        for error, moment in zip(errors, moments, strict=True):
            squares = (error * error).sum(1)
            assert moment.second[column] == pytest.approx(squares.mean(), abs=4 * squares.std() / 141)
        products = (errors[0] * errors[1]).sum(1)
        slack = 4 * products.std() / 141 + 0.02 * abs(products.mean())
        assert shared[column] == pytest.approx(products.mean(), abs=slack)
        means = errors[0].mean(0) @ errors[1].mean(0)
        assert independent[column] == pytest.approx(means, abs=slack)


@given(seed=st.integers(0, 1000), same=st.booleans())
@settings(max_examples=25, deadline=None)
def test_equal_classes_given_once_count_as_many(seed, same):
    """T10, T11: merged classes with their counts have the moments of the separate classes, to 1e-9."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 6, 12)
    positives = (4, 4 if same else 9)
    counts[list(positives)] = 1
    q = generator.dirichlet(np.full(12, 2.0))
    q /= counts @ q
    ladder = np.array([1.0, 8.0, 512.0])
    nodes = quadrature_nodes(ladder)
    kinds, classes = [], []
    first = np.cumsum(counts) - counts
    for positive in positives:
        p = np.exp(1.5 * generator.standard_normal(12))
        p /= counts @ p
        kinds.append(Target.of(p, q, positive))
        classes.append(Target.of(np.repeat(p, counts), np.repeat(q, counts), int(first[positive])))
    given_once = shared_products(*kinds, q, nodes=nodes, num_negatives=ladder, counts=counts.astype(float))
    one_by_one = shared_products(*classes, np.repeat(q, counts), nodes=nodes, num_negatives=ladder)
    np.testing.assert_allclose(given_once, one_by_one, rtol=1e-9, atol=1e-12)


def test_pair_products_are_the_large_k_limit_of_the_exact_moments():
    """T8: k times the exact product, extrapolated to k = infinity, is the Gram form within 0.1%."""
    generator = np.random.default_rng(2)
    features, table = generator.standard_normal((6, 4)), generator.standard_normal((50, 4))
    q = generator.dirichlet(np.full(50, 20.0))
    layer = OutputLayer.of(features=features, table=table, targets=[0, 1, 1, 2, 3, 49], log_q=np.log(q))
    pairs = pair_products(layer)
    ladder = np.array([5e4, 1e5])
    nodes = quadrature_nodes(ladder)
    for t, other in ((0, 0), (0, 1), (1, 2), (4, 5)):
        left, right = (Target.of(layer.softmax(i), q, int(layer.targets[i])) for i in (t, other))
        shared, _ = shared_products(left, right, q, nodes=nodes, num_negatives=ladder)
        exact = (2 * 1e5 * shared[1] - 5e4 * shared[0]) * (features[t] @ features[other])
        assert exact == pytest.approx(pairs.class_noise[t, other], rel=0.001)


def test_noise_vanishes_when_the_proposal_is_the_softmax_of_the_rest():
    """T8: drawing in proportion to p leaves no class noise at any k but hits on the positive."""
    p = np.array([1e-9, 0.2, 0.3, 0.5])
    ladder = np.array([2.0, 64.0])
    q = p.copy()
    moments = target_moments(
        Target.of(p / p.sum(), q / q.sum(), 0), q, nodes=quadrature_nodes(ladder), num_negatives=ladder
    )
    multinomial = (1 - p @ p) / ladder
    np.testing.assert_allclose(moments.second, multinomial, rtol=1e-5)


def test_gaussian_constants_match_measured_ones():
    """T13: C_y within 3%, C_x, rho and C_p within 5% of 2,000 targets and 4,000 items, mean norm 3."""
    generator = np.random.default_rng(0)
    world = World.of(
        Setting(name="", mean_norm=3.0, logit_scale=0.7), num_items=4000, dim=32, generator=generator
    )
    features, targets, _ = world.draw(2000, generator)
    layer = OutputLayer.of(
        features=features, table=world.table, targets=targets, log_q=np.full(4000, -np.log(4000))
    )
    pairs = pair_products(layer)
    closed = gaussian_constants(dim=32, mean_norm=3.0, logit_scale=0.7)
    apart = ~np.eye(2000, dtype=bool)
    assert pairs.example.diagonal().mean() == pytest.approx(closed.example, rel=0.03)
    assert pairs.diffuse_class_noise.diagonal().mean() == pytest.approx(
        closed.target_class.coefficient, rel=0.05
    )
    assert pairs.rho.mean() == pytest.approx(closed.target_class.rho, rel=0.05)
    assert pairs.diffuse_class_noise[apart].mean() == pytest.approx(closed.shared_class.coefficient, rel=0.05)


def _simulated(world, cells, *, repeats, seed):
    """Mean squared norm of the gradient in each (n, k, G), whose true gradient is zero."""
    generator = np.random.default_rng(seed)
    return np.array(
        [
            np.mean(
                [
                    world.step_noise(
                        world.draw(n, generator), num_negatives=k, num_groups=groups, generator=generator
                    )
                    for _ in range(repeats)
                ]
            )
            for n, k, groups in cells
        ]
    )


@pytest.fixture(scope="module")
def world():
    """Build a small last layer with mean features, so that shared noise is large."""
    setting = Setting(name="", mean_norm=4.0, logit_scale=0.8)
    return World.of(setting, num_items=ITEMS, dim=DIM, generator=np.random.default_rng(1))


def _measured(world, *, count=1200):
    length = world.setting.targets_per_sequence
    generator = np.random.default_rng(8)
    features, targets, _ = world.draw(count // length, generator)
    layer = OutputLayer.of(
        features=features,
        table=world.table,
        targets=targets,
        log_q=np.full(ITEMS, -np.log(ITEMS)),
        sequences=np.repeat(np.arange(count // length), length),
    )
    return measure_constants(layer, generator=generator, num_curve_targets=48, num_curve_pairs=64)


def test_the_law_holds_for_every_way_of_sharing(world):
    """T8: within 6% of 400 simulated steps at k = 8 and 32, shared, grouped and per target."""
    cells = [(32, k, groups) for k in (8, 32) for groups in (1, 8, 32)]
    measured = _simulated(world, cells, repeats=400, seed=0)
    constants = _measured(world)
    predicted = [
        float(predict_noise(constants, batch_size=n, num_negatives=k, num_groups=groups).total)
        for n, k, groups in cells
    ]
    np.testing.assert_allclose(predicted, measured, rtol=0.06)


def test_the_law_holds_within_sequences():
    """T8: sequences of 4 correlated targets, one set a sequence and shared, within 6% of 400 steps."""
    setting = Setting(name="", mean_norm=2.0, targets_per_sequence=4)
    world = World.of(setting, num_items=ITEMS, dim=DIM, generator=np.random.default_rng(1))
    cells = [(8, 16, 1), (8, 16, 8), (8, 16, 32)]
    measured = _simulated(world, cells, repeats=400, seed=0)
    constants = _measured(world, count=2400)
    predicted = [
        float(
            predict_noise(
                constants, batch_size=n, num_targets=4 * n, num_negatives=k, num_groups=groups
            ).total
        )
        for n, k, groups in cells
    ]
    np.testing.assert_allclose(predicted, measured, rtol=0.06)


def test_noise_falls_as_one_over_n_with_a_set_per_target(world):
    """T8: the fitted slope of log noise against log n at fixed k is -1 within 5%, a set per target."""
    sizes = np.array([8, 32, 128])
    measured = _simulated(world, [(n, 32, n) for n in sizes], repeats=300, seed=1)
    assert np.polyfit(np.log(sizes), np.log(measured), 1)[0] == pytest.approx(-1, abs=0.05)


def _class_noise(world, cells, *, batches, draws):
    """Mean squared distance to the full-softmax gradient of the same batch, in each (n, k, G)."""
    generator = np.random.default_rng(2)
    noise = []
    for n, k, groups in cells:
        total = 0.0
        same_batches = np.random.default_rng(3)  # for every cell
        for _ in range(batches):
            features, targets, logits = world.draw(n, same_batches)
            residual = np.exp(logits - logits.max(1, keepdims=True))
            residual /= residual.sum(1, keepdims=True)
            residual[np.arange(n), targets] -= 1
            full = residual.T @ features / n
            for _ in range(draws):
                gradient = world.step_gradient(
                    (features, targets, logits), num_negatives=k, num_groups=groups, generator=generator
                )
                total += float(((gradient - full) ** 2).sum())
        noise.append(total / batches / draws)
    return np.array(noise)


@pytest.mark.parametrize(("groups", "draws"), [(1, 32), (4, 8), (16, 6)])  # one set fluctuates most
def test_class_noise_falls_as_one_over_k(world, groups, draws):
    """T8: the slope of log class noise against log k is -1 within 5%, shared, grouped and per target."""
    ladder = (512, 1024, 2048)
    noise = _class_noise(world, [(16, k, groups) for k in ladder], batches=60, draws=draws)
    assert np.polyfit(np.log(ladder), np.log(noise), 1)[0] == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize(("sharing", "order"), [("shared", 0), ("grouped", -1), ("per target", -1)])
def test_class_noise_falls_with_n_only_when_sets_are_added(world, sharing, order):
    """T8: the slope of log class noise against log n is 0 when shared, -1 with n/4 or n sets, within 0.05.

    At k = 256 the bias, which no n reduces, is small enough not to flatten the slope.
    """
    sizes = (128, 256, 512) if sharing == "shared" else (16, 32, 64)
    sets = {"shared": lambda n: 1, "grouped": lambda n: n // 4, "per target": lambda n: n}[sharing]
    batches, draws = (40, 6) if sharing == "shared" else (500, 2)
    noise = _class_noise(world, [(n, 256, sets(n)) for n in sizes], batches=batches, draws=draws)
    assert np.polyfit(np.log(sizes), np.log(noise), 1)[0] == pytest.approx(order, abs=0.05)


def test_shared_noise_does_not_fall_with_n_and_grouped_noise_does(world):
    """T8: from n = 32 to 128 the shared part stays within 5%, with n/4 sets it falls by 4 within 10%."""
    constants = _measured(world)

    def shared_part(n, groups):
        return float(predict_noise(constants, batch_size=n, num_negatives=16, num_groups=groups).shared_class)

    assert shared_part(128, 1) == pytest.approx(shared_part(32, 1), rel=0.05)
    assert shared_part(128, 32) == pytest.approx(shared_part(32, 8) / 4, rel=0.1)


def test_workers_count_as_more_targets_and_more_groups():
    """T8: R workers with own negatives are n R sequences with G R sets, to rounding."""
    constants = NoiseConstants.saturating(example=3.0, shared_class=2.0, target_class=5.0, rho=1.5)
    many = predict_noise(constants, batch_size=8, num_negatives=4, num_groups=2, num_workers=3)
    one = predict_noise(constants, batch_size=24, num_negatives=4, num_groups=6)
    assert many.total == pytest.approx(one.total)


def test_saturation_is_exact_at_no_negatives_and_at_many():
    """T9: C_x/(k + rho) at k = 0 is ||e_y - p||^2 for a diffuse softmax, within 1%, and C_x/k for large k."""
    p = np.random.default_rng(0).dirichlet(np.full(5000, 1.0))
    rho = 5000 * (p @ p)
    constants = NoiseConstants.saturating(example=0.0, shared_class=0.0, target_class=rho, rho=rho)
    assert float(constants.target_class(0)) == pytest.approx(1 + p @ p - 2 * p[0], rel=0.01)
    assert float(constants.target_class(1e6)) * 1e6 == pytest.approx(rho, rel=0.01)


def test_curves_are_interpolated_between_rungs():
    """A ladder of octaves of C/(k + rho) reproduces the curve between its rungs to 0.4%."""
    ladder = tuple(2**i for i in range(15))
    curve = Tabulated(coefficient=7.0, num_negatives=ladder, values=tuple(7.0 / (k + 40) for k in ladder))
    k = np.unique(np.geomspace(1, 10**6, 200).round())
    np.testing.assert_allclose(curve(k), 7.0 / (k + 40), rtol=4e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0, "num_negatives": 4, "num_groups": 1}, "batch_size is 0; pass at least 1"),
        ({"batch_size": 2, "num_negatives": 0, "num_groups": 1}, "num_negatives is 0; pass at least 1"),
        ({"batch_size": 2, "num_negatives": 4, "num_groups": 3}, "num_groups ranges from 3 to 3"),
        ({"batch_size": 4, "num_targets": 2, "num_negatives": 4, "num_groups": 1}, "num_targets is 2 for 4"),
        ({"batch_size": 2, "num_negatives": 4, "num_groups": 1, "num_workers": 0}, "num_workers is 0"),
    ],
)
def test_invalid_arguments_are_one_sentence(arguments, message):
    """What is wrong, what was seen, what to do."""
    constants = NoiseConstants.saturating(example=1.0, shared_class=1.0, target_class=1.0)
    with pytest.raises(ArgumentError, match=message) as caught:
        predict_noise(constants, **arguments)
    assert "\n" not in str(caught.value)


def test_a_proposal_that_is_not_a_distribution_is_refused():
    """A log_q that does not sum to one, or cannot draw an item, is refused."""
    with pytest.raises(ArgumentError, match="log_q sums to 2; pass the log of a proposal"):
        OutputLayer.of(features=np.ones((2, 1)), table=np.ones((2, 1)), targets=[0, 1], log_q=[0.0, 0.0])


def test_pair_products_in_blocks_are_the_sums_over_the_catalogue():
    """T8: rho and the diffuse form equal direct sums to rounding, also for targets with the same positive."""
    generator = np.random.default_rng(2)
    features, table = generator.standard_normal((5, 4)), generator.standard_normal((30, 4))
    q = generator.dirichlet(np.full(30, 5.0))
    layer = OutputLayer.of(features=features, table=table, targets=[0, 1, 1, 2, 29], log_q=np.log(q))
    p = np.stack([layer.softmax(index) for index in range(5)])
    pairs = pair_products(layer)
    direct = (p / q) @ p.T
    np.testing.assert_allclose(pairs.diffuse_class_noise, direct * (features @ features.T))
    np.testing.assert_allclose(pairs.rho, direct.diagonal())
