"""How lean mode cuts logits into blocks, and how many exist at once.

Objectives cut by these numbers, and memory is predicted from them.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Below this many targets in a block of torch's, products with the whole table are slow.
FEWEST_TARGETS = 64
TILE_TARGETS = 1024


def block_steps(
    size: ArrayLike, dim: int, num_negatives: ArrayLike, element_size: int, block_bytes: int
) -> tuple[Floats, Floats]:
    """Return how many groups of `size` targets a block holds, and how many targets of a group.

    >>> [int(step) for step in block_steps(10, 6, 4, 4, 1024)]  # 256 bytes per group: logits and rows
    [4, 10]
    """
    size, num_negatives = np.asarray(size), np.asarray(num_negatives)
    groups = np.maximum(1, block_bytes // ((size + dim) * num_negatives * element_size))
    columns = np.where(groups > 1, size, np.maximum(1, block_bytes // (num_negatives * element_size)))
    return groups, columns


def in_tiles(num_items: int, element_size: int, block_bytes: int) -> bool:
    """Say whether lean mode cuts the items too, as a block against all of them would hold few targets."""
    return block_bytes // (num_items * element_size) < FEWEST_TARGETS


def tile_items(block_bytes: int) -> int:
    """Return how many items a tile holds."""
    return max(1, block_bytes // (4 * TILE_TARGETS))


def logits_at_once(targets: Floats, num_items: int, block_bytes: int, *, tiles: bool) -> Floats:
    """Count the logits against every item that exist at once in lean mode."""
    if tiles:
        return np.minimum(targets, TILE_TARGETS) * min(tile_items(block_bytes), num_items)
    return np.minimum(targets, block_bytes // (4 * num_items)) * num_items
