"""The noise probe: what a model's gradient noise is made of, measured in seconds (docs/probe.md)."""

from budgetrec.probe.measure import NoiseProbe, measure_noise

__all__ = ["NoiseProbe", "measure_noise"]
