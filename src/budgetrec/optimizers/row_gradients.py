"""Sum the duplicate rows of a sparse gradient, one block of rows at a time."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

# The size of a block of one tensor. Four of them are in use at once (the gradient, the table's rows and two
# moments) and should stay in a core's caches. Measured on two cores with 40,000 rows of 64 floats: 1/2 to 2
# MiB perform alike, 1/8 MiB is a third slower, and a single block is slower whenever it needs fresh pages.
BLOCK_BYTES = 2**20


def row_blocks(gradient: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of distinct rows (R,) in ascending order, with the sums (R, d) of their entries.

    `gradient` is a sparse (K, d) tensor with one sparse axis, as `embedding(..., sparse=True)` makes,
    coalesced or not. Entries are summed in the order given, so equal gradients give equal sums bit for bit.

    >>> ids, values = torch.tensor([[7, 2, 7]]), torch.tensor([[1.0, 0.5], [3.0, 3.0], [1.0, 0.25]])
    >>> [(rows, sums)] = row_blocks(torch.sparse_coo_tensor(ids, values, (9, 2), check_invariants=True))
    >>> rows, sums
    (tensor([2, 7]), tensor([[3.0000, 3.0000],
            [2.0000, 0.7500]]))
    """
    ids, values = gradient._indices()[0], gradient._values()
    if ids.numel() == 0:
        return
    # A stable sort with one bag per row takes half the time of `coalesce()` and of the best of four other
    # methods: see benchmarks/results/optimizers.md. 32-bit ids sort faster than 64-bit ones.
    ids = ids.to(torch.int32 if gradient.shape[0] < 2**31 else torch.int64)
    ids, places = torch.sort(ids, stable=True)
    is_first = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ids[1:], ids[:-1], out=is_first[1:])
    starts = is_first.nonzero()[:, 0]
    rows = ids[starts].long()
    size = max(1, BLOCK_BYTES // (values.shape[1] * values.element_size()))
    bounds = [*starts[::size].tolist(), ids.numel()]
    for block, (start, end) in enumerate(pairwise(bounds)):
        of_block = slice(block * size, (block + 1) * size)
        bags = starts[of_block] - start
        yield rows[of_block], functional.embedding_bag(places[start:end], values, bags, mode="sum")
