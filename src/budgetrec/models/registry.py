"""Every model by its name.

A new model is a file of its own and one entry in `MODELS`. If it has options of its own, their record is a
base of `ModelOptions`; flags and TOML keys follow. Models import torch only when they are built.
"""

from dataclasses import dataclass

from budgetrec import models
from budgetrec.models.specification import MaskingOptions, ModelSpecification


@dataclass(frozen=True, kw_only=True)
class ModelOptions(MaskingOptions):
    """The options of all models together, as settings and flags hold them."""


MODELS: dict[str, ModelSpecification] = {
    each.name: each
    for each in (
        ModelSpecification(name="sasrec", title="SASRec", load=lambda: models.SASRec),
        ModelSpecification(
            name="bert4rec",
            title="BERT4Rec",
            load=lambda: models.Bert4Rec,
            options=MaskingOptions,
        ),
    )
}
