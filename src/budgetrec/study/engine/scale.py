"""How much of a study to run, and where; light to import, for the command line."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar


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


Size = TypeVar("Size")


def by_scale(make: Callable[..., Size], **sizes: tuple[object, object, object]) -> dict[Scale, Size]:
    """Make something for each scale; every argument is given for smoke, small and paper.

    >>> by_scale(dict, steps=(3, 30, 50))[Scale.SMALL]
    {'steps': 30}
    """
    return {
        scale: make(**{name: each[place] for name, each in sizes.items()})
        for place, scale in enumerate(Scale)
    }
