"""The loss of every objective on one batch in double precision; this file runs on 0.1 too."""

import torch
from torch import Tensor, nn

from budgetrec.objectives.modules import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.samplers import InBatch, LogUniform, Mixed, Popularity, QuadraticKernel, Uniform

NUM_ITEMS, NUM_NEGATIVES, DIM = 30, 6, 8


def losses() -> dict[str, list[float]]:
    """Return the loss and the norms of both gradients by a name of the setting."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(4, 7, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    table = torch.randn(NUM_ITEMS, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(NUM_ITEMS, (4, 7), generator=generator)
    mask = torch.rand(4, 7, generator=generator) < 0.8
    found = {}
    for name, objective in _objectives(table.detach()).items():
        draws = torch.Generator().manual_seed(11)
        loss: Tensor = objective(hidden, targets, table, generator=draws, mask=mask)
        gradients = torch.autograd.grad(loss, (hidden, table))
        found[name] = [loss.item(), *(each.norm().item() for each in gradients)]
    return found


def _objectives(table: Tensor) -> dict[str, nn.Module]:
    popularity = Popularity(torch.arange(NUM_ITEMS), NUM_NEGATIVES, alpha=0.75, smoothing=1.0)
    samplers = {
        "uniform": Uniform(NUM_ITEMS, NUM_NEGATIVES),
        "popularity": popularity,
        "log-uniform": LogUniform(NUM_ITEMS, NUM_NEGATIVES),
        "in-batch": InBatch(NUM_ITEMS, popularity.log_q, NUM_NEGATIVES),
        "mixed": Mixed(NUM_ITEMS, popularity.log_q, num_in_batch=3, num_uniform=3),
        "kernel": QuadraticKernel(table, NUM_NEGATIVES),
    }
    size = (NUM_ITEMS, NUM_NEGATIVES)
    found: dict[str, nn.Module] = {
        f"sampled-softmax {name}": SampledSoftmax(*size, "batch", "logq", sampler=sampler)
        for name, sampler in samplers.items()
    }
    for correction in ("none", "theorem", "logq", "logq-negatives", "refined-logq"):
        for sharing in ("batch", "sequence", "target"):
            found[f"sampled-softmax {correction} {sharing}"] = SampledSoftmax(
                *size, sharing, correction, sampler=popularity, lean=sharing == "target"
            )
    return found | {
        "sampled-softmax cosine": SampledSoftmax(*size, cosine=True, temperature=0.3),
        "bce": BinaryCrossEntropy(*size, "sequence"),
        "gbce": BinaryCrossEntropy(*size, "target", calibration=0.75, sampler=popularity),
        "full-softmax": FullSoftmax(lean=False, temperature=0.7),
        "full-softmax lean": FullSoftmax(lean=True, cosine=True, temperature=0.2),
        "sce": ScalableCrossEntropy(4, 8, 8),
        "rece": ReducedCrossEntropy(4, num_rounds=2),
    }
