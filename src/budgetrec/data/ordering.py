"""Put interactions in the order of sequences: by user, then time, then place in the source."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS = 1 << 14  # small enough for a processor's cache and for keys of 63 bits


def sequence_order(users: NDArray[np.int32], times: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Give the row numbers in order of user, time and place in the source; None if they are in order.

    Sorting plain 64-bit numbers is several times faster than sorting rows by two columns. So user, time
    and row are packed into one number, block by block of whole users; where they do not fit (microseconds
    over many years), a two-key sort takes the block.
    """
    rows = None if _ascending(users) else _grouped_rows(users)
    if times is None:
        return rows
    grouped = users if rows is None else users[rows]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(grouped)) + 1, [len(users)]])
    order = np.arange(len(users)) if rows is None else rows
    # Cut at the first user that begins at or after each multiple of the block size.
    wanted = np.arange(0, len(users), _BLOCK_ROWS)
    cuts = np.unique(np.append(starts[np.searchsorted(starts, wanted)], len(users)))
    for begin, end in pairwise(cuts):
        block = order[begin:end]
        block[:] = block[_order_in_block(grouped[begin:end], times[block])]
    return order


def _ascending(values: NDArray[np.int32]) -> bool:
    return bool(np.all(values[1:] >= values[:-1]))


def _grouped_rows(users: NDArray[np.int32]) -> NDArray[np.int64]:
    row_bits = len(users).bit_length()
    keys = users.astype(np.int64)
    keys <<= row_bits
    keys |= np.arange(len(users))
    keys.sort()
    keys &= (1 << row_bits) - 1
    return keys


def _order_in_block(users: NDArray[np.int32], times: NDArray[np.int64]) -> NDArray[np.int64]:
    earliest = int(times.min())
    row_bits = len(users).bit_length()
    time_bits = (int(times.max()) - earliest).bit_length()
    user_bits = int(users[-1] - users[0]).bit_length()
    if row_bits + time_bits + user_bits > 63:
        return np.asarray(np.lexsort((times, users)))
    keys: NDArray[np.int64] = (users - users[0]).astype(np.int64)
    keys <<= time_bits
    keys |= times - earliest
    keys <<= row_bits
    keys |= np.arange(len(users))
    keys.sort()
    keys &= (1 << row_bits) - 1
    return keys
