r"""The constants of the noise law, computed from a model's last layer and a sample of its targets.

The leading orders come from every pair of targets, through Gram matrices over blocks of the catalogue (T8).
Their saturation at finite k comes from the exact moments of moments.py on a sample of targets and pairs,
drawn in proportion to their contribution (T12).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.errors import ArgumentError
from budgetrec.theory.moments import Target, quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import NOTHING, Curve, NoiseConstants, Tabulated
from budgetrec.theory.raggedness import Raggedness, measure_raggedness

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LADDER = tuple(2**power for power in range(15))
_BLOCK_NUMBERS = 1 << 22  # numbers in one block of the (targets, classes) table: 32 MiB


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """The last layer and a sample of targets, validated: everything the constants depend on.

    `features` are (N, d), `table` is (K, d), `targets` (N,) are class ids, `log_q` (K,) is the log proposal
    and `sequences` (N,) is the sequence of each target (by default each is its own).
    """

    features: Floats
    table: Floats
    targets: Ints
    log_q: Floats
    sequences: Ints

    @classmethod
    def of(
        cls,
        *,
        features: ArrayLike,
        table: ArrayLike,
        targets: ArrayLike,
        log_q: ArrayLike,
        sequences: ArrayLike | None = None,
    ) -> "OutputLayer":
        """Convert arrays of any float type and check that their shapes match."""
        x = np.asarray(features, dtype=np.float64)
        w = np.asarray(table, dtype=np.float64)
        y = np.asarray(targets, dtype=np.int64)
        proposal = np.asarray(log_q, dtype=np.float64)
        owner = np.arange(len(y)) if sequences is None else np.asarray(sequences, dtype=np.int64)
        if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1]:
            raise ArgumentError(
                f"features {x.shape} and table {w.shape} do not match; pass (targets, dim) and (items, dim)."
            )
        if y.shape != x.shape[:1] or owner.shape != y.shape:
            raise ArgumentError(
                f"{len(x)} features came with targets {y.shape} and sequences {owner.shape}; "
                "pass one of each per target."
            )
        if proposal.shape != w.shape[:1]:
            raise ArgumentError(
                f"log_q has shape {proposal.shape} for {len(w)} items; pass one number per item."
            )
        if len(y) and (y.min() < 0 or y.max() >= len(w)):
            raise ArgumentError(
                f"targets range from {y.min()} to {y.max()}; pass item ids from 0 to {len(w) - 1}."
            )
        if not np.isclose(np.exp(proposal).sum(), 1.0, rtol=1e-4) or np.any(np.isneginf(proposal)):
            raise ArgumentError(
                f"log_q sums to {np.exp(proposal).sum():.6g}; "
                "pass the log of a proposal that can draw every item."
            )
        if len(np.unique(owner)) < 2:
            raise ArgumentError("all targets belong to one sequence; pass targets of at least 2 sequences.")
        owner = np.unique(owner, return_inverse=True)[1].astype(np.int64)
        return cls(features=x, table=w, targets=y, log_q=proposal, sequences=owner)

    def softmax(self, index: int) -> Floats:
        """Return the softmax of one target over the whole catalogue."""
        logits = self.table @ self.features[index]
        p = np.exp(logits - logits.max())
        normal: Floats = p / p.sum()
        return normal

    def target(self, index: int) -> Target:
        """Return one target with its softmax over the whole catalogue."""
        return Target.of(self.softmax(index), np.exp(self.log_q), int(self.targets[index]))

    def softmax_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield the softmax in blocks of the catalogue, (N, block) each."""
        width = max(1, _BLOCK_NUMBERS // len(self.features))
        blocks = [slice(start, start + width) for start in range(0, len(self.table), width)]
        log_z = np.full(len(self.features), -np.inf)
        for block in blocks:
            logits = self.features @ self.table[block].T
            peak = logits.max(1)
            log_z = np.logaddexp(log_z, peak + np.log(np.exp(logits - peak[:, None]).sum(1)))
        for block in blocks:
            yield block, np.exp(self.features @ self.table[block].T - log_z[:, None])


@dataclass(frozen=True, kw_only=True)
class Pairs:
    r"""Leading-order products of all pairs of targets, (N, N), which the constants average.

    `example` is $\langle p_t - y_t, p_{t'} - y_{t'} \rangle\, x_t \cdot x_{t'}$. `class_noise` is the
    coefficient of $1/k$ in $E\langle\epsilon_t, \epsilon_{t'}\rangle\, x_t \cdot x_{t'}$ over a shared set
    (T8):

    $$\sum_{j \ne y, y'} \frac{p_j p'_j}{q_j} \big(1 - p_j - p'_j + p \cdot p'\big)
      - p_y p'_{y'} (e_y - p) \cdot (e_{y'} - p').$$

    `diffuse_class_noise` keeps only $\sum_j p_j p'_j / q_j$, the form for a softmax spread over many classes.
    """

    example: Floats
    class_noise: Floats
    diffuse_class_noise: Floats
    rho: Floats  # (N,), sum_j p_j^2 / q_j


def pair_products(layer: OutputLayer) -> Pairs:
    """Compute the products of all pairs of targets exactly, in blocks of the catalogue."""
    count = len(layer.features)
    overlap, weighted, cubic = (np.zeros((count, count)) for _ in range(3))
    own = np.arange(count)
    at_targets = np.empty((count, count))  # p_t at the positive of t'
    for block, p in layer.softmax_blocks():
        inverse_q = np.exp(-layer.log_q[block])
        start = block.start
        here = np.flatnonzero((layer.targets >= start) & (layer.targets < start + p.shape[1]))
        at_targets[:, here] = p[:, layer.targets[here] - start]
        overlap += p @ p.T
        p[here, layer.targets[here] - start] = 0.0
        tilted = p * inverse_q
        weighted += tilted @ p.T
        cubic += (tilted * p) @ p.T
    positive = at_targets[own, own]
    same = (layer.targets[:, None] == layer.targets[None, :]).astype(np.float64)
    labels = same - at_targets - at_targets.T + overlap  # (e_y - p) . (e_y' - p')
    inner = layer.features @ layer.features.T
    # `weighted` leaves out the two positives (one, if they are the same).
    at_mine = positive[:, None] * at_targets.T / np.exp(layer.log_q[layer.targets])[:, None]
    diffuse = weighted + at_mine + at_mine.T * (1 - same)
    influence = weighted * (1 + overlap) - cubic - cubic.T - np.outer(positive, positive) * labels
    return Pairs(
        example=inner * labels,
        class_noise=inner * influence,
        diffuse_class_noise=inner * diffuse,
        rho=diffuse[own, own],
    )


def measure_constants(
    layer: OutputLayer,
    *,
    generator: np.random.Generator,
    pairs: Pairs | None = None,
    num_curve_targets: int = 128,
    num_curve_pairs: int = 128,
    ladder: tuple[int, ...] = LADDER,
) -> NoiseConstants:
    """Measure the constants of the law from the targets of `layer` (and their `pairs`, if already computed).

    The sample represents a larger population, so averages over pairs exclude the pair of a target with
    itself. The curves are exact for each of `num_curve_targets` targets and `num_curve_pairs` pairs (of each
    kind) drawn by `generator`.
    """
    pairs = pairs or pair_products(layer)
    count = len(layer.features)
    within = layer.sequences[:, None] == layer.sequences[None, :]
    num_sequences = int(layer.sequences.max()) + 1
    gradient = float(pairs.example[~within].mean())
    example = num_sequences / count**2 * float(pairs.example[within].sum()) - gradient
    target_class, drift = _target_curves(layer, pairs, generator, num_curve_targets, ladder)
    shared_class, bias = _pair_curves(layer, pairs, ~within, generator, num_curve_pairs, ladder)
    sequence_class: Curve = NOTHING
    siblings = within & ~np.eye(count, dtype=bool)
    if siblings.any():
        # Long sequences have more pairs than the (1/n - 1/T) T^2 of the law: scale the curve to make up for
        # it.
        uneven = float(siblings.sum()) / count**2 / (1 / num_sequences - 1 / count)
        sequence_class, _ = _pair_curves(layer, pairs, siblings, generator, num_curve_pairs, ladder, uneven)
    return NoiseConstants(
        example=example,
        target_class=target_class,
        shared_class=shared_class,
        sequence_class=sequence_class,
        example_drift=drift,
        bias=bias,
        raggedness=_raggedness(layer, pairs, gradient),
    )


def _raggedness(layer: OutputLayer, pairs: Pairs, gradient: float) -> Raggedness:
    """Sum the products of each sequence, and return what its length does to them."""
    owner = np.eye(int(layer.sequences.max()) + 1)[layer.sequences]
    lengths, own = owner.sum(0), pairs.class_noise.diagonal() @ owner
    return measure_raggedness(
        lengths,
        example=np.einsum("ts,ts->s", owner, pairs.example @ owner) - lengths**2 * gradient,
        target=own,
        sequence=np.einsum("ts,ts->s", owner, pairs.class_noise @ owner) - own,
    )


def _target_curves(
    layer: OutputLayer, pairs: Pairs, generator: np.random.Generator, size: int, ladder: tuple[int, ...]
) -> tuple[Curve, Curve]:
    """Return V_x(k) and V_d(k); half of the sample is drawn by class noise (for large k), half by ||x||^2."""
    k, q = np.asarray(ladder, dtype=np.float64), np.exp(layer.log_q)
    nodes = quadrature_nodes(k)
    lead = pairs.class_noise.diagonal()
    if not lead.any():
        return NOTHING, NOTHING
    square = np.einsum("td,td->t", layer.features, layer.features)
    picks, weight = _importance_sample(lead, square, generator, size)
    second, drift = np.empty((size, len(k))), np.empty((size, len(k)))
    for row, index in enumerate(picks):
        moments = target_moments(layer.target(index), q, nodes=nodes, num_negatives=k)
        second[row] = square[index] * moments.second
        drift[row] = square[index] * moments.example_product
    values = calibrate(k * second * weight[:, None], lead[picks] * weight, float(lead.mean())) / k
    mean_drift = weight @ drift / size
    return (
        tabulate(float(lead.mean()), ladder, values),
        tabulate(float(mean_drift[-1] * k[-1]), ladder, mean_drift),
    )


def _pair_curves(
    layer: OutputLayer,
    pairs: Pairs,
    chosen: NDArray[np.bool_],
    generator: np.random.Generator,
    size: int,
    ladder: tuple[int, ...],
    scale: float = 1.0,
) -> tuple[Curve, Curve]:
    """Return V(k) of the `chosen` pairs with shared and with independent negatives.

    Pairs are drawn half by |c|, their leading order, and half by |x . x'|.
    """
    k, q = np.asarray(ladder, dtype=np.float64), np.exp(layer.log_q)
    nodes = quadrature_nodes(k)
    rows, columns = np.nonzero(chosen)
    lead = pairs.class_noise[rows, columns]
    if not lead.any():
        return NOTHING, NOTHING
    inner = (layer.features @ layer.features.T)[rows, columns]
    picks, weight = _importance_sample(lead, np.abs(inner), generator, size)
    shared, apart = np.empty((size, len(k))), np.empty((size, len(k)))
    for row, pick in enumerate(picks):
        left, right = layer.target(rows[pick]), layer.target(columns[pick])
        products = shared_products(left, right, q, nodes=nodes, num_negatives=k)
        shared[row], apart[row] = inner[pick] * products[0], inner[pick] * products[1]
    values = calibrate(k * shared * weight[:, None], lead[picks] * weight, float(lead.mean())) / k
    bias = np.maximum(weight @ apart / size, 0.0)
    shared_curve = tabulate(scale * float(lead.mean()), ladder, scale * values)
    return shared_curve, tabulate(0.0, ladder, bias)


def _importance_sample(
    lead: Floats, size_of: Floats, generator: np.random.Generator, size: int
) -> tuple[NDArray[np.intp], Floats]:
    """Draw `size` places, half by |lead| and half by `size_of`; return them with their weights."""
    chance = mix_chances(np.abs(lead), size_of)
    picks = generator.choice(len(lead), size=size, p=chance)
    return picks, 1 / (chance[picks] * len(lead))


def mix_chances(*importances: Floats) -> Floats:
    """Return the even mixture of several importances as probabilities, so that none is under-sampled."""
    chance: Floats = sum((part / part.sum() for part in importances), np.zeros(1)) / len(importances)
    return chance


def calibrate(sampled: Floats, lead: Floats, known: float) -> Floats:
    """Return the mean of each column of `sampled`, with `lead` and its `known` mean as a control variate.

    The slope is fitted for each k. It is near 1 at large k, where the sampling error vanishes.
    """
    off = lead - lead.mean()
    slope = off @ sampled / max(float(off @ off), np.finfo(np.float64).tiny)
    mean: Floats = sampled.mean(0) + slope * (known - lead.mean())
    return mean


def tabulate(coefficient: float, ladder: tuple[int, ...], values: Floats) -> Curve:
    """Return the curve with `values` at the k of the ladder and the limit `coefficient`."""
    return Tabulated(coefficient=coefficient, num_negatives=ladder, values=tuple(values.tolist()))
