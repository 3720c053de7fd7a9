"""How much of a study to run; light to import, for the command line."""

from enum import StrEnum


class Scale(StrEnum):
    """Seconds, minutes, or the size of the paper."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"
