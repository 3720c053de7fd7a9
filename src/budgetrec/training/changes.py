"""What may change the allocation of a run while it trains."""

from collections.abc import Callable
from dataclasses import dataclass

from budgetrec.allocation import Allocation
from budgetrec.stepping.stepper import Stepper


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another allocation, or None to keep the one that is there, and a sentence that says why."""

    sentence: str
    allocation: Allocation | None = None


Replan = Callable[[Stepper], Change]
