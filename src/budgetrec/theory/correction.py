r"""The corrected softmax: the theorem's factors, the equivalent logit shift, and the remaining bias.

A target is scored against its positive and k sampled classes. The paper multiplies the sampled softmax $p'$
by $\mathrm{diag}(c)$. A plain softmax with shifted negative logits gives the same result (T14), and that is
what the objectives compute.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from budgetrec.errors import ArgumentError
from budgetrec.options import check_positive

Floats = NDArray[np.float64]


def _check(num_negatives: int, num_items: int) -> None:
    check_positive(num_negatives=num_negatives)
    if num_negatives > num_items - 1:
        raise ArgumentError(
            f"num_negatives is {num_negatives}, but {num_items} items leave {num_items - 1} besides the "
            "positive; pass fewer negatives."
        )


def paper_factors(alpha: ArrayLike, *, num_classes: int, num_items: int) -> tuple[Floats, Floats]:
    r"""Return $c_{pos}$ and $c_{neg}$ as the theorem prints them (T14); $k$ = `num_classes` are sampled.

    $$c_{pos} = \frac{\alpha + k}{\alpha + K}, \qquad c_{neg} = \frac Kk \frac{\alpha + k}{\alpha + K}$$

    With alpha = 2, k = 2 and K = 6 they are 4/8 and 3 * 4/8:

    >>> [float(c) for c in paper_factors(2.0, num_classes=2, num_items=6)]
    [0.5, 1.5]
    """
    _check(num_classes, num_items + 1)
    ratio = np.asarray(alpha, dtype=np.float64)
    positive = (ratio + num_classes) / (ratio + num_items)
    return positive, num_items / num_classes * positive


def proof_factors(alpha: ArrayLike, *, num_classes: int, num_items: int) -> tuple[Floats, Floats]:
    r"""Return the factors before the proof drops the ones; $k$ = `num_classes` includes the positive (T14).

    $$c_{pos} = \frac{\alpha + k - 1}{\alpha + K - 1}, \qquad c_{neg} = \frac{K-1}{k-1}\, c_{pos}$$

    The proof has $K/k$ in $c_{neg}$, but with the positive included a negative is kept with probability
    $(k-1)/(K-1)$. With alpha = 2, k = 3 and K = 7 they are 4/8 and 3 * 4/8:

    >>> [float(c) for c in proof_factors(2.0, num_classes=3, num_items=7)]
    [0.5, 1.5]
    """
    if num_classes < 2:
        raise ArgumentError(
            f"num_classes is {num_classes} with the positive, which leaves no negative; pass 2 or more."
        )
    return exact_factors(alpha, num_negatives=num_classes - 1, num_items=num_items)


def exact_factors(alpha: ArrayLike, *, num_negatives: int, num_items: int) -> tuple[Floats, Floats]:
    r"""Return the factors for $k$ = `num_negatives` negatives out of the $K - 1$ other items (T14).

    $$c_{pos} = \frac{\alpha + k}{\alpha + K - 1}, \qquad c_{neg} = \frac{K-1}{k}\, c_{pos}$$

    If every negative is drawn both are 1. With alpha = 2, k = 2 and K = 7 they are 4/8 and 3 * 4/8:

    >>> [float(c) for c in exact_factors(2.0, num_negatives=6, num_items=7)]
    [1.0, 1.0]
    >>> [float(c) for c in exact_factors(2.0, num_negatives=2, num_items=7)]
    [0.5, 1.5]
    """
    _check(num_negatives, num_items)
    ratio = np.asarray(alpha, dtype=np.float64)
    positive = (ratio + num_negatives) / (ratio + num_items - 1)
    return positive, (num_items - 1) / num_negatives * positive


def negative_shift(*, num_negatives: int, num_items: int) -> float:
    r"""Return $\log \frac{K-1}{k}$, the shift of the logits of uniform negatives (T14).

    >>> round(float(np.exp(negative_shift(num_negatives=2, num_items=7))), 12)
    3.0
    """
    _check(num_negatives, num_items)
    return float(np.log((num_items - 1) / num_negatives))


def proposal_shift(log_q: ArrayLike, *, num_negatives: int) -> Floats:
    r"""Return $-\log(k q_j)$, the shift for negatives drawn from any proposal $q$ (T14).

    >>> float(np.exp(proposal_shift(np.log(0.25), num_negatives=2)))
    2.0
    """
    check_positive(num_negatives=num_negatives)
    shift: Floats = -np.log(num_negatives) - np.asarray(log_q, dtype=np.float64)
    return shift


def positive_ratio(positive_logits: ArrayLike, negative_logits: ArrayLike) -> Floats:
    r"""Estimate $\hat\alpha = h_{pos} / \hat h_{neg}$ with the mean over the last axis (T14).

    For a positive of weight 6 and negatives of weights 2 and 4:

    >>> round(float(positive_ratio(np.log(6.0), np.log([2.0, 4.0]))), 12)
    2.0
    """
    negatives = np.asarray(negative_logits, dtype=np.float64)
    log_mean = logsumexp(negatives, axis=-1) - np.log(negatives.shape[-1])
    ratio: Floats = np.exp(np.asarray(positive_logits, dtype=np.float64) - log_mean)
    return ratio


def factor_softmax(positive_logits: ArrayLike, negative_logits: ArrayLike, *, num_items: int) -> Floats:
    r"""Return $\mathrm{diag}(c)\, p'$ with exact factors and estimated alpha, the positive first (T14).

    Weights 1 and (1, 1) and K = 5 give alpha = 1, c = (3/5, 6/5) and p' = 1/3 each:

    >>> factor_softmax(0.0, [0.0, 0.0], num_items=5).round(12).tolist()
    [0.2, 0.4, 0.4]
    """
    negatives = np.asarray(negative_logits, dtype=np.float64)
    positives = np.asarray(positive_logits, dtype=np.float64)
    alpha = positive_ratio(positives, negatives)
    c_pos, c_neg = exact_factors(alpha, num_negatives=negatives.shape[-1], num_items=num_items)
    sampled = softmax(np.concatenate([positives[..., None], negatives], axis=-1), axis=-1)
    factors = np.concatenate([c_pos[..., None], np.broadcast_to(c_neg[..., None], negatives.shape)], axis=-1)
    corrected: Floats = factors * sampled
    return corrected


def shifted_softmax(positive_logits: ArrayLike, negative_logits: ArrayLike, *, shift: ArrayLike) -> Floats:
    """Return the softmax of the positive (first) and of negatives with logits shifted by `shift`.

    >>> shifted_softmax(0.0, [0.0, 0.0], shift=np.log(2.0)).round(12).tolist()
    [0.2, 0.4, 0.4]
    """
    positives = np.asarray(positive_logits, dtype=np.float64)
    negatives = np.asarray(negative_logits, dtype=np.float64) + np.asarray(shift, dtype=np.float64)
    probabilities: Floats = softmax(np.concatenate([positives[..., None], negatives], axis=-1), axis=-1)
    return probabilities


def remaining_bias(p: ArrayLike, log_q: ArrayLike, *, positive: int, num_negatives: int) -> Floats:
    r"""Return the remaining bias $E p'' - p$ of the corrected softmax, to leading order in $1/k$ (T15).

    $$E p''_j - p_j = -\frac{p_j}{k} \Big( \frac{p_j}{q_j} - (1 - p_y) - s \Big) \; (j \ne y), \qquad
      E p''_y - p_y = \frac{p_y}{k} s, \qquad s = \sum_{j \ne y} \frac{p_j^2}{q_j} - (1 - p_y)^2$$

    The bias is that of a ratio estimate: likely classes come out too small and the positive too large, by
    $O(1/k)$, and the sum is preserved. With p = (1/2, 1/4, 1/4), the first being the positive, and uniform q,
    s = 3/8 - 1/4 = 1/8, so at k = 1 the positive gains 1/16:

    >>> bias = remaining_bias([0.5, 0.25, 0.25], np.log([1 / 3] * 3), positive=0, num_negatives=1)
    >>> bias.round(12).tolist()
    [0.0625, -0.03125, -0.03125]
    """
    check_positive(num_negatives=num_negatives)
    probabilities = np.asarray(p, dtype=np.float64)
    rest = probabilities.copy()
    rest[positive] = 0.0
    ratios = rest / np.exp(np.asarray(log_q, dtype=np.float64))
    own = probabilities[positive]
    spread = rest @ ratios - (1 - own) ** 2
    bias: Floats = -rest * (ratios - (1 - own) - spread)
    bias[positive] = own * spread
    return bias / num_negatives
