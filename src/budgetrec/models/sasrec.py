"""SASRec (Kang and McAuley, ICDM 2018): a causal transformer over the items of a sequence."""

from budgetrec.models.transformer import Transformer


class SASRec(Transformer):
    """Self-attentive sequential recommendation: the state at a position depends on nothing after it.

    >>> import torch
    >>> model = SASRec(num_items=100, dim=8, max_length=5, generator=torch.Generator())
    >>> ids = torch.tensor([[3, 1, 4]])
    >>> model(ids, torch.ones_like(ids, dtype=torch.bool)).shape
    torch.Size([1, 3, 8])
    """

    causal = True
