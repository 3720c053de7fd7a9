"""The allocation: how one training step spends memory and time."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

Sharing = Literal["batch", "sequence", "target"]
SHARINGS: tuple[Sharing, ...] = ("sequence", "batch", "target")
SHARING_WORDS = {
    "batch": "one set for the batch",
    "sequence": "one set per sequence",
    "target": "one set per target",
}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a step is made of: how many sequences and negatives, who shares them, and how memory is saved.

    `table_updates` is "dense", "row-sparse" or "auto"; `micro_batches` None: as is fastest.

    >>> Allocation(batch_size=64, num_negatives=256).settings["sharing"]
    'sequence'
    """

    batch_size: int
    num_negatives: int
    sharing: str = "sequence"
    objective: str = "sampled-softmax"
    lean: bool = False
    micro_batches: int | None = None
    table_updates: str = "auto"

    @property
    def settings(self) -> dict[str, int | str | bool | None]:
        """The settings of a run that trains this way, by name."""
        return dataclasses.asdict(self)

    @property
    def family(self) -> Self:
        """The same way to take a step whatever n and k are, and however a step is cut."""
        return dataclasses.replace(self, batch_size=1, num_negatives=1, micro_batches=None)
