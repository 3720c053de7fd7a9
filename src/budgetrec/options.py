"""How a record of options declares and checks its fields."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
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


def has_type(value: object, kind: Any) -> bool:
    """Whether a value read from a file has the type that a field declares, all the way down.

    A whole number may stand for a float; a dictionary of declared keys may lack some and have others.

    >>> has_type({"a": 1}, Mapping[str, int]), has_type({"a": "x"}, Mapping[str, int])
    (True, False)
    """
    inside = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(has_type(value, each) for each in inside)
    if typing.is_typeddict(kind) or is_dataclass(kind):
        held = value if isinstance(value, dict) else vars(value) if type(value) is kind else None
        hints = typing.get_type_hints(kind)
        return held is not None and all(has_type(held[name], hints[name]) for name in held if name in hints)
    origin = typing.get_origin(kind)
    if origin in (list, tuple):
        return isinstance(value, origin) and all(has_type(each, inside[0]) for each in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            has_type(name, inside[0]) and has_type(each, inside[1]) for name, each in value.items()
        )
    return kind is object or type(value) is kind or (kind is float and type(value) is int)
