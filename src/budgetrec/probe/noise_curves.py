"""Curves of class noise against k, from the exact moments of a sample of targets and pairs (T10 to T12).

As in theory's `measure_constants`, half of the targets and pairs are drawn in proportion to their leading
order and half to |x . x'|. Pairs of different sequences are drawn from the core. The known leading constants
of the whole sample correct the averages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.grouping import Kinds, merge_classes
from budgetrec.probe.leading import core_weights, sum_sequences
from budgetrec.probe.products import Products
from budgetrec.theory.constants import LADDER, calibrate, mix_chances, tabulate
from budgetrec.theory.moments import quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import NOTHING, Curve, NoiseConstants
from budgetrec.theory.raggedness import Raggedness, measure_raggedness

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SOFTMAX_BYTES = 64 * 2**20  # of the softmaxes in memory at once


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Targets (rows, 1) or pairs (rows, 2) with their weights, leading orders and x . x'."""

    rows: Ints
    weights: Floats
    lead: Floats
    inner: Floats


def measure_curves(
    products: Products,
    catalogue: Catalogue,
    leading: dict[str, float],
    *,
    generator: np.random.Generator,
    num_curve_targets: int = 192,
    num_curve_pairs: int = 128,
    ladder: tuple[int, ...] = LADDER,
) -> NoiseConstants:
    """Measure the curves of the law at each k of the ladder; `leading` are the constants of the sample."""
    k = np.asarray(ladder, dtype=np.float64)

    def pair_curves(candidates: Candidates, known: float, scale: float = 1.0) -> tuple[Curve, Curve]:
        drawn = draw_candidates(candidates, num_curve_pairs, generator)
        return _pair_curves(drawn, products, catalogue, known, k, scale)

    singles, siblings = _candidates(products)
    drawn = draw_candidates(singles, num_curve_targets, generator)
    target_class, drift = _target_curves(drawn, products, catalogue, leading["target_class"], k)
    shared, bias = pair_curves(_core_candidates(products), leading["shared_class"])
    sequence: Curve = NOTHING
    if len(siblings.rows) and siblings.lead.any():
        scale = _unevenness(products.sample.lengths)
        sequence, _ = pair_curves(siblings, leading["sequence_class"], scale)
    return NoiseConstants(
        example=leading["example_sequence"],
        target_class=target_class,
        shared_class=shared,
        sequence_class=sequence,
        example_drift=drift,
        bias=bias,
        raggedness=_raggedness(products, leading["gradient"]),
    )


def _raggedness(products: Products, gradient: float) -> Raggedness:
    """Return what the lengths of sequences do to their noise, each estimated from its own targets."""
    lengths = products.sample.lengths.astype(np.float64)
    alone, pairs = sum_sequences(products, "example")
    target, sequence = sum_sequences(products, "class_noise")
    example = alone + pairs - lengths**2 * gradient
    return measure_raggedness(lengths, example=example, target=target, sequence=sequence)


def _unevenness(lengths: Ints) -> float:
    """Return the number of pairs relative to that of equally long sequences, which the law assumes."""
    mean = float(lengths.mean())
    return float((lengths * (lengths - 1)).mean()) / (mean * (mean - 1))


def draw_candidates(candidates: Candidates, size: int, generator: np.random.Generator) -> Candidates:
    """Draw with replacement, half by leading order and half by |x . x'|, both times the weight.

    With the weights of the draw, a plain mean over it is unbiased.
    """
    share = candidates.weights / candidates.weights.sum()
    chance = mix_chances(
        *(part for part in (share * np.abs(candidates.lead), share * np.abs(candidates.inner)) if part.any())
    )
    picks = generator.choice(len(chance), size=size, p=chance)
    return Candidates(
        rows=candidates.rows[picks],
        weights=share[picks] / chance[picks],
        lead=candidates.lead[picks],
        inner=candidates.inner[picks],
    )


def softmax_kinds(rows: Ints, products: Products, catalogue: Catalogue) -> Iterator[Kinds]:
    """Yield the kinds of classes of each target or pair in `rows` (draws, 1 or 2)."""
    width = rows.shape[1]
    columns = catalogue.columns.cpu().numpy()
    step = max(1, _SOFTMAX_BYTES // (4 * catalogue.num_classes * width))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        chosen = torch.from_numpy(part.ravel()).to(products.log_z.device)
        log_p = catalogue.log_softmax(products.sample.states[chosen], products.log_z[chosen])
        for place, own in enumerate(part):
            softmaxes = log_p[place * width : (place + 1) * width]
            yield merge_classes(softmaxes, tuple(columns[own].tolist()), catalogue)


def _candidates(products: Products) -> tuple[Candidates, Candidates]:
    """Return all targets, and all pairs of one sequence."""
    sample = products.sample
    parts: tuple[list[Candidates], list[Candidates]] = ([], [])
    for slab in sample.slabs():
        found = products.slab_products(slab)
        weights = (sample.lengths / sample.sizes, sample.pair_weights)
        places = ((np.arange(slab.size),), np.triu_indices(slab.size, 1))
        for part, weight, chosen in zip(parts, weights, places, strict=True):
            left, right = chosen[0], chosen[-1]
            part.append(
                Candidates(
                    rows=np.stack([slab.rows[:, each].ravel() for each in chosen], axis=1),
                    weights=np.repeat(weight[slab.sequences], len(left)),
                    lead=found.class_noise[:, left, right].ravel(),
                    inner=found.inner[:, left, right].ravel(),
                )
            )
    return _joined(parts[0]), _joined(parts[1])


def _joined(parts: list[Candidates]) -> Candidates:
    names = (field.name for field in fields(Candidates))
    return Candidates(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _core_candidates(products: Products) -> Candidates:
    """Return all pairs of targets of the core from different sequences."""
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
    drawn: Candidates, products: Products, catalogue: Catalogue, known: float, k: Floats
) -> tuple[Curve, Curve]:
    """Return V_x(k), whose leading constant is `known`, and V_d(k)."""
    nodes = quadrature_nodes(k)
    second, drift = np.empty((2, len(drawn.rows), len(k)))
    for row, kinds in enumerate(softmax_kinds(drawn.rows, products, catalogue)):
        moments = target_moments(kinds.targets[0], kinds.q, nodes=nodes, num_negatives=k, counts=kinds.counts)
        second[row], drift[row] = moments.second, moments.example_product
    factor = (drawn.weights * drawn.inner)[:, None]
    values = calibrate(k * second * factor, drawn.lead * drawn.weights, known) / k
    mean_drift = (drift * factor).mean(0)
    ladder = tuple(k.astype(int).tolist())
    limit = float(mean_drift[-1] * k[-1])
    return tabulate(known, ladder, values), tabulate(limit, ladder, mean_drift)


def _pair_curves(
    drawn: Candidates, products: Products, catalogue: Catalogue, known: float, k: Floats, scale: float
) -> tuple[Curve, Curve]:
    """Return V(k) of pairs with shared negatives, whose leading constant is `known`, and without."""
    nodes = quadrature_nodes(k)
    shared, apart = np.empty((2, len(drawn.rows), len(k)))
    for row, kinds in enumerate(softmax_kinds(drawn.rows, products, catalogue)):
        left, right = kinds.targets
        shared[row], apart[row] = shared_products(
            left, right, kinds.q, nodes=nodes, num_negatives=k, counts=kinds.counts
        )
    factor = (drawn.weights * drawn.inner)[:, None]
    values = calibrate(k * shared * factor, drawn.lead * drawn.weights, known / scale) / k
    bias = np.maximum((apart * factor).mean(0), 0.0)
    ladder = tuple(k.astype(int).tolist())
    return tabulate(known, ladder, scale * values), tabulate(0.0, ladder, bias)
