"""The noise probe: measures the sources of a model's gradient noise within seconds (docs/probe.md)."""

from budgetrec.probe.measure import NoiseProbe, measure_noise
from budgetrec.probe.steps import AllocationCheck, ProbedLayer, check_allocation

__all__ = ["AllocationCheck", "NoiseProbe", "ProbedLayer", "check_allocation", "measure_noise"]
