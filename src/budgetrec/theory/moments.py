r"""Exact second moments of the corrected softmax error at any number of negatives.

A target with softmax $p$ and positive $y$ is compared with $k$ independent draws $j_1, \dots, j_k \sim q$; a
draw of $y$ itself is masked. With $r_j = p_j / q_j$ (and $r_y = 0$) the corrected estimate is

$$p'' - p = \frac{n}{D} - p, \qquad D = p_y + \frac1k \sum_m r_{j_m}, \qquad
  n = p_y e_y + \frac1k \sum_m r_{j_m} e_{j_m}.$$

A ratio has no elementary moments, but $1/D^2 = \int_0^\infty s e^{-sD} ds$ turns it into sums over
independent draws, whose expectation is a product. One integral over $u = s/k$ of a few sums over the
catalogue gives the moment for every $k$ at once (docs/theory.md, T10). For two targets that share their
draws, $1/(D D') = \int_0^1 d\lambda\, (\lambda D + (1 - \lambda) D')^{-2}$ leads to the same integral (T11).

The only approximation is the quadrature, the trapezoid rule on a grid of $u$ with ratio $\sqrt 2$, whose
error is below $10^{-8}$.

Only sums over classes are needed, so classes with equal $q$ and $p$ can be merged into one with a
multiplicity (`counts`, which need not be integers): a catalogue of millions shrinks to a thousand kinds of
classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RATIO = np.sqrt(2.0)
_FRESH = 12
_VANISHED = 1e-100  # its square is still a normal float

# Gauss nodes for the mixing weight, denser at both ends, where concentrated pairs need them.
_S, _S_WEIGHTS = np.polynomial.legendre.leggauss(6)
_S = (_S + 1) / 2
_MIXES = _S * _S * (3 - 2 * _S)
_MIX_WEIGHTS = _S_WEIGHTS / 2 * 6 * _S * (1 - _S)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The softmax of one target over the catalogue, split into its positive and the rest."""

    probabilities: Floats  # (K,), 0 at the positive
    ratios: Floats  # (K,), p_j / q_j, 0 at the positive
    positive: int
    positive_probability: float

    @classmethod
    def of(cls, p: Floats, q: Floats, positive: int) -> "Target":
        """Split the softmax `p` of one target into its positive and the rest, under the proposal `q`."""
        rest = p.copy()
        rest[positive] = 0.0
        own = float(p[positive])
        return cls(probabilities=rest, ratios=rest / q, positive=positive, positive_probability=own)

    def with_positive(self, value: float) -> Floats:
        """Return the probabilities (K,) with `value` at the positive."""
        whole = self.probabilities.copy()
        whole[self.positive] = value
        return whole


def quadrature_nodes(num_negatives: Floats) -> Floats:
    """Return nodes u with ratio sqrt(2) that cover every k of the ladder `num_negatives` (ascending)."""
    lowest = 1e-5 / num_negatives[-1]
    highest = 1e6 / num_negatives[0]
    count = int(np.ceil(np.log(highest / lowest) / np.log(_RATIO))) + 1
    nodes: Floats = lowest * _RATIO ** np.arange(count)
    return nodes


def _damping(ratios: Floats, nodes: Floats) -> Floats:
    """Return exp(-u r) for every node (rows) and class: two rows of twelve are computed, the others squared.

    Squaring doubles the rounding error; starting afresh after five squarings keeps it below 1e-14. Tiny
    values are set to 0, because denormal floats make the products ten times slower.
    """
    damping = np.empty((len(nodes), len(ratios)))
    for first in range(min(_FRESH, len(nodes))):
        rows = damping[first::_FRESH]
        if first < 2:
            np.exp(-np.outer(nodes[first::_FRESH], ratios), out=rows)
        else:
            before = damping[first - 2 :: _FRESH][: len(rows)]
            np.multiply(before, before, out=rows)
        rows *= rows > _VANISHED
    return damping


def _transform_powers(transform: Floats, positive: float, nodes: Floats, ladder: Floats, lost: int) -> Floats:
    """Return exp(-k u p_y) phi(u)^(k - lost) for every node (rows) and k (columns)."""
    logs = np.log(np.maximum(transform, 1e-300))  # the integrand vanishes long before this underflows
    powers: Floats = np.exp(np.outer(logs, ladder - lost) - np.outer(nodes * positive, ladder))
    return powers


@dataclass(frozen=True, kw_only=True)
class TargetMoments:
    r"""Moments of one target's error $\epsilon = p'' - p$, with one entry per k of the ladder.

    `second` is $E\|\epsilon\|^2$, `mean_weight` the factor $E[p''_j] / p_j$ of each class (K columns, the
    positive's own included), and `example_product` is $\langle p - y, E\epsilon \rangle$.
    """

    second: Floats
    mean_weight: Floats
    example_product: Floats


def target_moments(
    target: Target, q: Floats, *, nodes: Floats, num_negatives: Floats, counts: Floats | None = None
) -> TargetMoments:
    r"""Return the exact moments of one target's error for every k of the ladder `num_negatives` (T10).

    Class j of the arrays has multiplicity `counts[j]` (default 1; always 1 at the positive).

    With $\varphi(u) = \sum_j q_j e^{-u r_j}$ and $u$ the `nodes`,

    $$E\|p'' - y\|^2 = \int_0^\infty u\, e^{-k u p_y} \Big[
        2k \varphi^{k-1} \sum_j \frac{p_j^2}{q_j} e^{-u r_j} + k(k-1) \varphi^{k-2}
        \Big( \sum_j p_j^2 e^{-2 u r_j} + \big(\sum_j p_j e^{-u r_j}\big)^2 \Big) \Big] du,$$

    $$\frac{E p''_j}{p_j} = k \int_0^\infty e^{-k u p_y} \varphi^{k-1} e^{-u r_j}\, du .$$

    With two classes, $p = (1/4, 3/4)$, the first being the positive, and a $q$ that always draws the second,
    $p'' = p$ and there is no error:

    >>> q = np.array([1e-300, 1.0]); target = Target.of(np.array([0.25, 0.75]), q, 0)
    >>> ladder = np.array([1.0, 2.0])
    >>> moments = target_moments(target, q, nodes=quadrature_nodes(ladder), num_negatives=ladder)
    >>> bool(np.all(np.abs(moments.second) < 1e-7))
    True
    """
    p, r, k = target.probabilities, target.ratios, num_negatives
    many = np.ones_like(q) if counts is None else counts
    damping = _damping(r, nodes)
    sums = damping @ (np.stack([q, p, p * r], axis=1) * many[:, None])
    phi, first, own = sums.T
    squares = (damping * damping) @ (many * p * p)
    one = _transform_powers(phi, target.positive_probability, nodes, k, 1)
    two = _transform_powers(phi, target.positive_probability, nodes, k, 2)
    measure = np.log(_RATIO) * nodes  # du on the logarithmic grid
    below = np.log(_RATIO) * nodes[0] / (_RATIO - 1)  # left of the first node, where the integrand is 1

    to_label = (measure * nodes) @ (
        k * one * (2 * own)[:, None] + k * (k - 1) * two * (squares + first * first)[:, None]
    )
    p_y = target.positive_probability
    residual = float((many * p) @ p) + (1 - p_y) ** 2  # ||p - y||^2
    mean_weight = (k * (one * measure[:, None])).T @ damping + k[:, None] * below  # (ladder, K)
    # The positive's weight uses phi^k, not phi^(k-1): its term is not one of the draws.
    mean_weight[:, target.positive] = k * (measure @ (one * phi[:, None]) + below)
    drift = mean_weight - 1
    product = drift @ (many * p * p) - p_y * (1 - p_y) * drift[:, target.positive]
    # ||eps||^2 = ||p'' - y||^2 - ||p - y||^2 - 2 <p - y, eps>
    return TargetMoments(
        second=to_label - residual - 2 * product, mean_weight=mean_weight, example_product=product
    )


def shared_products(
    left: Target,
    right: Target,
    q: Floats,
    *,
    nodes: Floats,
    num_negatives: Floats,
    counts: Floats | None = None,
) -> tuple[Floats, Floats]:
    r"""Return the expected products of two targets' errors, with shared and with independent draws (T11).

    The first array is $E\langle\epsilon_t, \epsilon_{t'}\rangle$ over one set of $k$ draws, the second is
    $\langle E\epsilon_t, E\epsilon_{t'}\rangle$ over independent sets, with one entry per k. Class j of the
    arrays has multiplicity `counts[j]` (default 1; always 1 at both positives).

    For a target paired with itself, the first is its second moment:

    >>> q = np.full(3, 1 / 3); target = Target.of(np.array([0.2, 0.3, 0.5]), q, 0)
    >>> ladder = np.array([2.0, 8.0]); nodes = quadrature_nodes(ladder)
    >>> alone = target_moments(target, q, nodes=nodes, num_negatives=ladder).second
    >>> shared, _ = shared_products(target, target, q, nodes=nodes, num_negatives=ladder)
    >>> bool(np.allclose(shared, alone, rtol=1e-6))
    True
    """
    many = np.ones_like(q) if counts is None else counts
    mine = target_moments(left, q, nodes=nodes, num_negatives=num_negatives, counts=many)
    theirs = target_moments(right, q, nodes=nodes, num_negatives=num_negatives, counts=many)
    to_labels = sum(
        weight * _label_product(left, right, q, many, nodes=nodes, k=num_negatives, mix=mix)
        for mix, weight in zip(_MIXES, _MIX_WEIGHTS, strict=True)
    )
    p_y, p_y_other = left.positive_probability, right.positive_probability
    p, p_other = left.with_positive(p_y - 1), right.with_positive(p_y_other - 1)  # p - y
    drift = (mine.mean_weight - 1) * (many * left.with_positive(p_y))  # E eps, (ladder, K)
    drift_other = (theirs.mean_weight - 1) * right.with_positive(p_y_other)
    shared = to_labels - (many * p) @ p_other - drift @ p_other - drift_other @ (many * p)
    independent: Floats = np.einsum("lk,lk->l", drift, drift_other)
    return shared, independent


def _label_product(
    left: Target, right: Target, q: Floats, many: Floats, *, nodes: Floats, k: Floats, mix: float
) -> Floats:
    """Return E<p'' - y, p''' - y'> with 1/(D D') replaced by (mix D + (1 - mix) D')^-2."""
    p, other = left.probabilities, right.probabilities
    ratios = mix * left.ratios + (1 - mix) * right.ratios
    positive = mix * left.positive_probability + (1 - mix) * right.positive_probability
    damping = _damping(ratios, nodes)
    sums = damping @ (np.stack([q, p, other, p * right.ratios], axis=1) * many[:, None])
    phi, first, first_other, own = sums.T
    squares = (damping * damping) @ (many * p * other)
    same = float(left.positive == right.positive)
    at_theirs = p[right.positive] * damping[:, right.positive]
    at_mine = other[left.positive] * damping[:, left.positive]
    apart = squares - at_theirs * first_other - at_mine * first + same * first * first_other
    one = _transform_powers(phi, positive, nodes, k, 1)
    two = _transform_powers(phi, positive, nodes, k, 2)
    measure = np.log(_RATIO) * nodes * nodes
    product: Floats = measure @ (k * one * ((1 + same) * own)[:, None] + k * (k - 1) * two * apart[:, None])
    return product
