r"""Sums over the catalogue of products of targets' softmaxes, in one pass over blocks of classes.

There are too many pairs of different sequences to compute each. Their sum needs only $\sum_t p_{tj} x_t$ for
each class $j$, $O(N K d)$ in total, kept separately for groups of sequences so that each group can be left
out. Pairs of one sequence, and pairs among a few hundred targets (the core), are computed individually.

Throughout, $\tilde p$ is the softmax without the target's own positive.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.probe.catalogue import Block, Catalogue
from budgetrec.probe.sample import Slab, TargetSample

Floats = NDArray[np.float64]

NUM_CORE = 256
_LEAST_LOG = -40.0  # of a probability: the squares of smaller ones are denormal floats, which are slow


@dataclass(frozen=True, kw_only=True)
class PairProducts:
    r"""Leading-order products of all pairs in each set of targets, (sets, m, m): a batch of theory's `Pairs`.

    `example` is $\langle p - y, p' - y' \rangle\, x \cdot x'$, `class_noise` the coefficient of $1/k$ in
    $E\langle\epsilon, \epsilon'\rangle\, x \cdot x'$ (docs/theory.md, T8), `curvature` its part
    $x \cdot x' \sum_j \frac{\tilde p_j \tilde p'_j}{q_j} \sum_j p_j p'_j$, the only part that is
    not a sum of products over classes, and `rho` (sets, m) is $\sum_j p_j^2 / q_j$.
    """

    inner: Floats
    example: Floats
    class_noise: Floats
    curvature: Floats
    overlap: Floats  # p . p'
    rho: Floats


class _Grams:
    """Running sums of the products of all pairs of rows of (sets, m, classes), by fold."""

    def __init__(self, num_folds: int, rows: Tensor, *, uniform: bool) -> None:
        shape = (num_folds, *rows.shape, rows.shape[1])
        self.overlap, self.cubic = (
            torch.zeros(shape, dtype=torch.float64, device=rows.device) for _ in range(2)
        )
        self.weighted = None if uniform else torch.zeros_like(self.overlap)

    def add(self, p: Tensor, squares: Tensor, block: Block) -> None:
        """Add a block of probabilities (sets, m, width) and their squares."""
        turned = p.transpose(1, 2)
        self.overlap[block.fold] += torch.bmm(p, turned) * block.weight
        if self.weighted is None or block.inverse_q is None:
            self.cubic[block.fold] += torch.bmm(squares, turned) * block.weight
        else:
            self.weighted[block.fold] += torch.bmm(p * block.inverse_q, turned) * block.weight
            self.cubic[block.fold] += torch.bmm(squares * block.inverse_q, turned) * block.weight


@dataclass(frozen=True, kw_only=True)
class Products:
    r"""The result of one pass over the catalogue.

    `shared` (groups, groups) sums the class noise of all pairs without `curvature`, `gradient` their example
    noise, and `lengthwise` the same times the length of the first target's sequence. Targets are weighted.
    `drawn_to` is $\|\sum_t w_t p_t x_t^\top\|^2$.
    """

    sample: TargetSample
    log_z: Tensor  # (N,)
    positive: Floats  # (N,), p_y
    shared: Floats
    gradient: Floats
    lengthwise: Floats
    drawn_to: float
    core: NDArray[np.int64]  # rows of the core
    folds: "Folds"

    def slab_products(self, slab: Slab, *, without: int | None = None) -> PairProducts:
        """Return the products within each sequence of a slab, (count, size, size)."""
        return self.folds.products(slab.size, without=without)

    def core_products(self, *, without: int | None = None) -> PairProducts:
        """Return the products among the core, (1, M, M)."""
        return self.folds.products(None, without=without)


class Folds:
    """The Gram matrices by fold of the catalogue. They can be combined with or without one of the folds."""

    def __init__(self, sample: TargetSample, catalogue: Catalogue, log_partitions: Tensor) -> None:
        self._num_items = catalogue.num_items
        self._num_folds = catalogue.num_folds
        self._log_partitions = log_partitions
        self._log_z = log_partitions.logsumexp(0)
        self._sample = sample
        core = torch.from_numpy(sample.spread(NUM_CORE)).to(sample.states.device)
        # Rows of each set of targets, (sets, m), by the size of its slab; None is the core.
        self.rows: dict[int | None, Tensor] = {
            slab.size: torch.from_numpy(slab.rows).to(core.device) for slab in sample.slabs()
        }
        self.rows[None] = core[None]
        self._grams = {
            key: _Grams(catalogue.num_folds, rows, uniform=catalogue.log_q is None)
            for key, rows in self.rows.items()
        }
        ids = sample.targets
        self._vectors = catalogue.table[ids].float()
        self._q = (
            torch.full((len(ids),), 1 / self._num_items, dtype=torch.float64, device=ids.device)
            if catalogue.log_q is None
            else catalogue.log_q[ids].exp()
        )

    def add(self, p: Tensor, squares: Tensor, block: Block) -> None:
        """Add a block of probabilities (N, width) without the targets' own positives, and their squares."""
        for key, rows in self.rows.items():
            if rows.numel() == len(p):  # all rows, in order: no copy needed
                shape = (*rows.shape, -1)
                self._grams[key].add(p.view(shape), squares.view(shape), block)
            else:
                self._grams[key].add(p[rows], squares[rows], block)

    def products(self, key: int | None, *, without: int | None) -> PairProducts:
        """Combine all folds, or all but one, whose share the other sampled folds then make up for."""
        rows, grams, sample = self.rows[key], self._grams[key], self._sample
        counts = torch.ones(self._num_folds, dtype=torch.float64, device=rows.device)
        change = torch.ones_like(
            rows, dtype=torch.float64
        )  # of p, due to the change of the partition function
        log_z = self._log_z[rows]
        if without is not None:
            sampled = self._num_folds - 1
            counts[1:] = sampled / (sampled - 1)
            counts[without] = 0.0
            fewer = (self._log_partitions + counts.log()[:, None]).logsumexp(0)[rows]
            change, log_z = (log_z - fewer).exp(), fewer
        left, right = change[:, :, None], change[:, None, :]
        overlap = torch.einsum("f,fsij->sij", counts, grams.overlap) * left * right
        cubic = torch.einsum("f,fsij->sij", counts, grams.cubic) * left * left * right
        if grams.weighted is None:
            weighted, cubic = overlap * self._num_items, cubic * self._num_items
        else:
            weighted = torch.einsum("f,fsij->sij", counts, grams.weighted) * left * right
        x, targets = sample.states[rows], sample.targets[rows]
        logits = torch.bmm(x, self._vectors[rows].transpose(1, 2)).double()
        at_targets = (logits - log_z[:, :, None]).exp()  # p_t at the positive of t'
        positive = at_targets.diagonal(dim1=1, dim2=2)
        same = (targets[:, :, None] == targets[:, None, :]).double()
        theirs = at_targets.transpose(1, 2) * positive[:, :, None]  # p_y p'_y
        # Both positives were left out; each is added once, and a common one only once.
        overlap = overlap + theirs + theirs.transpose(1, 2) * (1 - same)
        labels = same - at_targets - at_targets.transpose(1, 2) + overlap
        inner = torch.bmm(x, x.transpose(1, 2)).double()
        curvature = weighted * overlap
        influence = weighted + curvature - cubic - cubic.transpose(1, 2)
        influence = influence - positive[:, :, None] * positive[:, None, :] * labels
        rho = weighted.diagonal(dim1=1, dim2=2) + positive * positive / self._q[rows]
        return PairProducts(
            inner=inner.cpu().numpy(),
            example=(inner * labels).cpu().numpy(),
            class_noise=(inner * influence).cpu().numpy(),
            curvature=(inner * curvature).cpu().numpy(),
            overlap=overlap.cpu().numpy(),
            rho=rho.cpu().numpy(),
        )


class _GroupSums:
    """Running sums over all pairs of targets, by their two groups."""

    def __init__(self, sample: TargetSample, catalogue: Catalogue, positive: Tensor) -> None:
        states, device = sample.states, sample.states.device
        weights = torch.from_numpy(sample.weights).float().to(device)[:, None]
        lengths = torch.from_numpy(sample.lengths[sample.sequences]).float().to(device)[:, None]
        self._catalogue = catalogue
        self._positive = positive[:, None]
        self._plain = weights * states
        self._factors = torch.cat([self._plain, self._plain * self._positive, self._plain * lengths], 1)
        # The contribution of own positives to the sums of p - y, of p_y (p - y) and of length (p - y).
        self._labels = self._factors * (self._positive - 1)
        self._rows = sample.group_rows()
        self._group = torch.from_numpy(sample.groups[sample.sequences]).to(device)
        self.shared, self.gradient, self.lengthwise = torch.zeros(
            3, sample.num_groups, sample.num_groups, dtype=torch.float64, device=device
        )
        self.drawn_to = 0.0

    def add(self, p: Tensor, squares: Tensor, block: Block, here: Tensor) -> None:
        """Add a block of probabilities (N, width) without the positives, which it has for the rows `here`."""
        width, dim = p.shape[1], self._plain.shape[1]
        places = self._catalogue.columns[here] - block.start
        # (groups, width, 3d)
        sums = torch.stack([torch.mm(p[rows].T, self._factors[rows]) for rows in self._rows])
        seconds = torch.stack([torch.mm(squares[rows].T, self._plain[rows]) for rows in self._rows])
        first = sums[..., :dim].clone()
        whole = first.sum(0).index_add_(0, places, self._plain[here] * self._positive[here])
        self.drawn_to += block.weight * float((whole * whole).sum())
        slots = self._group[here] * width + places
        sums.view(-1, 3 * dim).index_add_(0, slots, self._labels[here])
        full, hits, long = sums.chunk(3, dim=2)
        tilt = self._catalogue.num_items if block.inverse_q is None else block.inverse_q[:, None]
        class_noise = _gram(first * tilt, first - 2 * seconds) - _gram(hits, hits)
        self.shared += block.weight * (class_noise + class_noise.T) / 2
        self.gradient += block.weight * _gram(full, full)
        self.lengthwise += block.weight * _gram(long, full)


def sum_products(sample: TargetSample, catalogue: Catalogue) -> Products:
    """Pass over the catalogue twice: for the partition functions, and for all sums."""
    states, columns = sample.states, catalogue.columns
    log_partitions = catalogue.log_partitions(states)
    log_z = log_partitions.logsumexp(0)
    own_logits = (states * catalogue.table[sample.targets].float()).sum(1)
    positive = (own_logits.double() - log_z).exp()
    folds = Folds(sample, catalogue, log_partitions)
    sums = _GroupSums(sample, catalogue, positive.float())
    for block in catalogue.blocks(len(states)):
        p = torch.mm(states, block.vectors.T).sub_(log_z.float()[:, None])
        p.clamp_(min=_LEAST_LOG).exp_()
        here = torch.nonzero((columns >= block.start) & (columns < block.stop))[:, 0]
        p[here, columns[here] - block.start] = 0.0
        squares = p * p
        folds.add(p, squares, block)
        sums.add(p, squares, block, here)
    return Products(
        sample=sample,
        log_z=log_z,
        positive=positive.cpu().numpy(),
        shared=sums.shared.cpu().numpy(),
        gradient=sums.gradient.cpu().numpy(),
        lengthwise=sums.lengthwise.cpu().numpy(),
        drawn_to=sums.drawn_to,
        core=folds.rows[None][0].cpu().numpy(),
        folds=folds,
    )


def _gram(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of all pairs of groups (groups, width, d), summed over classes and dimensions."""
    return (left.flatten(1) @ right.flatten(1).T).double()
