r"""Merge millions of classes into a thousand kinds, for the moments at finite k.

The exact moments (docs/theory.md, T10, T11) are sums over classes of smooth functions of $r_j = p_j / q_j$.
Classes in the same cell of a scale of $\log r_j$ (for two targets, of both scales) are replaced by the same
number of equal classes with the cell's mean $r$. The second moment of $r$, which determines the class noise,
loses a share of about the squared width of a cell over 12, and nothing where a class is alone in its cell, as
heavy ones mostly are. The effect of light classes ($r < 1$) varies smoothly with $\log r_j$, so their cells
are wider.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.sample import sum_by
from budgetrec.theory.moments import Target

Floats = NDArray[np.float64]

_WIDTHS = {1: 0.06, 2: 0.2}  # of a cell of heavy classes, for one target and for two
_LIGHT = 3.0  # the cells of the lightest classes are this many times wider
_BETWEEN = 0.2  # the r at which cells are half as dense
_LEAST_LOG = -14.0  # of r: lighter classes never matter


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The kinds of classes of one or two targets, and the number of classes of each kind."""

    targets: tuple[Target, ...]
    q: Floats
    counts: Floats


def merge_classes(
    log_p: Tensor, positives: tuple[int, ...], catalogue: Catalogue, *, width: float | None = None
) -> Kinds:
    """Merge the classes of log-softmaxes (1 or 2 targets, classes) with positives at `positives`.

    Each positive remains a kind of its own. A kind keeps the sums of $q$, $q^2$ and $p$ over its classes.
    """
    bins = _scale(log_p, catalogue, width or _WIDTHS[len(log_p)])
    cells = bins[0] if len(bins) == 1 else bins[0] * (int(bins[1].max()) + 1) + bins[1]
    last = int(cells.max())
    own = sorted(set(positives))
    cells[own] = last + 1 + np.arange(len(own))
    size = last + 1 + len(own)
    many = catalogue.class_weights
    if catalogue.log_q is None:
        total = sum_by(cells, many, size) / catalogue.num_items
        squares = total / catalogue.num_items
    else:
        q = catalogue.q if many is None else catalogue.q * many
        total = sum_by(cells, q, size)
        squares = sum_by(cells, q * catalogue.q, size)
    kept = total > 0
    total, counts = total[kept], total[kept] ** 2 / squares[kept]
    places = np.cumsum(kept) - 1
    targets = []
    for each, positive in zip(log_p.exp().cpu().numpy(), positives, strict=True):
        mass = sum_by(cells, each if many is None else each * many, size)[kept]
        mass /= mass.sum()  # sums to 1, unlike in single precision
        place = int(places[last + 1 + own.index(positive)])
        targets.append(Target.of(mass / counts, total / counts, place))
    return Kinds(targets=tuple(targets), q=total / counts, counts=counts)


def _scale(log_p: Tensor, catalogue: Catalogue, width: float) -> NDArray[np.int64]:
    """Return the cell, from 0, of each class on the scale of each target, (targets, classes)."""
    log_q: Tensor | float = -math.log(catalogue.num_items)
    if catalogue.log_q is not None:
        log_q = catalogue.log_q if catalogue.ids is None else catalogue.log_q[catalogue.ids]
        log_q = log_q.to(log_p.dtype)
    log_r = (log_p - log_q).clamp_(min=_LEAST_LOG)
    # The density of cells is 1 / (light width) + (1 / width - 1 / (light width)) r / (r + between).
    dense = (log_r.exp() / _BETWEEN).log1p_().mul_(1 - 1 / _LIGHT)
    cells = (log_r - _LEAST_LOG).mul_(1 / _LIGHT).add_(dense).mul_(1 / width)
    bins: NDArray[np.int64] = cells.long().cpu().numpy()
    return bins
