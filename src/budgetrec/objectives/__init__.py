"""Objectives are functions of hidden states, targets and the item table; modules wrap them for models."""

from budgetrec.objectives.binary import binary_cross_entropy
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.objectives.modules import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.objectives.reduced import reduced_cross_entropy
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.objectives.scalable import scalable_cross_entropy

__all__ = [
    "BinaryCrossEntropy",
    "FullSoftmax",
    "ReducedCrossEntropy",
    "SampledSoftmax",
    "ScalableCrossEntropy",
    "binary_cross_entropy",
    "full_softmax",
    "reduced_cross_entropy",
    "sampled_softmax",
    "scalable_cross_entropy",
]
