"""Ranges of different lengths, laid end to end without a loop over them."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_AT_ONCE = 2**20  # elements


def lay_out(begins: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return for each element of the ranges which range it is in, and its place.

    >>> [part.tolist() for part in lay_out(np.array([5, 0]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 0]]
    """
    first = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(begins - first, lengths)
    return np.repeat(np.arange(len(lengths)), lengths), places


def lay_out_in_blocks(begins: Ints, lengths: Ints) -> Iterator[tuple[slice, Ints, Ints]]:
    """Yield some of the ranges at a time, about a million elements, with what `lay_out` says of them."""
    number = np.cumsum(lengths) // _AT_ONCE
    bounds = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(lengths)]
    for begin, end in pairwise(bounds):
        block = slice(begin, end)
        yield block, *lay_out(begins[block], lengths[block])
