"""How class noise falls with k, from the exact moments of a sample of targets and pairs (T10 to T12).

Targets and pairs are drawn half in proportion to their leading order and half to |x . x'|, as theory's
`measure_constants` does; pairs of different sequences are drawn among the core. The leading constants of the
whole sample, which are known, correct the averages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.grouping import Kinds, merge_classes
from budgetrec.probe.leading import core_weights
from budgetrec.probe.products import Products
from budgetrec.theory.constants import LADDER, calibrate, mix_chances
from budgetrec.theory.moments import quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import NOTHING, Curve, NoiseConstants, Tabulated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SOFTMAX_BYTES = 64 * 2**20  # of the softmaxes at hand at once


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Targets (rows, 1) or pairs (rows, 2) to draw from: how much each counts, leading order and x . x'."""

    rows: Ints
    weights: Floats
    lead: Floats
    inner: Floats


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A draw of candidates with the factor that makes a plain mean over it unbiased."""

    rows: Ints
    factor: Floats
    lead: Floats
    inner: Floats


def measure_curves(
    products: Products,
    catalogue: Catalogue,
    leading: dict[str, float],
    *,
    generator: np.random.Generator,
    num_curve_targets: int = 384,
    num_curve_pairs: int = 128,
    ladder: tuple[int, ...] = LADDER,
) -> NoiseConstants:
    """Measure the curves of the law at every k of the ladder; `leading` are the constants of the sample."""
    k = np.asarray(ladder, dtype=np.float64)
    singles, siblings = _candidates(products)
    target_class, drift = _target_curves(
        draw_candidates(singles, num_curve_targets, generator), products, catalogue, leading, k
    )
    strangers = _core_candidates(products)
    shared, bias = _pair_curves(
        draw_candidates(strangers, num_curve_pairs, generator),
        products,
        catalogue,
        leading["shared_class"],
        k,
    )
    sequence: Curve = NOTHING
    if len(siblings.rows) and siblings.lead.any():
        sequence, _ = _pair_curves(
            draw_candidates(siblings, num_curve_pairs, generator),
            products,
            catalogue,
            leading["sequence_class"],
            k,
            scale=_unevenness(products.sample.lengths),
        )
    return NoiseConstants(
        example=leading["example_sequence"],
        target_class=target_class,
        shared_class=shared,
        sequence_class=sequence,
        example_drift=drift,
        bias=bias,
    )


def _unevenness(lengths: Ints) -> float:
    """Say how many pairs sequences hold for each that the law counts, which takes all for equally long."""
    mean = float(lengths.mean())
    return float((lengths * (lengths - 1)).mean()) / (mean * (mean - 1))


def draw_candidates(candidates: Candidates, size: int, generator: np.random.Generator) -> Drawn:
    """Draw with replacement, half by leading order and half by |x . x'|, each times its weight."""
    share = candidates.weights / candidates.weights.sum()
    chance = mix_chances(
        *(part for part in (share * np.abs(candidates.lead), share * np.abs(candidates.inner)) if part.any())
    )
    picks = generator.choice(len(chance), size=size, p=chance)
    return Drawn(
        rows=candidates.rows[picks],
        factor=share[picks] / chance[picks],
        lead=candidates.lead[picks],
        inner=candidates.inner[picks],
    )


def softmax_kinds(rows: Ints, products: Products, catalogue: Catalogue) -> Iterator[Kinds]:
    """Return the kinds of classes that each target or pair of `rows` (draws, 1 or 2) sees."""
    width = rows.shape[1]
    columns = catalogue.columns.cpu().numpy()
    step = max(1, _SOFTMAX_BYTES // (4 * catalogue.num_classes * width))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        chosen = torch.from_numpy(part.ravel()).to(products.log_z.device)
        log_p = catalogue.log_softmax(products.sample.states[chosen], products.log_z[chosen])
        for place, own in enumerate(part):
            yield merge_classes(
                log_p[place * width : (place + 1) * width], tuple(columns[own].tolist()), catalogue
            )


def _candidates(products: Products) -> tuple[Candidates, Candidates]:
    """Return all targets, and all pairs of one sequence."""
    sample = products.sample
    singles: list[tuple[Ints, Floats, Floats, Floats]] = []
    pairs: list[tuple[Ints, Floats, Floats, Floats]] = []
    for slab in sample.slabs():
        found = products.slab_products(slab)
        rows = slab.rows
        singles.append(
            (
                rows.reshape(-1, 1),
                sample.weights[rows.ravel()],
                np.einsum("sii->si", found.class_noise).ravel(),
                np.einsum("sii->si", found.inner).ravel(),
            )
        )
        left, right = np.triu_indices(slab.size, 1)
        pairs.append(
            (
                np.stack([rows[:, left].ravel(), rows[:, right].ravel()], axis=1),
                np.repeat(sample.pair_weights[slab.sequences], len(left)),
                found.class_noise[:, left, right].ravel(),
                found.inner[:, left, right].ravel(),
            )
        )
    return _joined(singles), _joined(pairs)


def _joined(parts: list[tuple[Ints, Floats, Floats, Floats]]) -> Candidates:
    rows, weights, lead, inner = zip(*parts, strict=True)
    return Candidates(
        rows=np.concatenate(rows),
        weights=np.concatenate(weights),
        lead=np.concatenate(lead),
        inner=np.concatenate(inner),
    )


def _core_candidates(products: Products) -> Candidates:
    """Return all pairs of the core that are of different sequences."""
    found = products.core_products()
    weights = np.triu(core_weights(products.sample, products.core), 1)
    left, right = np.nonzero(weights)
    return Candidates(
        rows=np.stack([products.core[left], products.core[right]], axis=1),
        weights=weights[left, right],
        lead=found.class_noise[0][left, right],
        inner=found.inner[0][left, right],
    )


def _target_curves(
    drawn: Drawn, products: Products, catalogue: Catalogue, leading: dict[str, float], k: Floats
) -> tuple[Curve, Curve]:
    """V_x(k) and V_d(k)."""
    nodes = quadrature_nodes(k)
    second, drift = np.empty((2, len(drawn.rows), len(k)))
    for row, kinds in enumerate(softmax_kinds(drawn.rows, products, catalogue)):
        moments = target_moments(kinds.targets[0], kinds.q, nodes=nodes, num_negatives=k, counts=kinds.counts)
        second[row], drift[row] = moments.second, moments.example_product
    factor = (drawn.factor * drawn.inner)[:, None]
    known = leading["target_class"]
    values = calibrate(k * second * factor, drawn.lead * drawn.factor, known) / k
    mean_drift = (drift * factor).mean(0)
    return tabulate(known, k, values), tabulate(float(mean_drift[-1] * k[-1]), k, mean_drift)


def _pair_curves(
    drawn: Drawn, products: Products, catalogue: Catalogue, known: float, k: Floats, *, scale: float = 1.0
) -> tuple[Curve, Curve]:
    """V(k) of pairs that share negatives, whose leading constant is `known`, and of pairs that do not."""
    nodes = quadrature_nodes(k)
    shared, apart = np.empty((2, len(drawn.rows), len(k)))
    for row, kinds in enumerate(softmax_kinds(drawn.rows, products, catalogue)):
        left, right = kinds.targets
        shared[row], apart[row] = shared_products(
            left, right, kinds.q, nodes=nodes, num_negatives=k, counts=kinds.counts
        )
    factor = (drawn.factor * drawn.inner)[:, None]
    values = calibrate(k * shared * factor, drawn.lead * drawn.factor, known / scale) / k
    bias = np.maximum((apart * factor).mean(0), 0.0)
    return tabulate(known, k, scale * values), tabulate(0.0, k, bias)


def tabulate(coefficient: float, k: Floats, values: Floats) -> Curve:
    """Make a curve of values at each k."""
    return Tabulated(
        coefficient=coefficient,
        num_negatives=tuple(int(each) for each in k),
        values=tuple(float(value) for value in values),
    )
