"""Every objective by its name. A new one is a file with its specification, and one line in `OBJECTIVES`."""

from budgetrec.objectives.full_softmax import BLOCK_BYTES as TABLE_BLOCK_BYTES
from budgetrec.objectives.full_softmax import in_tiles
from budgetrec.objectives.modules import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.objectives.specification import (
    BucketOptions,
    CalibrationOptions,
    ChunkOptions,
    ObjectiveParts,
    ObjectiveSpecification,
    SampledSoftmaxOptions,
    ScoreOptions,
    StepFloor,
)
from budgetrec.samplers.specification import options_as


def _sampled_softmax(parts: ObjectiveParts) -> SampledSoftmax:
    options = options_as(parts.options, SampledSoftmaxOptions)
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


def _binary(parts: ObjectiveParts, calibration: float = 0.0) -> BinaryCrossEntropy:
    return BinaryCrossEntropy(
        parts.num_items,
        parts.num_negatives,
        parts.sharing,
        calibration=calibration,
        sampler=parts.sampler,
        lean=parts.lean,
        block_bytes=parts.block_bytes,
    )


def _calibrated(parts: ObjectiveParts) -> BinaryCrossEntropy:
    return _binary(parts, options_as(parts.options, CalibrationOptions).calibration)


def _full_softmax(parts: ObjectiveParts) -> FullSoftmax:
    options = options_as(parts.options, ScoreOptions)
    return FullSoftmax(
        temperature=options.temperature,
        cosine=options.cosine,
        lean=parts.lean,
        block_bytes=parts.block_bytes,
    )


def _scalable(parts: ObjectiveParts) -> ScalableCrossEntropy:
    options = options_as(parts.options, BucketOptions)
    return ScalableCrossEntropy(
        options.num_buckets, options.bucket_targets, options.bucket_items, lean=parts.lean
    )


def _bucket_floor(options: object) -> StepFloor:
    buckets = options_as(options, BucketOptions)
    return StepFloor(targets=2 * buckets.bucket_targets, items=buckets.bucket_items)


def _reduced(parts: ObjectiveParts) -> ReducedCrossEntropy:
    return ReducedCrossEntropy(options_as(parts.options, ChunkOptions).num_buckets, lean=parts.lean)


def _chunk_floor(options: object) -> StepFloor:
    chunks = options_as(options, ChunkOptions).num_buckets
    return StepFloor(targets=2 * chunks, items=2 * chunks)


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
            in_tiles=lambda num_items, half: half or in_tiles(num_items, 4, TABLE_BLOCK_BYTES),
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
