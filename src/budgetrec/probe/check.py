r"""Class noise measured directly, by drawing negatives for the probe's own targets.

All targets share one set of $k$ negatives. With $\epsilon_t = p''_t - p_t$, the squared norm of
$\sum_t w_t \epsilon_t x_t^\top$, minus the part from pairs of one sequence, measures $V_p(k)$, those pairs
measure $V_s(k)$, and the targets alone $V_x(k)$. Errors are dense, but outside of the drawn classes and the
positives they are $-p$, whose products are known.

What is drawn at some k corrects the curves, which come from fewer pairs; fresh draws at others check them.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.products import Products
from budgetrec.probe.sample import Slab
from budgetrec.samplers.alias import AliasTable
from budgetrec.theory.noise import Curve, NoiseConstants, Tabulated

Floats = NDArray[np.float64]

CORRECTED = (16, 64, 256)
CHECKED = (32, 128, 512)
PARTS = ("shared_class", "sequence_class", "target_class")
_CORRECTING, _CHECKING = 48, 24  # sets of negatives at each k
_CURVE_ERROR = 0.05  # relative, of a curve before it is corrected: as seen over seeds


@dataclass(frozen=True, kw_only=True)
class Check:
    """The class noise of one kind of pair at one k: as measured, with its standard error, and by the law.

    `part` names the curve of `NoiseConstants`: pairs that share negatives between sequences (`shared_class`)
    or within one (`sequence_class`), or a target alone (`target_class`).
    """

    part: str
    num_negatives: int
    measured: float
    standard_error: float
    law: float

    @property
    def relative_error(self) -> float:
        """How far the law is above the measurement, relative to it."""
        return self.law / self.measured - 1 if self.measured else math.inf


def correct_curves(
    simulation: "Simulation",
    constants: NoiseConstants,
    *,
    generator: torch.Generator,
    num_negatives: tuple[int, ...] = CORRECTED,
    num_repeats: int = _CORRECTING,
) -> NoiseConstants:
    """Return the constants with the curves of class noise brought to what is drawn.

    The ratio at each k of `num_negatives`, weighed by its precision, is interpolated over log k; towards the
    limit, which is known, it tends to 1.
    """
    checks = check_law(
        simulation, constants, generator=generator, num_negatives=num_negatives, num_repeats=num_repeats
    )
    shared, sequence, target = (
        _corrected(getattr(constants, part), [each for each in checks if each.part == part]) for part in PARTS
    )
    return dataclasses.replace(constants, shared_class=shared, sequence_class=sequence, target_class=target)


def _corrected(curve: Curve, checks: list[Check]) -> Curve:
    if not isinstance(curve, Tabulated) or not checks:
        return curve
    ratios = []
    for each in checks:
        if not each.law:
            ratios.append(1.0)
            continue
        off, error = each.measured / each.law - 1, each.standard_error / abs(each.law)
        of_curve = max(_CURVE_ERROR**2, off**2 - error**2)  # what draws do not explain is the curve's
        ratios.append(1 + off * of_curve / (of_curve + error**2))
    at = np.array([each.num_negatives for each in checks], np.float64)
    ladder = np.asarray(curve.num_negatives, np.float64)
    change = np.interp(np.log(ladder), np.log(at), ratios) - 1
    change *= np.minimum(1.0, at[-1] / ladder)
    return dataclasses.replace(curve, values=tuple((np.asarray(curve.values) * (1 + change)).tolist()))


def check_law(
    simulation: "Simulation",
    constants: NoiseConstants,
    *,
    generator: torch.Generator,
    num_negatives: tuple[int, ...] = CHECKED,
    num_repeats: int = _CHECKING,
) -> tuple[Check, ...]:
    """Measure each part of the class noise at each k of `num_negatives`, and compare it with the law."""
    checks = []
    for k in num_negatives:
        noise = np.stack([simulation.draw(k, generator) for _ in range(num_repeats)])
        for column, part in enumerate(PARTS):
            if part == "sequence_class" and not simulation.has_siblings:
                continue
            measured = float(noise[:, column].mean())
            error = float(noise[:, column].std(ddof=1) / math.sqrt(num_repeats))
            law = float(getattr(constants, part)(k))
            checks.append(Check(part=part, num_negatives=k, measured=measured, standard_error=error, law=law))
    return tuple(checks)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """The targets of all sequences of one size, with everything that does not depend on the draw."""

    weights: Floats  # (count,), of a target
    pair_weights: Floats  # (count,)
    rows: Tensor  # (count, size)
    targets: Tensor
    inner: Tensor  # (count, size, size), x . x'
    overlap: Tensor  # p . p'
    at_targets: Tensor  # p at the positives
    first: Tensor  # (count, size), the first target of the sequence with the same positive


class Simulation:
    """Draws sets of negatives for all targets of a sample."""

    def __init__(self, products: Products, catalogue: Catalogue) -> None:
        sample = products.sample
        device = sample.states.device
        self._sample, self._catalogue = sample, catalogue
        self._drawn_to = products.drawn_to
        self._log_z = products.log_z.float()[:, None]
        self._positive = torch.from_numpy(products.positive).float().to(device)
        self._weighted = sample.states * torch.from_numpy(sample.weights).float().to(device)[:, None]
        self._sets = [self._prepare(products, slab) for slab in sample.slabs()]
        lengths = sample.lengths.astype(np.float64)
        self._num_pairs = lengths.sum() ** 2 - np.square(lengths).sum()
        self._num_siblings = len(lengths) * lengths.mean() * (lengths.mean() - 1)
        self.has_siblings = bool(self._num_siblings > 0)
        # The positives' classes, and the sum over all targets there: sum_t w_t p_tj x_t.
        self._classes, self._place = torch.unique(sample.targets, return_inverse=True)
        self._mass = torch.cat(
            [self._softmax(part).T @ self._weighted for part in torch.split(self._classes, 1024)]
        )
        self._alias = None if catalogue.log_q is None else AliasTable(catalogue.log_q.exp().cpu().numpy())

    def _prepare(self, products: Products, slab: Slab) -> _Set:
        sample = self._sample
        rows = torch.from_numpy(slab.rows).to(sample.states.device)
        found = products.slab_products(slab)
        targets = sample.targets[rows]
        vectors = self._catalogue.table[targets].float()
        logits = torch.bmm(sample.states[rows], vectors.transpose(1, 2))
        return _Set(
            weights=sample.lengths[slab.sequences] / slab.size,
            pair_weights=sample.pair_weights[slab.sequences],
            rows=rows,
            targets=targets,
            inner=torch.from_numpy(found.inner).to(rows.device),
            overlap=torch.from_numpy(found.overlap).float().to(rows.device),
            at_targets=(logits - self._log_z[rows]).exp(),
            first=(targets[:, :, None] == targets[:, None, :]).int().argmax(2),
        )

    def draw(self, k: int, generator: torch.Generator) -> Floats:
        """Draw one set of k negatives; return its estimates of V_p, V_s and V_x."""
        sample = self._sample
        ids, times = torch.unique(self._negatives(k, generator), return_counts=True)
        p = self._softmax(ids)
        ratios = p * (times / k / self._q(ids))
        ratios.masked_fill_(sample.targets[:, None] == ids, 0.0)
        total = ratios.sum(1) + self._positive
        drawn = ratios.div_(total[:, None])  # p'' at the drawn classes
        at_own = self._positive / total  # p'' at the positive
        whole = self._whole(ids, p, drawn, at_own)
        inside, siblings, alone = 0.0, 0.0, 0.0
        for each in self._sets:
            products = self._within(each, ids, p, drawn, at_own)
            pairs, diagonal = products.sum((1, 2)), np.einsum("sii->s", products)
            inside += float(each.weights**2 @ pairs)
            siblings += float(each.pair_weights @ (pairs - diagonal))
            alone += float(each.weights @ diagonal)
        in_sequence = siblings / self._num_siblings if self.has_siblings else 0.0
        return np.array([(whole - inside) / self._num_pairs, in_sequence, alone / sample.lengths.sum()])

    def _negatives(self, k: int, generator: torch.Generator) -> Tensor:
        if self._alias is None:
            count, device = self._catalogue.num_items, generator.device
            drawn = torch.randint(count, (k,), generator=generator, device=device)
        else:
            drawn = self._alias.draw((k,), generator)
        return drawn.to(self._sample.states.device)

    def _softmax(self, ids: Tensor) -> Tensor:
        vectors = self._catalogue.table[ids].float()
        return torch.mm(self._sample.states, vectors.T).sub_(self._log_z).exp_()

    def _q(self, ids: Tensor) -> Tensor | float:
        if self._catalogue.log_q is None:
            return 1 / self._catalogue.num_items
        return self._catalogue.log_q[ids].exp().float()

    def _whole(self, ids: Tensor, p: Tensor, drawn: Tensor, at_own: Tensor) -> float:
        """Return the squared norm of the sum over all targets."""
        mass = p.T @ self._weighted
        found = drawn.T @ self._weighted  # sum of p'' where drawn
        # A drawn class that is the positive of any target counts among the positives.
        place = torch.searchsorted(self._classes, ids).clamp_(max=len(self._classes) - 1)
        both = self._classes[place] == ids
        positives = torch.zeros_like(self._mass).index_add_(0, self._place, self._weighted * at_own[:, None])
        positives.index_add_(0, place[both], found[both])
        elsewhere = self._drawn_to - _square(self._mass) - _square(mass[~both])  # the error there is -p
        return _square(positives - self._mass) + _square(found[~both] - mass[~both]) + elsewhere

    def _within(self, own: _Set, ids: Tensor, p: Tensor, drawn: Tensor, at_own: Tensor) -> Floats:
        """Return the products of all pairs of targets of each sequence, times x . x'."""
        count = len(ids)
        # The column of a positive is that of the drawn class, or else one shared by all targets of the
        # sequence with the same positive.
        column = torch.searchsorted(ids, own.targets).clamp_(max=count - 1)
        column = torch.where(ids[column] == own.targets, column, count + own.first)
        used = torch.zeros_like(own.targets, dtype=torch.bool).scatter_(1, own.first, column >= count)
        seen = torch.cat([p[own.rows], own.at_targets * used[:, None, :]], 2)
        found = torch.cat([drawn[own.rows], torch.zeros_like(own.at_targets)], 2)
        found.scatter_add_(2, column[:, :, None], at_own[own.rows][:, :, None])
        error = found - seen
        gram = torch.bmm(error, error.transpose(1, 2)) + own.overlap - torch.bmm(seen, seen.transpose(1, 2))
        products: Floats = (gram * own.inner).double().cpu().numpy()
        return products


def _square(matrix: Tensor) -> float:
    return float(torch.sum(matrix * matrix))
