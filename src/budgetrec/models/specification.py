"""What settings and reports need to know about a model: see `models.registry`."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from budgetrec.models.activations import ACTIVATIONS
from budgetrec.models.contract import SequenceModel
from budgetrec.models.layers import NORMS
from budgetrec.options import Options, check_choice, check_positive, check_share, setting


@dataclass(frozen=True, kw_only=True)
class TransformerOptions(Options):
    """Options of every transformer."""

    dim: int = setting(64, "Width of item vectors and states.")
    num_blocks: int = setting(2, "Transformer blocks.")
    num_heads: int = setting(2, "Attention heads; they divide dim.")
    hidden_dim: int | None = setting(None, "Feed-forward width. [default: dim]")
    max_length: int = setting(200, "Items of a sequence that are read, the latest ones.")
    dropout: float = setting(0.2, "Share of numbers set to zero while training.")
    activation: str = setting("relu", "relu, gelu or silu.")
    norm: str = setting("pre", "pre, or query as SASRec was published.")
    tied: bool = setting(True, "Score against the vectors that the input is read with.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(dim=self.dim, num_blocks=self.num_blocks, num_heads=self.num_heads)
        check_positive(hidden_dim=self.hidden_dim, max_length=self.max_length)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("norm", self.norm, NORMS)


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(TransformerOptions):
    """Options of models that learn from hidden items."""

    mask_rate: float = setting(0.2, "BERT4Rec: share of items that are hidden.")
    last_rate: float = setting(0.1, "BERT4Rec: share of sequences whose last item alone is hidden.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(mask_rate=self.mask_rate, last_rate=self.last_rate)


@dataclass(frozen=True, kw_only=True)
class ModelSpecification:
    """A model's name in settings, its title in reports, its class and its options.

    `make` takes the fields of `options` as keyword arguments, besides the number of items, `features` and
    `generator`.
    """

    name: str
    title: str
    make: Callable[..., SequenceModel]
    options: type[Options] = TransformerOptions

    def build(
        self, options: Options, num_items: int, *, features: Tensor | None, generator: torch.Generator
    ) -> SequenceModel:
        """Make the model with those of `options` that it has, and weights drawn from `generator`."""
        own = {field.name: getattr(options, field.name) for field in fields(self.options)}
        return self.make(num_items, features=features, generator=generator, **own)
