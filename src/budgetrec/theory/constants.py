r"""The constants of the noise law, from arrays: a model's last layer and a sample of its targets.

The leading orders come from every pair of targets, through Gram matrices over the catalogue in blocks (T8).
How they saturate at finite k comes from the exact moments of moments.py on a sample of targets and pairs,
drawn in proportion to what they contribute (T12).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.errors import ArgumentError
from budgetrec.theory.moments import Target, quadrature_nodes, shared_products, target_moments
from budgetrec.theory.noise import NOTHING, Curve, NoiseConstants, Tabulated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LADDER = tuple(2**power for power in range(15))
_BLOCK_NUMBERS = 1 << 22  # numbers in one block of the (targets, classes) table: 32 MiB


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """The last layer seen by a sample of targets: everything the constants depend on, checked.

    `features` (N, d), `table` (K, d), `targets` (N,) class ids, `log_q` (K,) the proposal in logs,
    `sequences` (N,) the sequence each target belongs to (its own when left out).
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
        """Take arrays of any float type and check that they belong together."""
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
                "pass one of each for every target."
            )
        if proposal.shape != w.shape[:1]:
            raise ArgumentError(
                f"log_q has shape {proposal.shape} for {len(w)} items; pass one number an item."
            )
        if len(y) and (y.min() < 0 or y.max() >= len(w)):
            raise ArgumentError(f"targets lie in [{y.min()}, {y.max()}] but items are 0 to {len(w) - 1}.")
        if not np.isclose(np.exp(proposal).sum(), 1.0, rtol=1e-4) or np.any(np.isneginf(proposal)):
            raise ArgumentError(
                f"log_q sums to {np.exp(proposal).sum():.6g}; "
                "pass the log of a proposal that can draw every item."
            )
        if len(np.unique(owner)) < 2:
            raise ArgumentError(
                "all targets belong to one sequence; the constants need at least 2 sequences."
            )
        owner = np.unique(owner, return_inverse=True)[1].astype(np.int64)
        return cls(features=x, table=w, targets=y, log_q=proposal, sequences=owner)

    def softmax(self, index: int) -> Floats:
        """Return the softmax of one target over the whole catalogue."""
        logits = self.table @ self.features[index]
        p = np.exp(logits - logits.max())
        normal: Floats = p / p.sum()
        return normal

    def softmax_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Walk over the catalogue in blocks of the softmax, (N, block) at a time."""
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
    r"""Leading-order products of every two targets, (N, N): what the constants are averages of.

    `example` is $\langle p_t - y_t, p_{t'} - y_{t'} \rangle\, x_t \cdot x_{t'}$. `class_noise` is the
    coefficient of $1/k$ in $E\langle\epsilon_t, \epsilon_{t'}\rangle\, x_t \cdot x_{t'}$ over a shared set
    (T8):

    $$\sum_{j \ne y, y'} \frac{p_j p'_j}{q_j} \big(1 - p_j - p'_j + p \cdot p'\big)
      - p_y p'_{y'} (e_y - p) \cdot (e_{y'} - p').$$

    `diffuse_class_noise` keeps only $\sum_j p_j p'_j / q_j$, the note's form for a softmax spread over many
    classes.
    """

    example: Floats
    class_noise: Floats
    diffuse_class_noise: Floats
    rho: Floats  # (N,), sum_j p_j^2 / q_j


def pair_products(layer: OutputLayer) -> Pairs:
    """Compute the products of every two targets exactly, in blocks over the catalogue."""
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
    # The classes that `weighted` leaves out are the two positives (one, when they are the same).
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
    """Measure everything the law needs, from the targets of `layer` (and their `pairs`, if at hand).

    The sample stands for a larger population, so averages over pairs leave a target's pair with itself out.
    The curves are exact for each of `num_curve_targets` targets and `num_curve_pairs` pairs (of each kind)
    drawn by `generator`.
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
        # Long sequences hold more pairs than (1/n - 1/T) T^2 counts: scale so that the law can count evenly.
        uneven = float(siblings.sum()) / count**2 / (1 / num_sequences - 1 / count)
        sequence_class, _ = _pair_curves(layer, pairs, siblings, generator, num_curve_pairs, ladder, uneven)
    return NoiseConstants(
        example=example,
        target_class=target_class,
        shared_class=shared_class,
        sequence_class=sequence_class,
        example_drift=drift,
        bias=bias,
    )


def _target_curves(
    layer: OutputLayer, pairs: Pairs, generator: np.random.Generator, size: int, ladder: tuple[int, ...]
) -> tuple[Curve, Curve]:
    """V_x(k) and V_d(k) from a sample drawn half by class noise (it counts at large k), half by ||x||^2."""
    k = np.asarray(ladder, dtype=np.float64)
    nodes, q = quadrature_nodes(k), np.exp(layer.log_q)
    lead = pairs.class_noise.diagonal()
    if not lead.any():
        return NOTHING, NOTHING
    square = np.einsum("td,td->t", layer.features, layer.features)
    chance = mix_chances(np.abs(lead), square)
    picks = generator.choice(len(lead), size=size, p=chance)
    second, drift = np.empty((size, len(k))), np.empty((size, len(k)))
    for row, index in enumerate(picks):
        target = Target.of(layer.softmax(index), q, int(layer.targets[index]))
        moments = target_moments(target, q, nodes=nodes, num_negatives=k)
        second[row] = square[index] * moments.second
        drift[row] = square[index] * moments.example_product
    weight = 1 / (chance[picks] * len(lead))
    values = calibrate(k * second * weight[:, None], lead[picks] * weight, float(lead.mean())) / k
    mean_drift = weight @ drift / size
    return (
        _tabulate(float(lead.mean()), ladder, values),
        _tabulate(float(mean_drift[-1] * k[-1]), ladder, mean_drift),
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
    """V(k) of pairs that share negatives and of pairs that do not, over the pairs marked in `chosen`.

    Pairs are drawn half by |c|, their leading order, and half by |x . x'|.
    """
    k = np.asarray(ladder, dtype=np.float64)
    nodes, q = quadrature_nodes(k), np.exp(layer.log_q)
    rows, columns = np.nonzero(chosen)
    lead = pairs.class_noise[rows, columns]
    if not lead.any():
        return NOTHING, NOTHING
    inner = (layer.features @ layer.features.T)[rows, columns]
    chance = mix_chances(np.abs(lead), np.abs(inner))
    picks = generator.choice(len(lead), size=size, p=chance)
    shared, apart = np.empty((size, len(k))), np.empty((size, len(k)))
    for row, pick in enumerate(picks):
        t, other = int(rows[pick]), int(columns[pick])
        left = Target.of(layer.softmax(t), q, int(layer.targets[t]))
        right = Target.of(layer.softmax(other), q, int(layer.targets[other]))
        products = shared_products(left, right, q, nodes=nodes, num_negatives=k)
        shared[row], apart[row] = inner[pick] * products[0], inner[pick] * products[1]
    weight = 1 / (chance[picks] * len(lead))
    values = calibrate(k * shared * weight[:, None], lead[picks] * weight, float(lead.mean())) / k
    bias = np.maximum(weight @ apart / size, 0.0)
    shared_curve = _tabulate(scale * float(lead.mean()), ladder, scale * values)
    return shared_curve, _tabulate(0.0, ladder, bias)


def mix_chances(*importances: Floats) -> Floats:
    """Mix importances evenly into the chances of a draw, so that none of them is ever rare."""
    chance: Floats = sum((part / part.sum() for part in importances), np.zeros(1)) / len(importances)
    return chance


def calibrate(sampled: Floats, lead: Floats, known: float) -> Floats:
    """Return the mean of each column of `sampled`, corrected by how far `lead` is from its `known` mean.

    The slope between them is fitted for each k: near 1 where k is large, so that the sampling error vanishes
    there.
    """
    off = lead - lead.mean()
    slope = off @ sampled / max(float(off @ off), np.finfo(np.float64).tiny)
    mean: Floats = sampled.mean(0) + slope * (known - lead.mean())
    return mean


def _tabulate(coefficient: float, ladder: tuple[int, ...], values: Floats) -> Curve:
    return Tabulated(
        coefficient=coefficient, num_negatives=ladder, values=tuple(float(value) for value in values)
    )
