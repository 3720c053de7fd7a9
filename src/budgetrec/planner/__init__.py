"""The planner: a number of bytes in, batch size, negatives and sharing out, with reasons (docs/planning.md)."""

from budgetrec.planner.making import Planner, plan
from budgetrec.planner.record import Plan

__all__ = ["Plan", "Planner", "plan"]
