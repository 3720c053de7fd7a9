"""How shell, page and study write numbers, and what they call parts of memory and sources of noise."""

import math

from budgetrec.allocation import SHARING_WORDS

# The parts of memory by their names in a plan, in the order in which they are shown.
MEMORY_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimiser state",
    "encoder": "encoder",
    "rows": "gathered rows",
    "logits": "logits",
    "workspace": "workspace",
}
# What was measured while a run trained: what it added to the process at most, which is what a budget counts,
# and the largest size of the process, Python and torch included.
_MEMORY_LABELS = {"training_bytes": "training adds", "peak_bytes": "process"}
# The sources of noise, likewise.
NOISE_NAMES = {
    "example": "which sequences are drawn",
    "shared_class": "negatives that targets share",
    "target_class": "negatives of a target",
    "bias": "bias of sampling",
}
SHARING_NAMES = SHARING_WORDS  # who shares a set of negatives

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def as_bytes(count: float) -> str:
    """Return bytes in the unit that leaves the fewest digits.

    >>> as_bytes(484_798_464), as_bytes(2**31), as_bytes(0)
    ('462 MiB', '2.00 GiB', '0 bytes')
    """
    size, place = float(count), 0
    while abs(size) >= 1000 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    digits = 0 if place == 0 or abs(size) >= 100 else 1 if abs(size) >= 10 else 2
    return f"{size:,.{digits}f} {_UNITS[place]}"


def as_seconds(seconds: float) -> str:
    """Return a duration in at most two units.

    >>> as_seconds(0.08123), as_seconds(12.83), as_seconds(754), as_seconds(7500)
    ('81 ms', '12.8 s', '12 min 34 s', '2 h 5 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600:,} h {int(seconds) % 3600 // 60} min"


def as_step_seconds(seconds: float) -> str:
    """Return how long a step takes, to a tenth of a millisecond: plans can differ by that little.

    >>> as_step_seconds(0.0123), as_step_seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def as_range(low: float, high: float, form: str = ".4f") -> str:
    """Return the two ends of an interval.

    >>> as_range(-0.5, 1), as_range(-0.5, 1, "+.1f")
    ('-0.5000 to 1.0000', '-0.5 to +1.0')
    """
    return f"{low:{form}} to {high:{form}}"


def as_number(value: float) -> str:
    """Return a whole number with commas, another with four figures.

    >>> as_number(12_000), as_number(0.17632133), as_number(0.0000123456)
    ('12,000', '0.1763', '1.235e-05')
    """
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_share(share: float) -> str:
    """Return a share of a whole in percent.

    >>> as_share(0.2251), as_share(0.003)
    ('23%', '0.3%')
    """
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"


def as_text(name: str, value: object) -> str:
    """Return any setting as text, by what its name says of its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int | float):
        if name.endswith("_bytes"):
            return as_bytes(value)
        if name.endswith("_seconds"):
            return as_seconds(value)
        return str(value) if name == "seed" else as_number(value)
    if isinstance(value, list | tuple):
        return ", ".join(as_text(name, each) for each in value)
    return str(value)


def label(name: str) -> str:
    """Return a key as words.

    >>> label("num_negatives"), label("training_bytes"), label("peak_bytes")
    ('num negatives', 'training adds', 'process')
    """
    return _MEMORY_LABELS.get(name, name.replace("_", " "))
