"""Steps that are taken on the sample of a probe: against dense gradients, and against the law."""

import dataclasses
import itertools
from functools import cache

import numpy as np
import pytest
import torch

from budgetrec.errors import ArgumentError
from budgetrec.probe import check_allocation
from budgetrec.probe.example import measure_example, num_example_targets
from budgetrec.probe.leading import measure_leading
from budgetrec.probe.measure import measure_layer
from budgetrec.probe.products import sum_products
from budgetrec.probe.steps import _Steps
from tests.probe.layers import make_layer

UNEVEN = [1, 2, 3, 5, 8, 13] * 5


def probe_of(layer, *, positions=None, seed=0):
    """Probe all or some of the targets of a layer."""
    sample = layer.sample(positions=positions, generator=np.random.default_rng(seed))
    log_q = None if layer.log_q is None else torch.from_numpy(layer.log_q)
    return measure_layer(
        sample, torch.from_numpy(layer.table), log_q=log_q, generator=torch.Generator().manual_seed(seed)
    )


@cache
def small_probe(skewed):
    """Probe a dozen items."""
    layer = make_layer([1, 2, 2, 3, 3, 3], num_items=12, skewed=skewed)
    return layer, probe_of(layer).layer


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("sharing", ["batch", "sequence", "target"])
def test_steps_are_dense_gradients(sharing, skewed):
    """With all targets kept, sparse rows give the squared norms of dense gradients to 0.1%, hits included."""
    layer, probed = small_probe(skewed)
    steps = _Steps(probed, 9, sharing)
    drawn = []
    draw = steps._negatives

    def remember(shape, generator):
        drawn.append((shape, *draw(shape, generator)))
        return drawn[-1][1:]

    steps._negatives = remember
    generator = torch.Generator().manual_seed(1)
    inside, across = steps.draw(4, generator)
    chosen = torch.randperm(6, generator=torch.Generator().manual_seed(1))[:4].numpy()
    shape, ids, log_times = drawn[0]
    sample = probed.sample
    gradients, example = [], 0.0
    for place, sequence in enumerate(chosen):
        rows = np.flatnonzero(sample.sequences == sequence)
        gradient, full = np.zeros_like(layer.table), np.zeros_like(layer.table)
        alone, alone_full = 0.0, 0.0
        for column, row in enumerate(rows):
            group = {"batch": 0, "sequence": place, "target": place * shape[1] + column}[sharing]
            x, y = sample.states[row].numpy(), int(sample.targets[row])
            scores = np.full(12, -np.inf)
            for item, shift in zip(ids[group].tolist(), log_times[group].tolist(), strict=True):
                if item != y and np.isfinite(shift):
                    scores[item] = layer.table[item] @ x + shift
            scores[y] = layer.table[y] @ x
            error = np.exp(scores) / np.exp(scores).sum()
            p = np.exp(layer.table @ x) / np.exp(layer.table @ x).sum()
            error[y], p[y] = error[y] - 1, p[y] - 1
            gradient += np.outer(error, x)
            full += np.outer(p, x)
            alone += (error @ error) * (x @ x)
            alone_full += (p @ p) * (x @ x)
        of_sequence = np.square(gradient).sum()
        if sharing == "target":
            of_sequence = alone + np.square(full).sum() - alone_full
        example += of_sequence - np.square(full).sum()
        gradients.append(gradient)
    total = sample.lengths[chosen].sum() ** 2
    assert inside == pytest.approx(example / total, rel=1e-3, abs=1e-6)
    if sharing == "batch":
        whole = np.square(sum(gradients)).sum() - sum(np.square(each).sum() for each in gradients)
        assert across == pytest.approx(whole / total, rel=1e-3, abs=1e-6)


def test_an_allocation_is_checked_with_its_n():
    """Ragged sequences, n = 3, 12 and 1,000 and every sharing: the law is within 6% and three errors."""
    probe = probe_of(make_layer(UNEVEN * 3, num_items=300), positions=6)
    for n, sharing in itertools.product((3, 12, 1000), ("batch", "sequence", "target")):
        check = check_allocation(
            probe.layer,
            batch_size=n,
            num_negatives=48,
            sharing=sharing,
            generator=torch.Generator().manual_seed(n),
        )
        assert check.drawn_batch_size == min(n, 45)
        assert check.relative_standard_error < 0.03
        assert check.relative_error == pytest.approx(check.law / check.measured - 1)
        assert abs(check.relative_error) < 0.06 + 3 * check.relative_standard_error, check


def test_a_wrong_law_is_found_out():
    """Where shared noise dominates, half of it in the constants shows as an error of -30% to -50%."""
    probe = probe_of(make_layer(UNEVEN, num_items=300))
    curve = probe.constants.shared_class
    half = dataclasses.replace(curve, values=tuple(value / 2 for value in curve.values))
    wrong = dataclasses.replace(probe.constants, shared_class=half)
    layer = dataclasses.replace(probe.layer, constants=wrong)
    point = {"batch_size": 1000, "num_negatives": 32, "sharing": "batch"}
    right = check_allocation(probe.layer, generator=torch.Generator().manual_seed(0), **point)
    check = check_allocation(layer, generator=torch.Generator().manual_seed(0), **point)
    assert abs(right.relative_error) < 0.1
    assert -0.5 < check.relative_error < -0.3


def test_an_allocation_that_is_none_is_refused():
    """An unknown sharing and no sequences are refused in a sentence."""
    layer = probe_of(make_layer([2] * 16, num_items=40)).layer
    generator = torch.Generator()
    with pytest.raises(ArgumentError, match="sharing is 'none'; pass one of 'batch', 'sequence', 'target'"):
        check_allocation(layer, batch_size=4, num_negatives=4, sharing="none", generator=generator)
    with pytest.raises(ArgumentError, match="batch_size is 0 and num_negatives 4; pass at least 1 of each"):
        check_allocation(layer, batch_size=0, num_negatives=4, sharing="batch", generator=generator)


def test_example_noise_of_a_larger_sample_is_that_of_all_products():
    """On the same targets, subsampled or not, constants are those of `measure_leading` to 1e-4."""
    layer = make_layer(UNEVEN, drift=0.4)
    for positions in (None, 4):
        sample = layer.sample(positions=positions, generator=np.random.default_rng(0))
        catalogue = layer.catalogue(sample)
        with torch.inference_mode():
            found = measure_example(sample, catalogue).estimates
            leading = measure_leading(sum_products(sample, catalogue), catalogue)
        for name in ("example_target", "gradient", "mean_targets"):
            assert found[name].value == pytest.approx(leading[name].value, rel=1e-4)
            assert found[name].error == pytest.approx(leading[name].error, rel=1e-3)
        centred = leading["example_sequence"].value + leading["gradient"].value
        assert found["squares"].value == pytest.approx(centred, rel=0.1)


def test_a_larger_sample_brings_the_error_of_the_gradient_down():
    """With eight times as many targets the gradient's squared norm scatters at most half as much."""
    small, large = [], []
    for seed in range(24):
        layer = make_layer([4] * 320, num_items=120, seed=seed, drift=0.3)
        for count, found in ((160, small), (1280, large)):
            part = type(layer)(
                layer.states[:count], layer.targets[:count], layer.sequences[:count], layer.table
            )
            sample = part.sample()
            found.append(measure_example(sample, part.catalogue(sample)).estimates["gradient"].value)
    assert np.std(large) < 0.5 * np.std(small)
    assert np.mean(large) == pytest.approx(np.mean(small), abs=3 * np.std(small) / 24**0.5)


def test_the_larger_sample_stays_within_two_seconds():
    """8 times as many targets where the catalogue is small; none where it would take longer."""
    assert num_example_targets(2048, 2_000, 64) == 8 * 2048
    assert num_example_targets(2048, 12_000, 64) == 11_184
    assert num_example_targets(2048, 100_000, 64) == 0
