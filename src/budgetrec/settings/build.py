"""From settings to the parts that do the work; those never see a setting."""

from typing import Any

import torch
from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.models import Bert4Rec, SASRec, SequenceModel
from budgetrec.objectives import (
    BinaryCrossEntropy,
    FullSoftmax,
    ReducedCrossEntropy,
    SampledSoftmax,
    ScalableCrossEntropy,
)
from budgetrec.samplers import InBatch, LogUniform, Mixed, Popularity, QuadraticKernel, Uniform
from budgetrec.samplers.contract import AdaptiveSampler, Sampler
from budgetrec.settings.sections import ModelConfig, ObjectiveConfig
from budgetrec.stepping.gradients import Objective


def build_model(
    config: ModelConfig, num_items: int, *, features: Tensor | None, generator: torch.Generator
) -> SequenceModel:
    """Make the model that `config` names, with weights from `generator`."""
    settings: dict[str, Any] = {
        "dim": config.dim,
        "num_blocks": config.num_blocks,
        "num_heads": config.num_heads,
        "max_length": config.max_length,
        "hidden_dim": config.hidden_dim,
        "dropout": config.dropout,
        "activation": config.activation,
        "norm": config.norm,
        "tied": config.tied,
    }
    if config.model == "sasrec":
        return SASRec(num_items, features=features, generator=generator, **settings)
    rates: dict[str, Any] = {"mask_rate": config.mask_rate, "last_rate": config.last_rate}
    return Bert4Rec(num_items, features=features, generator=generator, **settings, **rates)


def build_objective(config: ObjectiveConfig, dataset: Dataset, model: SequenceModel) -> Objective:
    """Make the objective that `config` names."""
    scoring: dict[str, Any] = {"temperature": config.temperature, "cosine": config.cosine}
    if config.objective == "full-softmax":
        return FullSoftmax(lean=config.lean, **scoring)
    if config.objective == "sce":
        return ScalableCrossEntropy(
            config.num_buckets, config.bucket_targets, config.bucket_items, lean=config.lean
        )
    if config.objective == "rece":
        return ReducedCrossEntropy(config.num_buckets, lean=config.lean)
    sampler = _build_sampler(config, dataset, model)
    common: dict[str, Any] = {"sampler": sampler, "lean": config.lean, "sharing": config.sharing}
    if config.objective == "sampled-softmax":
        return SampledSoftmax(
            dataset.num_items, config.num_negatives, correction=config.correction, **common, **scoring
        )
    calibration = config.calibration if config.objective == "gbce" else 0.0
    return BinaryCrossEntropy(dataset.num_items, config.num_negatives, calibration=calibration, **common)


def _build_sampler(
    config: ObjectiveConfig, dataset: Dataset, model: SequenceModel
) -> Sampler | AdaptiveSampler:
    num_items, num_negatives = dataset.num_items, config.num_negatives
    if config.sampler in ("in-batch", "mixed") and config.sharing != "batch":
        raise ArgumentError(
            f"the sampler {config.sampler} takes the targets of the whole batch, so its negatives are shared "
            f"by it, not by each {config.sharing}. Pass --sharing batch."
        )
    if config.sampler == "uniform":
        return Uniform(num_items, num_negatives)
    if config.sampler == "log-uniform":
        return LogUniform(num_items, num_negatives)
    if config.sampler == "kernel":
        return QuadraticKernel(model.item_table().detach(), num_negatives)
    # An item that is never trained on is still drawn now and then, or it could not be corrected for.
    popularity = Popularity(dataset.train_counts, num_negatives, alpha=config.popularity_power, smoothing=1.0)
    if config.sampler == "popularity":
        return popularity
    if config.sampler == "in-batch":
        return InBatch(num_items, popularity.log_q, num_negatives)
    if num_negatives < 2:
        raise ArgumentError("num_negatives is 1, but mixed takes half from the batch. Pass at least 2.")
    half = num_negatives // 2
    return Mixed(num_items, popularity.log_q, num_in_batch=num_negatives - half, num_uniform=half)
