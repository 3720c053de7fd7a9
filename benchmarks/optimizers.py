"""Time one step of the item table's optimisers, row-sparse and dense.

Contenders of a row of a table take turns in one process, so that what else the machine does meets all of
them; times are by the clock, the median over the turns after two that do not count. Gradients and rows are
drawn once from a fixed seed. One thread unless told otherwise: two threads that wait for each other measure
whatever else runs on the machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from machine import describe_machine
from torch import Tensor, nn
from torch.nn import functional

from budgetrec.optimizers import LazyAdam, RowSparseSGD, RowwiseAdagrad, choose_table_updates, make_optimizers
from budgetrec.optimizers.row_gradients import row_blocks

DIM, DISTINCT, GATHERED = 64, 40_000, 80_000
RESULTS = Path(__file__).parent / "results" / "optimizers.md"
Times = dict[str, float]


def coalesce(gradient: Tensor) -> None:
    """Sum duplicates as torch does."""
    gradient.coalesce()


def unique_and_index_add(gradient: Tensor) -> None:
    """Sum duplicates by their place among the distinct rows."""
    rows, places = torch.unique(gradient._indices()[0], return_inverse=True)
    torch.zeros(len(rows), DIM).index_add_(0, places, gradient._values())


def unique_and_dense_backward(gradient: Tensor) -> None:
    """Sum duplicates as the gradient of an embedding of the distinct rows."""
    rows, places = torch.unique(gradient._indices()[0], return_inverse=True)
    torch.ops.aten.embedding_dense_backward(gradient._values(), places, len(rows), -1, False)


def sort_and_segments(gradient: Tensor) -> None:
    """Sum segments of the sorted rows."""
    ids, places = torch.sort(gradient._indices()[0], stable=True)
    _, counts = torch.unique_consecutive(ids, return_counts=True)
    torch.segment_reduce(gradient._values()[places], "sum", lengths=counts, axis=0, unsafe=True)


def sort_and_product(gradient: Tensor) -> None:
    """Multiply by a sparse matrix of ones, one row of it for each distinct row."""
    ids, places = torch.sort(gradient._indices()[0], stable=True)
    _, counts = torch.unique_consecutive(ids, return_counts=True)
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    shape = (len(counts), len(ids))
    ones = torch.sparse_csr_tensor(bounds, places, torch.ones(len(ids)), shape, check_invariants=False)
    ones @ gradient._values()


def sort_and_bags(gradient: Tensor) -> None:
    """Sum duplicates as `row_blocks` does, the one that is used."""
    for _ in row_blocks(gradient):
        pass


def draw_ids(num_items: int, distinct: int, gathered: int) -> Tensor:
    """Draw row ids in random order, each of `distinct` at least once."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(num_items, generator=generator)[:distinct]
    more = rows[torch.randint(distinct, (gathered - distinct,), generator=generator)]
    return torch.cat([rows, more])[torch.randperm(gathered, generator=generator)]


def sparse_gradient(num_items: int, distinct: int, gathered: int) -> Tensor:
    """Make a gradient such as a sparse embedding has, with duplicates."""
    ids = draw_ids(num_items, distinct, gathered)
    values = torch.randn(gathered, DIM, generator=torch.Generator().manual_seed(1))
    return torch.sparse_coo_tensor(ids[None], values, (num_items, DIM), check_invariants=False)


def medians(contenders: dict[str, Callable[[], None]], turns: int) -> Times:
    """Let contenders take turns, and give the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 2):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def time_sums(turns: int) -> str:
    """Compare ways to sum the duplicate rows of a gradient."""
    ways = (
        coalesce,
        unique_and_index_add,
        unique_and_dense_backward,
        sort_and_segments,
        sort_and_product,
        sort_and_bags,
    )
    sizes = (DISTINCT, 1_000_000)
    found = []
    for num_items in sizes:
        gradient = sparse_gradient(num_items, DISTINCT, GATHERED)
        found.append(medians({way.__name__: partial(way, gradient) for way in ways}, turns))
    return table(["sum of duplicate rows", *(f"K = {size:,}" for size in sizes)], found)


def time_steps(turns: int) -> str:
    """Compare a step over the same number of rows of a small and of large tables."""
    makers: dict[str, Callable[[nn.Parameter], torch.optim.Optimizer]] = {
        "RowSparseSGD": lambda rows: RowSparseSGD([rows], learning_rate=1e-3),
        "RowSparseSGD, momentum": lambda rows: RowSparseSGD([rows], learning_rate=1e-3, momentum=0.9),
        "RowwiseAdagrad": lambda rows: RowwiseAdagrad([rows], learning_rate=1e-3),
        "LazyAdam": lambda rows: LazyAdam([rows], learning_rate=1e-3),
        "torch SparseAdam": lambda rows: torch.optim.SparseAdam([rows]),
    }
    sizes = (DISTINCT, 100_000, 1_000_000)
    found = []
    for num_items in sizes:
        gradient = sparse_gradient(num_items, DISTINCT, GATHERED)
        contenders = {}
        for name, make in makers.items():
            parameter = nn.Parameter(torch.randn(num_items, DIM))
            parameter.grad = gradient
            contenders[name] = make(parameter).step
        found.append(medians(contenders, turns))
    return table(["a step", *(f"K = {size:,}" for size in sizes)], found)


def time_updates(turns: int) -> str:
    """Compare dense and row-sparse Adam, the backward pass of the gather included."""
    lines = [
        "| K | rows touched | dense ms | row-sparse ms | row-sparse / dense | chosen |",
        "|" + "---|" * 6,
    ]
    for num_items in (1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000):
        for share in (0.01, 0.1, 0.2, 0.3, 0.5, 1.0):
            distinct = int(share * num_items)
            ids = draw_ids(num_items, distinct, 2 * distinct)
            upstream = torch.randn(len(ids), DIM)
            contenders = {word: update(num_items, ids, upstream, word) for word in ("dense", "row-sparse")}
            found = medians(contenders, turns)
            dense, sparse = found["dense"], found["row-sparse"]
            chosen = choose_table_updates(num_items=num_items, dim=DIM, rows_touched=distinct)
            lines.append(
                f"| {num_items:,} | {distinct:,} | {1e3 * dense:.2f} | {1e3 * sparse:.2f} "
                f"| {sparse / dense:.2f} | {chosen} |"
            )
    return "\n".join(lines)


def update(num_items: int, ids: Tensor, upstream: Tensor, word: str) -> Callable[[], None]:
    """Return one backward pass, step and clearing of the gradient."""
    rows = nn.Parameter(torch.randn(num_items, DIM))
    [optimizer] = make_optimizers([], [rows], optimizer="adam", table_updates=word, learning_rate=1e-3)

    def run() -> None:
        functional.embedding(ids, rows, sparse=word == "row-sparse").backward(upstream)
        optimizer.step()
        optimizer.zero_grad()

    return run


def table(head: list[str], columns: list[Times]) -> str:
    """Set times in milliseconds side by side."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in columns[0]:
        cells = [f"{1e3 * column[name]:.2f}" for column in columns]
        lines.append("| " + " | ".join([name.replace("_", " "), *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    machine = f"`make bench-optimizers`, threads: {asked.threads}, turns: {asked.turns}. {describe_machine()}"
    method = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    parts = [
        "# One step of the item table's optimisers",
        f"d = {DIM}, float32, milliseconds.",
        machine,
        method,
        f"## Summing duplicates: {GATHERED:,} gathered rows, {DISTINCT:,} of them distinct",
        time_sums(asked.turns),
        f"## A step over {GATHERED:,} gathered rows, {DISTINCT:,} of them distinct",
        time_steps(asked.turns),
        "## Dense or row-sparse Adam, each row gathered twice on average, gather and backward included",
        time_updates(asked.turns),
    ]
    RESULTS.write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
