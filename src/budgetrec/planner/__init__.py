"""The planner: a number of bytes in, batch size, negatives and sharing out, with reasons ."""

from budgetrec.planner.making import Planner, plan
from budgetrec.planner.record import Plan

__all__ = ["Plan", "Planner", "plan"]
