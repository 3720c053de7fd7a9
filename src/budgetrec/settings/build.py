"""From settings to the parts that do the work; those never see a setting."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.models.contract import SequenceModel
from budgetrec.models.registry import MODELS
from budgetrec.objectives.contract import Objective
from budgetrec.objectives.specification import ObjectiveParts
from budgetrec.samplers.contract import AnySampler
from budgetrec.samplers.specification import SamplerParts
from budgetrec.settings.sections import ModelConfig, ObjectiveConfig, check_sharing


def build_model(
    config: ModelConfig, num_items: int, *, features: Tensor | None, generator: torch.Generator
) -> SequenceModel:
    """Make the model that `config` names, with weights from `generator`."""
    return MODELS[config.model].build(config, num_items, features=features, generator=generator)


def build_objective(
    config: ObjectiveConfig, num_items: int, sampler: AnySampler | None, *, block_bytes: int | None = None
) -> Objective:
    """Make the objective that `config` names; `block_bytes` of logits exist at once in lean mode."""
    return config.specification.build(
        ObjectiveParts(
            num_items=num_items,
            num_negatives=config.num_negatives,
            sharing=config.sharing,
            sampler=sampler,
            lean=config.lean,
            options=config,
            block_bytes=block_bytes,
        )
    )


def build_sampler(
    config: ObjectiveConfig,
    *,
    num_items: int,
    train_counts: NDArray[np.int64],
    target_counts: Callable[[int], NDArray[np.float64]],
    item_table: Callable[[], Tensor],
) -> AnySampler | None:
    """Make the sampler that `config` names where its objective draws; else return None.

    `train_counts`, `target_counts` and `item_table` are as in `SamplerParts`.
    """
    specification = config.sampler_specification
    if specification is None:
        return None
    check_sharing(config)
    return specification.build(
        SamplerParts(
            num_items=num_items,
            num_negatives=config.num_negatives,
            train_counts=train_counts,
            target_counts=target_counts,
            item_table=item_table,
            options=config,
        )
    )
