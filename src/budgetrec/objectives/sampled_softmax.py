r"""Sampled softmax: the positive against $k$ drawn classes.

Scores $s_j = \langle h, w_j \rangle$, positive $p$, draws $N$ with the target's own positive masked, $h$ hits
among $k$ draws:

- `"none"`: $-s_p + \log(e^{s_p} + \sum_{j \in N} e^{s_j})$, the vanilla form, whose gradient stays
  biased whatever $k$, though with uniform draws its minimum is that of the full softmax (T24);
- `"theorem"`: negatives shifted by $-\log((k - h) q'_j)$, where $q'_j = q_j / (1 - q_p)$ is the proposal
  given that a draw is not the positive. For uniform draws the shift is $\log\frac{K - 1}{k - h}$. The sum
  over negatives is then an unbiased estimate of the partition function without the positive, and the loss is
  consistent as $k$ grows;
- `"logq-negatives"`: negatives shifted by $-\log(k q_j)$ (Bengio and Senécal 2008; Blanc and Rendle 2018):
  the same up to the hits, without looking at $q_p$. Slots that are empty, or that hold the target itself
  whatever was drawn, are not among the $k$.

The logQ forms that touch the positive are in `logq.py`.
"""

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.objectives.checks import Table
from budgetrec.objectives.logq import logq_rows, refined_logq_rows
from budgetrec.objectives.scoring import RowLoss, Scores, Scoring, log_sum_exp, mean_loss
from budgetrec.objectives.specification import BLOCK_BYTES, CORRECTIONS
from budgetrec.samplers.contract import Negatives


def _vanilla_rows(scores: Scores) -> Tensor:
    return _against(scores.positive, log_sum_exp(scores.negatives, scores.num_kept()))


def _theorem_rows(scores: Scores) -> Tensor:
    kept = scores.num_kept()
    shift = torch.log1p(-scores.log_q_targets.exp()) - kept.clamp(min=1).log()
    return _against(scores.positive, _weighed(scores, kept) + shift)


def _logq_negatives_rows(scores: Scores) -> Tensor:
    rest = _weighed(scores, scores.num_kept())
    # A target that is alone in its batch meets no draw, and has nothing in its sum either.
    return _against(scores.positive, rest - scores.num_draws.clamp(min=torch.finfo(rest.dtype).tiny).log())


def _weighed(scores: Scores, kept: Tensor) -> Tensor:
    """Return the log of the sum of e^s / q over the kept negatives, (G, m)."""
    if scores.log_q.shape[2] == 1:  # one q for all: take it out of the sum
        return log_sum_exp(scores.negatives, kept) - scores.log_q.squeeze(2)
    return log_sum_exp(scores.negatives - scores.log_q, kept)


def _against(positive: Tensor, log_rest: Tensor) -> Tensor:
    """Return -log of e^s / (e^s + rest); with nothing else to choose from this is 0."""
    return torch.logaddexp(positive, log_rest) - positive


_ROW_LOSSES: dict[str, RowLoss] = {
    "none": _vanilla_rows,
    "theorem": _theorem_rows,
    "logq": logq_rows,
    "logq-negatives": _logq_negatives_rows,
    "refined-logq": refined_logq_rows,
}


def sampled_softmax(
    hidden: Tensor,
    targets: Tensor,
    table: Table,
    negatives: Negatives,
    mask: Tensor | None = None,
    *,
    correction: str = "theorem",
    temperature: float = 1.0,
    cosine: bool = False,
    lean: bool = False,
    sparse_grad: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Average the loss of each target against its group's negatives.

    Shapes: hidden (G, T/G, d), targets and mask (G, T/G), table (K, d) or a function from ids to vectors,
    negatives (G, k). `lean` keeps a block of logits at a time instead of all; `sparse_grad` makes the table's
    gradient row-sparse. A target whose negatives are all hits contributes 0.

    >>> from budgetrec.samplers import Negatives
    >>> uniform = torch.full((1, 1), 0.25).log()
    >>> table, hidden = torch.eye(4), torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    >>> drawn = Negatives(torch.tensor([[1, 0]]), uniform, uniform)  # class 0 is the target: one hit
    >>> sampled_softmax(hidden, torch.tensor([[0]]), table, drawn)  # log(1 + 3/e), 3 = (K - 1) / (k - hits)
    tensor(0.7437)
    """
    return mean_loss(
        row_loss_for(correction),
        hidden,
        targets,
        table,
        negatives,
        mask,
        options=Scoring(temperature, cosine),
        lean=lean,
        sparse_grad=sparse_grad,
        block_bytes=block_bytes,
    )


def row_loss_for(correction: str) -> RowLoss:
    """Look a correction up by its name."""
    if correction not in CORRECTIONS:
        raise ArgumentError(f"correction is {correction!r}; pass one of {', '.join(map(repr, CORRECTIONS))}.")
    return _ROW_LOSSES[correction]
