"""What the rest of the package knows about a sampler besides how it draws: see `samplers.registry`.

Nothing here imports torch, so that `--help` answers at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budgetrec.errors import ArgumentError
from budgetrec.options import Options, setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from budgetrec.samplers.contract import AnySampler, LastingSampler


_MOST_POWER = 20  # of a count of billions, it is still a number


@dataclass(frozen=True, kw_only=True)
class PopularityOptions(Options):
    """Options of samplers that draw by how often items occur."""

    popularity_power: float = setting(1.0, "Popularity sampler: raise counts to this power.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.popularity_power <= _MOST_POWER:
            raise ArgumentError(
                f"popularity_power is {self.popularity_power}; pass a number from 0 to {_MOST_POWER}."
            )


@dataclass(frozen=True, kw_only=True)
class SamplerParts:
    """What a sampler is built from.

    `train_counts` (K,) say how often items occur, `target_counts` counts how often they fill a number of
    slots that are drawn from each batch's targets, and `item_table` makes the vectors (K, d) for samplers
    that look at them.
    """

    num_items: int
    num_negatives: int
    train_counts: "NDArray[np.int64]"
    target_counts: "Callable[[int], NDArray[np.float64]]"
    item_table: "Callable[[], Tensor]"
    options: Options


def uniform_proposal(sampler: "AnySampler") -> "Tensor | None":
    """Say that every item is as likely as any other."""
    return None


def never_lasts(sampler: "AnySampler") -> "LastingSampler | None":
    """Say that draws depend on nothing but the generator and the batch."""
    return None


@dataclass(frozen=True, kw_only=True)
class SamplerSpecification:
    """A sampler's name, its own options and what settings, planner, memory and checkpoints ask about it.

    `proposal` gives log q of all items (K,), or None where it is uniform. A sampler that has no single one
    says `why_no_proposal`, and cannot be planned with.
    """

    name: str
    build: "Callable[[SamplerParts], AnySampler]"
    options: type[Options] = Options
    whole_batch: bool = False  # it draws from the targets of the whole batch, so only a batch can share
    share_from_batch: float = 0.0  # of the negatives; a batch has no more of them than it has targets
    fewest_negatives: int = 1
    adaptive: bool = False  # it looks at hidden states, so a batch cannot be cut before the draw
    by_counts: bool = False  # it draws popular items more often, which memory counts
    proposal: "Callable[[AnySampler], Tensor | None]" = uniform_proposal
    why_no_proposal: str | None = None
    lasting: "Callable[[AnySampler], LastingSampler | None]" = never_lasts
