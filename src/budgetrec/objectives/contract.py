"""What training asks of an objective."""

from typing import Protocol

import torch
from torch import Tensor

from budgetrec.objectives.checks import Table
from budgetrec.objectives.modules import Drawn
from budgetrec.samplers.contract import Negatives


class Objective(Protocol):
    """A loss that training can cut into parts."""

    @property
    def separable(self) -> bool:
        """Whether the loss of a batch is the mean of its parts' losses."""

    whole_table: bool  # whether it scores against the whole table instead of gathered rows

    def draw(self, targets: Tensor, mask: Tensor, generator: torch.Generator) -> Drawn | None:
        """Draw for a whole batch, or return None if there is nothing to draw, or not yet."""

    def num_logits(self, num_targets: int, num_items: int) -> int:
        """Count the scores that `num_targets` targets are compared with."""

    def __call__(
        self,
        hidden: Tensor,
        targets: Tensor,
        table: Table,
        *,
        mask: Tensor,
        generator: torch.Generator,
        **negatives: Negatives,
    ) -> Tensor:
        """Return the mean loss; `negatives` are passed only where `draw` returned some."""
