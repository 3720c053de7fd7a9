"""Where a run is, as its checkpoint keeps it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from budgetrec.allocation import Allocation


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
        return cls(**{**state, "allocation": allocation})
