"""The noise probe: measures the sources of a model's gradient noise within seconds (docs/probe.md)."""

from budgetrec.probe.measure import NoiseProbe, measure_noise

__all__ = ["NoiseProbe", "measure_noise"]
