"""Bytes as people write them."""

import re

from budgetrec.errors import ArgumentError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgt", 1)}
_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_LEAST, _MOST = 2**20, 2**50  # less trains nothing, more has nobody


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes such as 512MiB, 2GiB, 1.5GB or 2147483648.

    >>> parse_bytes("1.5GB"), parse_bytes("2 GiB"), parse_bytes(4096 * 1024)
    (1500000000, 2147483648, 4194304)
    """
    match = _NUMBER.fullmatch(str(text))
    unit = match[2].lower() if match else ""
    try:
        number = float(match[1]) * _UNITS[unit] if match else None
    except (ValueError, KeyError, OverflowError):
        number = None
    if number is None:
        raise ArgumentError(f"{str(text)!r} is not a number of bytes. Pass one such as 512MiB or 1.5GB.")
    if number < _LEAST:
        raise ArgumentError(
            f"{str(text)!r} is {number:,.0f} bytes, too few to train anything. Pass at least 1MiB."
        )
    if number > _MOST:
        raise ArgumentError(f"{str(text)!r} is more memory than any machine has. Pass at most 1024TiB.")
    return round(number)


def format_bytes(count: float) -> str:
    """Write bytes for people.

    >>> format_bytes(2**31), format_bytes(5 * 2**20), format_bytes(700)
    ('2.0 GiB', '5 MiB', '700 bytes')
    """
    if count >= 2**30:
        return f"{count / 2**30:,.1f} GiB"
    if count >= 10 * 2**20:
        return f"{count / 2**20:,.0f} MiB"
    if count >= 2**20:
        return f"{count / 2**20:,.1f} MiB".replace(".0 ", " ")
    return f"{count / 2**10:,.0f} KiB" if count >= 2**10 else f"{count:,.0f} bytes"
