"""Where a run is, as its checkpoint keeps it."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from budgetrec.allocation import Allocation
from budgetrec.options import has_type

_ANY_SIGN = ("loss_sum", "best")  # of objectives and metrics that know negative values


@dataclass
class Progress:
    """Where a run is; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    examples: int = 0
    targets: int = 0
    logits: int = 0
    seconds: float = 0.0  # of training, evaluation and saving apart
    next_evaluation: int = 0  # in examples
    loss_sum: float = 0.0  # since the last evaluation
    loss_steps: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    micro_batches: int | None = None  # where steps had to be cut finer than was asked for
    allocation: Allocation | None = None  # what replanning chose
    next_batch_size: int | None = None  # from the next epoch on

    def to_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], start: Allocation) -> Self:
        """Restore what `to_dict` returned; a run that began with `start` may name changes of it only."""
        changed = state.get("allocation")
        allocation = dataclasses.replace(start, **changed) if changed else None
        progress = cls(**{**state, "allocation": allocation})
        for name, kind in get_type_hints(cls).items():
            value = getattr(progress, name)
            if not has_type(value, kind):
                raise TypeError(f"{name} is {value!r}")
            if name not in _ANY_SIGN and isinstance(value, int | float) and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")
        return progress
