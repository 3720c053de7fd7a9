r"""The logQ corrections of in-batch and other popularity-driven draws.

- logQ (Yi et al., RecSys 2019): $s_j - \log q_j$ in every column, the positive's included, then softmax
  cross-entropy.
- Refined logQ (Khrylchenko et al., RecSys 2025): the positive is not a draw, so it is taken out of both the
  sum and the proposal: $c_j = s_j - \log q'_j$ with $q'_j = q_j / (1 - q_p)$, and $L = -\mathrm{sg}(1 -
  P)\,(s_p - \log \sum_j e^{c_j})$ with $P = e^{s_p} / (e^{s_p} + \frac{1}{|N|} \sum_j e^{c_j})$, where sg
  stops the gradient. Its value is not a log-likelihood; its gradient is an estimate of the full softmax's.

`logQ on negatives only` is the correction `"logq-negatives"` of `sampled_softmax.py`.
"""

import torch
from torch import Tensor

from budgetrec.objectives.scoring import Scores, log_sum_exp


def logq_rows(scores: Scores) -> Tensor:
    """Cross-entropy over the positive and its negatives, log q taken off every one of them."""
    rest = log_sum_exp(scores.negatives - scores.log_q, scores.num_kept())
    positive = scores.positive - scores.log_q_targets
    return torch.logaddexp(positive, rest) - positive


def refined_logq_rows(scores: Scores) -> Tensor:
    """Refined logQ; a target without any negative left contributes 0."""
    kept = scores.num_kept()
    alone = kept == 0
    shift = torch.log1p(-scores.log_q_targets.exp())
    # What is said of a target without negatives is overwritten below; 0 only keeps it finite.
    rest = log_sum_exp(scores.negatives - scores.log_q, kept).masked_fill(alone, 0.0) + shift
    margin = scores.positive - rest
    # 1 - P = 1 / (1 + e^{s_p} |N| / sum e^c)
    doubt = torch.sigmoid(-(margin + kept.clamp(min=1).log())).detach()
    return (-doubt * margin).masked_fill(alone, 0.0)
