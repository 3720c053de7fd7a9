"""The probe on last layers that are given as arrays: against theory, against loops, against draws."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError, NotFiniteError
from budgetrec.probe.check import Simulation, check_law, correct_curves
from budgetrec.probe.grouping import merge_classes
from budgetrec.probe.leading import CONSTANTS, measure_leading
from budgetrec.probe.noise_curves import measure_curves
from budgetrec.probe.products import sum_products
from budgetrec.probe.sample import TargetSample
from budgetrec.theory.constants import measure_constants, pair_products
from budgetrec.theory.moments import Target, quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import predict_noise
from tests.probe.layers import make_layer

UNEVEN = [1, 2, 3, 5, 8, 13] * 5


@pytest.mark.parametrize("skewed", [False, True])
def test_leading_constants_equal_those_of_all_pairs(skewed):
    """With every target in the core, each leading constant is theory's to 1e-4, for any proposal."""
    layer = make_layer([6] * 40, skewed=skewed, spread=2.0, drift=0.4)
    pairs = pair_products(layer.for_theory())
    within = layer.sequences[:, None] == layer.sequences[None, :]
    siblings = within & ~np.eye(len(within), dtype=bool)
    gradient = pairs.example[~within].mean()
    expected = {
        "example_sequence": pairs.example[within].mean() - gradient,
        "example_target": pairs.example.diagonal().mean() - gradient,
        "gradient": gradient,
        "shared_class": pairs.class_noise[~within].mean(),
        "sequence_class": pairs.class_noise[siblings].mean(),
        "target_class": pairs.class_noise.diagonal().mean(),
        "rho": pairs.rho.mean(),
        "mean_targets": 6.0,
    }
    measured = {name: each.value for name, each in layer.leading().items()}
    assert measured == pytest.approx(expected, rel=1e-4)
    assert tuple(measured) == tuple(CONSTANTS)


def test_sequences_of_different_lengths_are_counted_as_a_step_counts_them():
    """C_y is that of a ratio of sums, and pairs of a sequence are scaled as the law counts them, to 1e-4."""
    layer = make_layer(UNEVEN, drift=0.4)
    lengths = np.bincount(layer.sequences)
    pairs = pair_products(layer.for_theory())
    one_hot = np.eye(len(lengths))[layer.sequences]
    products = one_hot.T @ pairs.example @ one_hot  # <V_s, V_s'>
    apart = ~np.eye(len(lengths), dtype=bool)
    count, mean = len(lengths), lengths.mean()
    gradient = products[apart].sum() / np.outer(lengths, lengths)[apart].sum()
    lengthwise = (lengths[:, None] * products)[apart].sum() / (count * (count - 1))
    example = products.diagonal().mean() - 2 * lengthwise / mean + np.square(lengths).mean() * gradient
    class_noise = one_hot.T @ (pairs.class_noise * ~np.eye(len(layer.targets), dtype=bool)) @ one_hot
    measured = {name: each.value for name, each in layer.leading().items()}
    assert measured["gradient"] == pytest.approx(gradient, rel=1e-4)
    assert measured["example_sequence"] == pytest.approx(example / mean**2, rel=1e-4)
    assert measured["sequence_class"] == pytest.approx(
        class_noise.diagonal().mean() / (mean * (mean - 1)), rel=1e-4
    )
    theory = measure_constants(
        layer.for_theory(), generator=np.random.default_rng(0), num_curve_targets=2, num_curve_pairs=2
    )
    assert measured["sequence_class"] == pytest.approx(theory.sequence_class.coefficient, rel=1e-4)


def test_a_few_positions_of_each_sequence_stand_for_all():
    """Averaged over 200 draws of 3 positions a sequence, each constant is that of all within 4 errors."""
    layer = make_layer(UNEVEN, drift=0.4, num_items=120)
    whole = layer.leading()
    generator = np.random.default_rng(5)
    parts = [layer.leading(positions=3, generator=generator) for _ in range(200)]
    for name in CONSTANTS:
        values = np.array([part[name].value for part in parts])
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert values.mean() == pytest.approx(whole[name].value, abs=4 * error + 1e-6), name


@given(scale=st.floats(0.2, 5.0), seed=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_constants_scale_with_the_states_and_not_with_the_names_of_items(scale, seed):
    """States times c, vectors over c: noise times c squared, rho as before; renamed items change nothing."""
    layer = make_layer([3] * 8, num_items=40, dim=4, seed=seed)
    base = {name: each.value for name, each in layer.leading().items()}
    names = np.random.default_rng(seed).permutation(40)
    table = np.empty_like(layer.table)
    table[names] = layer.table / np.float32(scale)
    other = type(layer)(layer.states * np.float32(scale), names[layer.targets], layer.sequences, table)
    expected = {
        name: value if name in ("rho", "mean_targets") else value * scale**2 for name, value in base.items()
    }
    measured = {name: each.value for name, each in other.leading().items()}
    assert measured == pytest.approx(expected, rel=1e-3, abs=1e-4 * scale**2)


def test_intervals_cover_the_truth():
    """Of 60 samples of 48 sequences, 95% intervals hold each constant of 3,000 sequences in at least 85%."""
    truth = make_layer([4] * 3000, num_items=100, spread=0.8, seed=99).leading()
    covered = dict.fromkeys(CONSTANTS, 0)
    for seed in range(60):
        for name, each in make_layer([4] * 48, num_items=100, spread=0.8, seed=seed).leading().items():
            covered[name] += each.low <= truth[name].value <= each.high
    assert min(covered.values()) >= 0.85 * 60, covered
    assert covered["mean_targets"] == 60
    assert covered["target_class"] < 60


def test_a_sample_of_the_classes_agrees_within_its_stated_error():
    """Over 24 samples of 900 of 3,000 classes, differences are 0.6 to 1.7 stated errors, and 0 on average."""
    layer = make_layer([4] * 20, num_items=3000, spread=1.5)
    whole = layer.leading()
    samples = [layer.leading(max_classes=900, seed=seed) for seed in range(24)]
    for name in ("shared_class", "sequence_class", "target_class", "rho"):
        off = np.array([(each[name].value - whole[name].value) / each[name].class_error for each in samples])
        assert 0.6 < np.sqrt(np.mean(off**2)) < 1.7, (name, off)
        assert abs(off.mean()) < 0.8, (name, off)
        assert whole[name].class_error == 0
        assert samples[0][name].class_error < 0.06 * samples[0][name].value
        assert samples[0][name].error > samples[0][name].class_error


@pytest.mark.parametrize("skewed", [False, True])
def test_kinds_of_classes_give_the_moments_of_all_classes(skewed):
    """At 2,000 items, on the same targets and pairs, merged classes are within 1% at every k."""
    layer = make_layer([2] * 6, num_items=2000, dim=16, spread=2.0, skewed=skewed)
    sample = layer.sample()
    catalogue = layer.catalogue(sample)
    products = sum_products(sample, catalogue)
    q, k = catalogue.q, np.array([1.0, 8.0, 64.0, 512.0, 4096.0])
    nodes = quadrature_nodes(k)
    for t, other in ((0, 1), (0, 2), (4, 9), (6, 7)):
        rows = torch.tensor([t, other])
        log_p = catalogue.log_softmax(sample.states[rows], products.log_z[rows])
        own = tuple(sample.targets[rows].tolist())
        p = log_p.double().softmax(1).numpy()
        exact = [Target.of(each, q, y) for each, y in zip(p, own, strict=True)]
        kinds = merge_classes(log_p, own, catalogue)
        assert len(kinds.q) < 1500
        assert kinds.counts.sum() == pytest.approx(2000, rel=0.2 if skewed else 1e-9)
        merged = shared_products(*kinds.targets, kinds.q, nodes=nodes, num_negatives=k, counts=kinds.counts)
        whole = shared_products(*exact, q, nodes=nodes, num_negatives=k)
        np.testing.assert_allclose(merged[0], whole[0], rtol=0.01)
        np.testing.assert_allclose(merged[1], whole[1], rtol=0.03, atol=1e-3 * np.abs(whole[0]).max())
        single = merge_classes(log_p[:1], own[:1], catalogue)
        moments = target_moments(
            single.targets[0], single.q, nodes=nodes, num_negatives=k, counts=single.counts
        )
        reference = target_moments(exact[0], q, nodes=nodes, num_negatives=k)
        np.testing.assert_allclose(moments.second, reference.second, rtol=0.01)
        np.testing.assert_allclose(moments.example_product, reference.example_product, rtol=0.02)


@given(seed=st.integers(0, 1000), spread=st.floats(0.01, 6.0), pair=st.booleans(), same=st.booleans())
@settings(max_examples=30, deadline=None)
def test_kinds_keep_what_they_stand_for(seed, spread, pair, same):
    """Whatever the softmax: q and p of all kinds sum to one, and positives stay kinds of their own."""
    generator = np.random.default_rng(seed)
    layer = make_layer([1, 1, 1], num_items=60, spread=spread, seed=seed, skewed=seed % 2 == 1)
    sample = layer.sample()
    catalogue = layer.catalogue(sample)
    logits = torch.from_numpy(generator.standard_normal((2 if pair else 1, 60)) * spread).float()
    p = logits.softmax(1)
    own = (7, 7 if same else 3)[: len(p)]
    kinds = merge_classes(logits.log_softmax(1), own, catalogue)
    assert kinds.counts @ kinds.q == pytest.approx(1, rel=1e-6)
    for target, each, positive in zip(kinds.targets, p.double().numpy(), own, strict=True):
        assert kinds.counts[target.positive] == pytest.approx(1)
        assert kinds.q[target.positive] == pytest.approx(catalogue.q[positive])
        assert target.positive_probability == pytest.approx(each[positive], rel=1e-4)
        assert kinds.counts @ target.probabilities == pytest.approx(1 - each[positive], rel=1e-4, abs=1e-6)


def test_curves_are_those_of_theory_within_the_draw_of_pairs():
    """At 2,000 items every curve is theory's within 20% from k = 16 and 8% from k = 128, by 96 draws each."""
    layer = make_layer([6] * 40, num_items=2000, dim=16, spread=1.5)
    theory = measure_constants(
        layer.for_theory(), generator=np.random.default_rng(1), num_curve_targets=96, num_curve_pairs=96
    )
    sample = layer.sample()
    catalogue = layer.catalogue(sample)
    products = sum_products(sample, catalogue)
    leading = {name: each.value for name, each in measure_leading(products, catalogue).items()}
    constants = measure_curves(
        products,
        catalogue,
        leading,
        generator=np.random.default_rng(2),
        num_curve_targets=96,
        num_curve_pairs=96,
    )
    k = 2 ** np.arange(4, 15)
    for name in ("target_class", "shared_class", "sequence_class"):
        off = np.abs(getattr(constants, name)(k) / getattr(theory, name)(k) - 1)
        assert off.max() < 0.2
        assert off[3:].max() < 0.08
    cells = {"batch_size": 16, "num_targets": 96, "num_negatives": k}
    for groups in (1, 16, 96):
        np.testing.assert_allclose(
            predict_noise(constants, num_groups=groups, **cells).total,
            predict_noise(theory, num_groups=groups, **cells).total,
            rtol=0.1,
        )


@pytest.mark.parametrize("skewed", [False, True])
def test_drawn_errors_are_those_of_dense_softmaxes(skewed):
    """For drawn classes with repeats and positives among them, all three parts equal dense sums to 0.1%."""
    layer = make_layer([1, 2, 2, 3, 3, 3], num_items=12, skewed=skewed)
    sample = layer.sample(num_groups=2)
    catalogue = layer.catalogue(sample)
    simulation = Simulation(sum_products(sample, catalogue), catalogue)
    drawn = torch.tensor([3, 3, 0, 5, 7, 3, 1])
    simulation._negatives = lambda k, generator: drawn  # type: ignore[method-assign]
    measured = simulation.draw(7, torch.Generator())
    x, targets = sample.states.double().numpy(), sample.targets.numpy()
    p = torch.softmax(sample.states.double() @ torch.from_numpy(layer.table).double().T, 1).numpy()
    error = -p
    for t, y in enumerate(targets):
        terms = np.zeros(12)
        for j in drawn.tolist():
            if j != y:
                terms[j] += p[t, j] / catalogue.q[j] / 7
        terms[y] = p[t, y]
        error[t] += terms / terms.sum()
    products = (error @ error.T) * (x @ x.T)
    within = sample.sequences[:, None] == sample.sequences[None, :]
    lengths = sample.lengths
    expected = [
        products[~within].sum() / (lengths.sum() ** 2 - np.square(lengths).sum()),
        (products[within].sum() - np.trace(products))
        / (len(lengths) * lengths.mean() * (lengths.mean() - 1)),
        np.trace(products) / lengths.sum(),
    ]
    np.testing.assert_allclose(measured, expected, rtol=1e-3)


def test_the_law_passes_its_own_check():
    """Class noise drawn at k = 16 and 128 for the same targets is the law's within 10% and 4 errors."""
    layer = make_layer(UNEVEN[:24], num_items=500)
    sample = layer.sample(positions=6, generator=np.random.default_rng(0))
    catalogue = layer.catalogue(sample)
    products = sum_products(sample, catalogue)
    leading = {name: each.value for name, each in measure_leading(products, catalogue).items()}
    constants = measure_curves(products, catalogue, leading, generator=np.random.default_rng(1))
    checks = check_law(
        Simulation(products, catalogue),
        constants,
        generator=torch.Generator().manual_seed(0),
        num_negatives=(16, 128),
        num_repeats=200,
    )
    assert [(each.part, each.num_negatives) for each in checks] == [
        (part, k)
        for k, part in itertools.product((16, 128), ("shared_class", "sequence_class", "target_class"))
    ]
    for each in checks:
        assert each.law == pytest.approx(each.measured, abs=4 * each.standard_error + 0.1 * each.measured)
        assert each.relative_error == pytest.approx(each.law / each.measured - 1)


def test_curves_are_corrected_by_what_is_drawn():
    """Curves that are 30% too high or low come within 5% and four errors of the drawn ones; limits stay."""
    layer = make_layer(UNEVEN[:24], num_items=500, spread=2.0)
    sample = layer.sample(positions=6, generator=np.random.default_rng(0))
    catalogue = layer.catalogue(sample)
    products = sum_products(sample, catalogue)
    leading = {name: each.value for name, each in measure_leading(products, catalogue).items()}
    constants = measure_curves(products, catalogue, leading, generator=np.random.default_rng(1))
    spoilt = dataclasses.replace(
        constants,
        **{
            part: dataclasses.replace(curve, values=tuple(factor * value for value in curve.values))
            for part, factor in (("shared_class", 0.7), ("sequence_class", 1.3), ("target_class", 0.7))
            for curve in [getattr(constants, part)]
        },
    )
    simulation = Simulation(products, catalogue)
    generator = torch.Generator().manual_seed(0)
    mended = correct_curves(simulation, spoilt, generator=generator)
    for each in check_law(simulation, mended, generator=generator, num_negatives=(16, 128), num_repeats=96):
        assert each.law == pytest.approx(each.measured, abs=0.05 * each.measured + 4 * each.standard_error)
    for part in ("shared_class", "sequence_class", "target_class"):
        assert getattr(mended, part).coefficient == getattr(constants, part).coefficient


def test_what_cannot_be_probed_is_told():
    """One sequence, lost targets, NaN and a sample of classes that is too small are refused in a sentence."""
    layer = make_layer([3, 3])
    states, targets = torch.from_numpy(layer.states), torch.from_numpy(layer.targets)
    with pytest.raises(
        ArgumentError, match="1 sequence with targets was found; the noise law needs at least 2"
    ):
        TargetSample.of(states, targets, np.zeros(6, np.int64), np.array([6]))
    with pytest.raises(ArgumentError, match="pass at least 2 targets of each sequence that has 2"):
        TargetSample.of(states[:4], targets[:4], np.array([0, 0, 0, 1]), np.array([3, 3]))
    with pytest.raises(NotFiniteError, match="states are NaN or infinite"):
        TargetSample.of(states * torch.nan, targets, layer.sequences, np.array([3, 3]))
    with pytest.raises(ArgumentError, match=r"max_classes is 20, .* pass at least \d+"):
        layer.leading(max_classes=20)
    with pytest.raises(ArgumentError, match=r"pass one log-probability per item, \(300,\)"):
        type(layer)(states.numpy(), layer.targets, layer.sequences, layer.table, np.zeros(3)).leading()
