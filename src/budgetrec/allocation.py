"""The allocation: how one training step spends memory and time."""

import dataclasses
from dataclasses import dataclass
from typing import Self

from budgetrec.objectives.registry import OBJECTIVES
from budgetrec.options import Value

SHARING_WORDS = {
    "batch": "one set for the batch",
    "sequence": "one set per sequence",
    "target": "one set per target",
}
SHORT_WORDS = {**SHARING_WORDS, "batch": "one set"}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a step is made of: how many sequences and negatives, who shares them, and how memory is saved.

    `table_updates` is "dense", "row-sparse" or "auto"; `micro_batches` None: cut as is fastest.

    >>> Allocation(batch_size=64, num_negatives=256).describe()
    'one set per sequence'
    """

    batch_size: int
    num_negatives: int
    sharing: str = "sequence"
    objective: str = "sampled-softmax"
    lean: bool = False
    micro_batches: int | None = None
    table_updates: str = "auto"

    @property
    def draws(self) -> bool:
        """Whether negatives are drawn; else every item is scored."""
        return OBJECTIVES[self.objective].draws

    @property
    def settings(self) -> dict[str, Value]:
        """The settings of a run that trains this way, by name."""
        unread = () if self.draws else ("num_negatives", "sharing")
        found = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: value for name, value in found.items() if value is not None and name not in unread}

    @property
    def family(self) -> Self:
        """The same way to take a step, whatever n and k are and however the step is cut."""
        return dataclasses.replace(self, batch_size=1, num_negatives=1, micro_batches=None)

    def at(self, batch_size: int, num_negatives: int) -> Self:
        """Return the same way to take a step with other numbers."""
        return dataclasses.replace(self, batch_size=batch_size, num_negatives=num_negatives)

    def describe(self) -> str:
        """Name the way to take a step in a few words."""
        name = SHORT_WORDS[self.sharing] if self.draws else self.objective.replace("-", " ")
        extras = ["lean"] if self.lean else []
        extras += [f"{self.micro_batches} micro-batches"] if (self.micro_batches or 1) > 1 else []
        extras += ["row-sparse"] if self.table_updates == "row-sparse" else []
        return ", ".join([name, *extras])
