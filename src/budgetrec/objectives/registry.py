"""Every objective by its name.

A new objective is a file of its own and one entry in `OBJECTIVES`. If it has options of its own, their record
is a base of `ObjectiveOptions`; flags and TOML keys follow. Builders import torch only when they are called.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from budgetrec.objectives.specification import (
    TABLE_BLOCK_BYTES,
    BucketOptions,
    CalibrationOptions,
    ChunkOptions,
    ObjectiveParts,
    ObjectiveSpecification,
    SampledSoftmaxOptions,
    ScoreOptions,
    StepFloor,
)
from budgetrec.options import Options

if TYPE_CHECKING:
    from budgetrec.objectives.modules import (
        BinaryCrossEntropy,
        FullSoftmax,
        ReducedCrossEntropy,
        SampledSoftmax,
        ScalableCrossEntropy,
    )


def _sampled_softmax(parts: ObjectiveParts) -> "SampledSoftmax":
    from budgetrec.objectives.modules import SampledSoftmax

    options = SampledSoftmaxOptions.of(parts.options)
    return SampledSoftmax(
        parts.num_items,
        parts.num_negatives,
        parts.sharing,
        options.correction,
        sampler=parts.sampler,
        temperature=options.temperature,
        cosine=options.cosine,
        lean=parts.lean,
        block_bytes=parts.block_bytes,
    )


def _binary(parts: ObjectiveParts, calibration: float = 0.0) -> "BinaryCrossEntropy":
    from budgetrec.objectives.modules import BinaryCrossEntropy

    return BinaryCrossEntropy(
        parts.num_items,
        parts.num_negatives,
        parts.sharing,
        calibration=calibration,
        sampler=parts.sampler,
        lean=parts.lean,
        block_bytes=parts.block_bytes,
    )


def _calibrated(parts: ObjectiveParts) -> "BinaryCrossEntropy":
    return _binary(parts, CalibrationOptions.of(parts.options).calibration)


def _full_softmax(parts: ObjectiveParts) -> "FullSoftmax":
    from budgetrec.objectives.modules import FullSoftmax

    options = ScoreOptions.of(parts.options)
    return FullSoftmax(
        temperature=options.temperature,
        cosine=options.cosine,
        lean=parts.lean,
        block_bytes=parts.block_bytes,
        num_items=parts.num_items,
    )


def _in_tiles(num_items: int, half: bool) -> bool:
    from budgetrec.objectives.blocks import in_tiles

    return half or in_tiles(num_items, 4, TABLE_BLOCK_BYTES)


def _scalable(parts: ObjectiveParts) -> "ScalableCrossEntropy":
    from budgetrec.objectives.modules import ScalableCrossEntropy

    options = BucketOptions.of(parts.options)
    return ScalableCrossEntropy(
        options.num_buckets,
        options.bucket_targets,
        options.bucket_items,
        lean=parts.lean,
        num_items=parts.num_items,
    )


def _bucket_floor(options: Options) -> StepFloor:
    buckets = BucketOptions.of(options)
    return StepFloor(targets=2 * buckets.bucket_targets, items=buckets.bucket_items)


def _reduced(parts: ObjectiveParts) -> "ReducedCrossEntropy":
    from budgetrec.objectives.modules import ReducedCrossEntropy

    chunks = ChunkOptions.of(parts.options).num_buckets
    return ReducedCrossEntropy(chunks, lean=parts.lean, num_items=parts.num_items)


def _chunk_floor(options: Options) -> StepFloor:
    chunks = ChunkOptions.of(options).num_buckets
    return StepFloor(targets=2 * chunks, items=2 * chunks)


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(SampledSoftmaxOptions, CalibrationOptions, BucketOptions):
    """The options of all objectives together, as settings and flags hold them."""


OBJECTIVES: dict[str, ObjectiveSpecification] = {
    each.name: each
    for each in (
        ObjectiveSpecification(
            name="sampled-softmax",
            build=_sampled_softmax,
            options=SampledSoftmaxOptions,
            draws=True,
            law="exact",
        ),
        ObjectiveSpecification(name="bce", build=_binary, draws=True, law="guide"),
        ObjectiveSpecification(
            name="gbce", build=_calibrated, options=CalibrationOptions, draws=True, law="guide"
        ),
        ObjectiveSpecification(
            name="full-softmax",
            build=_full_softmax,
            options=ScoreOptions,
            law="exact",
            block_bytes=TABLE_BLOCK_BYTES,
            in_tiles=_in_tiles,
        ),
        ObjectiveSpecification(
            name="sce",
            build=_scalable,
            options=BucketOptions,
            separable=False,
            block_bytes=TABLE_BLOCK_BYTES,
            step_floor=_bucket_floor,
        ),
        ObjectiveSpecification(
            name="rece",
            build=_reduced,
            options=ChunkOptions,
            separable=False,
            block_bytes=TABLE_BLOCK_BYTES,
            step_floor=_chunk_floor,
        ),
    )
}
