"""How a record of options declares and checks its fields."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

from budgetrec.errors import ArgumentError

Value = bool | int | float | str | None  # what an option can hold


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of all records of options; by itself, it has none."""

    def __post_init__(self) -> None:
        """Refuse what cannot be; records that inherit from several check each part in turn."""

    @classmethod
    def of(cls, options: "Options") -> Self:
        """Return `options` as the record that a builder needs."""
        if not isinstance(options, cls):
            raise TypeError(f"the options are {type(options).__name__}, not {cls.__name__}")
        return options


def setting(default: Any, text: str) -> Any:
    """Declare a field with the sentence that `--help` shows."""
    return field(default=default, metadata={"help": text})


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of `choices`."""
    if value not in choices:
        raise ArgumentError(f"{name} is {value!r}; pass one of {', '.join(choices)}.")


def check_positive(**values: float | None) -> None:
    """Refuse numbers that are not above 0; None stands for nothing asked."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ArgumentError(f"{name} is {value}; pass a number above 0.")


def check_count(*, most: int = 10**12, **values: int | None) -> None:
    """Refuse whole numbers below 1 or above `most`; None stands for nothing asked."""
    for name, value in values.items():
        if value is not None and not 1 <= value <= most:
            raise ArgumentError(f"{name} is {value}; pass a number from 1 to {most:,}.")


def check_share(**values: float) -> None:
    """Refuse numbers outside of 0 to 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ArgumentError(f"{name} is {value}; pass a share between 0 and 1.")


def check_not_negative(**values: float) -> None:
    """Refuse numbers below 0."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ArgumentError(f"{name} is {value}; pass 0 or more.")
