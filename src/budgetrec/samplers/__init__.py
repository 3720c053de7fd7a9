"""Samplers draw the classes that a target is scored against, and know with what probability."""

from typing import TYPE_CHECKING

from budgetrec.lazy import attributes

if TYPE_CHECKING:
    from budgetrec.samplers.alias import AliasTable
    from budgetrec.samplers.contract import AdaptiveSampler, Negatives, Sampler
    from budgetrec.samplers.frequency import StreamingFrequency
    from budgetrec.samplers.in_batch import ForcedPositives, InBatch
    from budgetrec.samplers.kernel import QuadraticKernel
    from budgetrec.samplers.log_uniform import LogUniform
    from budgetrec.samplers.mixed import Mixed
    from budgetrec.samplers.popularity import Popularity
    from budgetrec.samplers.uniform import Uniform

__all__ = [
    "AdaptiveSampler",
    "AliasTable",
    "ForcedPositives",
    "InBatch",
    "LogUniform",
    "Mixed",
    "Negatives",
    "Popularity",
    "QuadraticKernel",
    "Sampler",
    "StreamingFrequency",
    "Uniform",
]

_HOMES = {
    "AdaptiveSampler": "budgetrec.samplers.contract",
    "AliasTable": "budgetrec.samplers.alias",
    "ForcedPositives": "budgetrec.samplers.in_batch",
    "InBatch": "budgetrec.samplers.in_batch",
    "LogUniform": "budgetrec.samplers.log_uniform",
    "Mixed": "budgetrec.samplers.mixed",
    "Negatives": "budgetrec.samplers.contract",
    "Popularity": "budgetrec.samplers.popularity",
    "QuadraticKernel": "budgetrec.samplers.kernel",
    "Sampler": "budgetrec.samplers.contract",
    "StreamingFrequency": "budgetrec.samplers.frequency",
    "Uniform": "budgetrec.samplers.uniform",
}
__getattr__ = attributes(__name__, _HOMES)
