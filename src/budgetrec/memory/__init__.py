"""How many bytes training takes: predicted by a dry run, and measured."""

from budgetrec.memory.heap import steady_heap
from budgetrec.memory.overhead import measure_overhead
from budgetrec.memory.peaks import peak_bytes, reset_peak, resident_bytes
from budgetrec.memory.run_memory import RunMemory

__all__ = ["RunMemory", "measure_overhead", "peak_bytes", "reset_peak", "resident_bytes", "steady_heap"]
