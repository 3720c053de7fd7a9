"""How much of a study to run, and where; light to import, for the command line."""

from enum import StrEnum


class Scale(StrEnum):
    """Seconds, minutes, or the size of the paper."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


class EngineName(StrEnum):
    """Where cells run: in this process, in processes of this machine, or on a Ray cluster."""

    SERIAL = "serial"
    LOCAL = "local"
    RAY = "ray"
