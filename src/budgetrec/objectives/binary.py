r"""Binary cross-entropy with one or many negatives, and its generalised form gBCE.

gBCE (Petrov and Macdonald, RecSys 2023) raises the positive's probability to a power that undoes the
overconfidence of negative sampling. With the sampling rate $a = k / (K - 1)$ and calibration $t \in [0, 1]$
the power is $b = a (t (1 - 1/a) + 1/a) = 1 - t (1 - a)$ and

$$L = -\tfrac{1}{k + 1}\bigl(b \log\sigma(s_p) + \sum_j \log(1 - \sigma(s_j))\bigr).$$

$t = 0$ is plain BCE. Since $\log \sigma^b = b \log\sigma$, nothing is transformed back into logits and
float32 is enough. Negatives that are the target's own positive are masked, and $k$ is what is left.
"""

from torch import Tensor
from torch.nn import functional

from budgetrec.errors import ArgumentError
from budgetrec.objectives.checks import Table
from budgetrec.objectives.scoring import RowLoss, Scores, Scoring, mean_loss
from budgetrec.objectives.specification import BLOCK_BYTES
from budgetrec.samplers.contract import Negatives


def binary_cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    table: Table,
    negatives: Negatives,
    mask: Tensor | None = None,
    *,
    calibration: float = 0.0,
    num_items: int | None = None,
    temperature: float = 1.0,
    cosine: bool = False,
    lean: bool = False,
    sparse_grad: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Average BCE (`calibration` 0) or gBCE (`calibration` up to 1) over the targets.

    Shapes as in `sampled_softmax`. `num_items` is only needed for gBCE when the table is a function.

    >>> import torch
    >>> from budgetrec.samplers import Negatives
    >>> log_q = torch.full((1, 1), 0.5).log()
    >>> drawn = Negatives(torch.tensor([[1]]), log_q, log_q)
    >>> binary_cross_entropy(torch.zeros(1, 1, 2), torch.tensor([[0]]), torch.eye(2), drawn)  # log 2
    tensor(0.6931)
    """
    if isinstance(table, Tensor):
        num_items = table.shape[0]
    if calibration > 0 and num_items is None:
        raise ArgumentError(
            "gBCE needs the size of the catalogue; pass num_items beside a table that is a function."
        )
    return mean_loss(
        binary_row_loss(calibration, num_items or 2),
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


def binary_row_loss(calibration: float, num_items: int) -> RowLoss:
    """Return the loss of a target, with the power that calibrates its positive."""
    if not 0 <= calibration <= 1:
        raise ArgumentError(f"calibration is {calibration}; pass 0 for BCE, up to 1 for the calibrated form.")

    def rows(scores: Scores) -> Tensor:
        kept = scores.num_kept()
        power = 1 - calibration * (1 - kept / (num_items - 1))
        # softplus(-inf) is 0 with gradient 0, so masked negatives vanish.
        rest = functional.softplus(scores.negatives).sum(-1)
        return (rest - power * functional.logsigmoid(scores.positive)) / (kept + 1)

    return rows
