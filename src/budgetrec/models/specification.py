"""What settings and reports need to know about a model: see `models.registry`.

Nothing here imports torch, so that `--help` answers at once.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from budgetrec.errors import ArgumentError, TrainingError
from budgetrec.options import Options, check_choice, check_count, check_share, setting
from budgetrec.units import format_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from budgetrec.models.contract import SequenceModel

ACTIVATIONS = ("relu", "gelu", "silu")
NORMS = ("pre", "query")


def check_heads(dim: int, num_heads: int) -> None:
    """Refuse heads that do not share the width evenly."""
    if num_heads < 1 or dim % num_heads:
        raise ArgumentError(
            f"dim is {dim} and num_heads is {num_heads}; pass a number of heads that divides the width."
        )


def check_dropout(rate: float) -> None:
    """Refuse a share that leaves nothing."""
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout is {rate}; pass a share from 0 to below 1.")


@dataclass(frozen=True, kw_only=True)
class TransformerOptions(Options):
    """Options of every transformer."""

    dim: int = setting(64, "Size of item vectors and hidden states.")
    num_blocks: int = setting(2, "Number of transformer blocks.")
    num_heads: int = setting(2, "Number of attention heads; must divide dim.")
    hidden_dim: int | None = setting(None, "Width of the feed-forward layers. [default: dim]")
    max_length: int = setting(200, "Read at most this many of the latest items of a sequence.")
    dropout: float = setting(0.2, "Dropout rate.")
    activation: str = setting("relu", "One of relu, gelu, silu.")
    norm: str = setting("pre", "Where layer norm goes: pre, or query as in the published SASRec.")
    tied: bool = setting(True, "Use the same item vectors for input and output.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(dim=self.dim, num_heads=self.num_heads, most=2**16)
        check_count(num_blocks=self.num_blocks, most=1000)
        check_count(hidden_dim=self.hidden_dim, max_length=self.max_length, most=2**20)
        check_heads(self.dim, self.num_heads)
        check_dropout(self.dropout)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("norm", self.norm, NORMS)


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(TransformerOptions):
    """Options of models that learn from hidden items."""

    mask_rate: float = setting(0.2, "BERT4Rec: share of items to mask.")
    last_rate: float = setting(0.1, "BERT4Rec: share of sequences in which only the last item is masked.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(mask_rate=self.mask_rate, last_rate=self.last_rate)


def count_weights(options: Options) -> int:
    """Return about how many numbers the encoder of a transformer learns, item vectors apart.

    >>> count_weights(TransformerOptions(dim=64, num_blocks=2, max_length=200))  # 2 x 6 x 64^2 + 200 x 64
    61952
    """
    given = TransformerOptions.of(options)
    widths = 4 * given.dim + 2 * (given.hidden_dim or given.dim)
    return given.dim * (given.num_blocks * widths + given.max_length)


@dataclass(frozen=True, kw_only=True)
class ModelSpecification:
    """A model's name in settings, its title in reports, its class and its options.

    `load` returns the class, which takes the fields of `options` as keyword arguments, besides the number of
    items, `features` and `generator`. `count_weights` says about how many numbers its layers learn, so that
    what no machine holds is refused before it is made.
    """

    name: str
    title: str
    load: "Callable[[], Callable[..., SequenceModel]]"
    options: type[Options] = TransformerOptions
    count_weights: Callable[[Options], int] = count_weights

    def build(
        self, options: Options, num_items: int, *, features: "Tensor | None", generator: "torch.Generator"
    ) -> "SequenceModel":
        """Make the model with those of `options` that it has, and weights drawn from `generator`."""
        needed, there = (
            4 * self.count_weights(options),
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        if needed > there:
            raise TrainingError(
                f"the model needs more memory than there is: its layers alone take {format_bytes(needed)} of "
                f"{format_bytes(there)}. Lower --dim, --num-blocks, --hidden-dim or --max-length."
            )
        own = {field.name: getattr(options, field.name) for field in fields(self.options)}
        return self.load()(num_items, features=features, generator=generator, **own)
