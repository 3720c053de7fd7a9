"""Row-sparse optimisers agree with torch and with slow loops, and leave other rows alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from budgetrec.errors import ArgumentError
from budgetrec.optimizers import LazyAdam, RowSparseSGD, RowwiseAdagrad
from budgetrec.optimizers import row_gradients as row_gradients_module
from budgetrec.optimizers.row_gradients import row_blocks

from .conftest import DIM, NUM_ITEMS, ROW_SPARSE, random_table, set_row_gradient

TORCH = {
    "sgd": lambda tables: torch.optim.SGD(tables, 0.1),
    "sgd, decay": lambda tables: torch.optim.SGD(tables, 0.1, weight_decay=0.2),
    "momentum": lambda tables: torch.optim.SGD(tables, 0.1, momentum=0.9),
    "adam": lambda tables: torch.optim.Adam(tables, 0.1, betas=(0.9, 0.98)),
    "adam, decay": lambda tables: torch.optim.Adam(tables, 0.1, betas=(0.9, 0.98), weight_decay=0.2),
    "adamw": lambda tables: torch.optim.AdamW(tables, 0.1, betas=(0.9, 0.98), weight_decay=0.2),
}


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("dense", [True, False])
def test_all_rows_touched_is_the_optimizer_of_torch(kind: str, dense: bool):
    """Ten steps that touch every row, by a dense or a sparse gradient, agree with torch to 1e-6."""
    ours, theirs = random_table(), random_table()
    our_optimizer, their_optimizer = ROW_SPARSE[kind]([ours]), TORCH[kind]([theirs])
    for step in range(10):
        set_row_gradient(ours, range(NUM_ITEMS), seed=step)
        theirs.grad = ours.grad.to_dense()
        if dense:
            ours.grad = theirs.grad.clone()
        our_optimizer.step()
        their_optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_lazy_adam_is_sparse_adam_of_torch():
    """Rows that come and go follow `torch.optim.SparseAdam`, whose correction counts the table's steps."""
    ours, theirs = random_table(), random_table()
    our_optimizer = LazyAdam([ours], learning_rate=0.1, betas=(0.9, 0.98))
    their_optimizer = torch.optim.SparseAdam([theirs], 0.1, betas=(0.9, 0.98))
    for step, ids in enumerate(([1, 5, 5], [2], [1, 2, 2, 2, 11], [0, 5])):
        set_row_gradient(ours, ids, seed=step)
        set_row_gradient(theirs, ids, seed=step)
        our_optimizer.step()
        their_optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_momentum_by_hand():
    """An untouched row keeps its velocity: 1, then (untouched), then 0.5 * 1 + 1 = 1.5."""
    table = nn.Parameter(torch.zeros(2, 1))
    optimizer = RowSparseSGD([table], learning_rate=1.0, momentum=0.5)
    for row in (0, 1, 0):
        table.grad = torch.sparse_coo_tensor([[row]], [[1.0]], (2, 1), check_invariants=True)
        optimizer.step()
    assert table.flatten().tolist() == [-2.5, -1.0]


def test_lazy_adam_by_hand():
    """The second step on a fresh row divides by 1 - beta^2 and not 1 - beta: it counts the table's steps."""
    table = nn.Parameter(torch.zeros(2, 1))
    optimizer = LazyAdam([table], learning_rate=1.0, betas=(0.5, 0.75), epsilon=1e-12)
    for row in (0, 1):
        table.grad = torch.sparse_coo_tensor([[row]], [[3.0]], (2, 1), check_invariants=True)
        optimizer.step()
    # m = 0.5 g, v = 0.25 g^2; corrected by 1 - 0.5^2 and 1 - 0.75^2
    expected = -(0.5 / 0.75) / math.sqrt(0.25 / 0.4375)
    assert table.flatten().tolist() == pytest.approx([-1.0, expected], abs=1e-6)


def test_adagrad_by_hand():
    """Gradients (1, 7) then (3, 4): mean squares 25 and 12.5 add up to 37.5."""
    table = nn.Parameter(torch.zeros(3, 2))
    optimizer = RowwiseAdagrad([table], learning_rate=1.0, epsilon=1e-12)
    for gradient in ([1.0, 7.0], [3.0, 4.0]):
        table.grad = torch.sparse_coo_tensor([[1]], [gradient], (3, 2), check_invariants=True)
        optimizer.step()
    root = math.sqrt(37.5)
    assert table[1].tolist() == pytest.approx([-1 / 5 - 3 / root, -7 / 5 - 4 / root], abs=1e-6)
    assert optimizer.state[table]["sum"].tolist() == [0.0, 37.5, 0.0]


def test_adagrad_takes_a_dense_gradient():
    """A dense gradient is one that touches every row."""
    dense, sparse = random_table(), random_table()
    optimizers = [RowwiseAdagrad([table], learning_rate=0.1, weight_decay=0.2) for table in (dense, sparse)]
    for step in range(3):
        set_row_gradient(sparse, range(NUM_ITEMS), seed=step)
        dense.grad = sparse.grad.to_dense()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(dense, sparse)


@pytest.mark.parametrize("kind", ROW_SPARSE)
def test_rows_that_are_not_touched_stay_as_they_are(kind: str):
    """A row without a gradient keeps its weights and moments bit for bit, whatever the decay."""
    table = random_table()
    optimizer = ROW_SPARSE[kind]([table])
    set_row_gradient(table, range(NUM_ITEMS), seed=0)
    optimizer.step()
    state = {name: tensor for name, tensor in optimizer.state[table].items() if name != "step"}
    before = {name: tensor.clone() for name, tensor in ({"table": table.data} | state).items()}
    set_row_gradient(table, [3, 8, 3], seed=1)
    optimizer.step()
    others = torch.tensor([row not in (3, 8) for row in range(NUM_ITEMS)])
    for name, tensor in ({"table": table.data} | state).items():
        assert torch.equal(tensor[others], before[name][others])
        assert not bool((tensor[~others] == before[name][~others]).any())


def loop(kind: str, start: Tensor, steps: list[tuple[list[int], Tensor]]) -> Tensor:
    """Apply an optimiser one row and one step at a time, in double precision."""
    table = start.double().clone()
    first, second = torch.zeros_like(table), torch.zeros_like(table)
    decay = 0.2 if "decay" in kind or kind == "adamw" else 0.0
    for count, (ids, entries) in enumerate(steps, start=1):
        for row in set(ids):
            gradient = sum(entry.double() for place, entry in zip(ids, entries, strict=True) if place == row)
            if kind == "adamw":
                table[row] *= 1 - 0.1 * decay
            else:
                gradient = gradient + decay * table[row]
            if kind.startswith("adagrad"):
                first[row] += gradient.square().mean()
                table[row] -= 0.1 * gradient / (first[row].sqrt() + 1e-8)
            elif kind.startswith("adam"):
                first[row] = 0.9 * first[row] + 0.1 * gradient
                second[row] = 0.98 * second[row] + 0.02 * gradient.square()
                corrected = second[row] / (1 - 0.98**count)
                table[row] -= 0.1 * first[row] / (1 - 0.9**count) / (corrected.sqrt() + 1e-8)
            else:
                first[row] = (0.9 if kind == "momentum" else 0.0) * first[row] + gradient
                table[row] -= 0.1 * first[row]
    return table


ID_LISTS = st.lists(st.lists(st.integers(0, NUM_ITEMS - 1), max_size=30), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ROW_SPARSE)
@given(touched=ID_LISTS, block_rows=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_any_rows_with_duplicates_are_those_of_a_slow_loop(
    kind: str, touched: list[list[int]], block_rows: int
):
    """Whatever rows a step touches, how often, and in blocks of whatever size."""
    table = random_table()
    start, optimizer, steps = table.data.clone(), ROW_SPARSE[kind]([table]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_gradients_module, "BLOCK_BYTES", block_rows * DIM * 4)
        for seed, ids in enumerate(touched):
            steps.append((ids, set_row_gradient(table, ids, seed)))
            optimizer.step()
    torch.testing.assert_close(table.double(), loop(kind, start, steps), rtol=1e-4, atol=1e-5)


@given(ids=st.lists(st.integers(0, 99), max_size=60), block_rows=st.integers(1, 7), coalesced=st.booleans())
@settings(deadline=None)
def test_blocks_are_the_coalesced_gradient(ids: list[int], block_rows: int, coalesced: bool):
    """Joined, the blocks equal the result of torch's `coalesce`, whether or not it ran before."""
    entries = torch.randn(len(ids), 3, generator=torch.Generator().manual_seed(0))
    gradient = torch.sparse_coo_tensor([ids], entries, (100, 3), check_invariants=True)
    expected = gradient.coalesce()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_gradients_module, "BLOCK_BYTES", block_rows * 12)
        blocks = list(row_blocks(expected if coalesced else gradient))
    assert all(len(rows) <= block_rows for rows, _ in blocks)
    assert [row for rows, _ in blocks for row in rows.tolist()] == expected.indices()[0].tolist()
    if blocks:
        torch.testing.assert_close(torch.cat([sums for _, sums in blocks]), expected.values())


def test_two_gathers_of_one_table_add_up():
    """Input and output embeddings share the table; their gradients are one sparse tensor, and are summed."""
    table = nn.Parameter(torch.zeros(4, 1))
    history, targets = torch.tensor([1, 2]), torch.tensor([2, 3])
    gathers = [nn.functional.embedding(ids, table, sparse=True).sum() for ids in (history, targets)]
    (gathers[0] + 10 * gathers[1]).backward()
    RowSparseSGD([table], learning_rate=1.0).step()
    assert table.flatten().tolist() == [0.0, -1.0, -11.0, -10.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ROW_SPARSE)
def test_tables_of_other_types_keep_their_type(kind: str, dtype: torch.dtype):
    """Half and double precision work too, and the state has the table's type."""
    table, reference = nn.Parameter(random_table().data.to(dtype)), random_table()
    optimizer, exact = ROW_SPARSE[kind]([table]), ROW_SPARSE[kind]([reference])
    entries = set_row_gradient(reference, [2, 7], seed=0)
    table.grad = torch.sparse_coo_tensor([[2, 7]], entries.to(dtype), table.shape, check_invariants=True)
    optimizer.step()
    exact.step()
    assert table.dtype == dtype
    assert {tensor.dtype for name, tensor in optimizer.state[table].items() if name != "step"} <= {dtype}
    torch.testing.assert_close(table.float(), reference.data, rtol=0.01, atol=0.02)


def test_a_closure_is_run_with_gradients():
    """`step` takes a closure as every optimiser of torch does, and returns its loss."""
    table = nn.Parameter(torch.ones(2, 1))
    optimizer = RowSparseSGD([table], learning_rate=0.5)

    def closure() -> float:
        loss = nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert table.flatten().tolist() == [1.0, 0.5]


def test_a_table_without_a_gradient_is_left_alone():
    """No gradient, no state."""
    table = random_table()
    optimizer = LazyAdam([table], learning_rate=0.1)
    optimizer.step()
    assert table not in optimizer.state
    assert torch.equal(table, random_table())


def test_a_vector_is_refused():
    """Biases and norms belong to a dense optimiser."""
    with pytest.raises(ArgumentError, match=r"shape \(3,\) is not a table of rows; pass tables"):
        RowSparseSGD([nn.Parameter(torch.zeros(3))], learning_rate=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1.0; pass"),
        ({"learning_rate": math.nan}, "learning_rate is nan; pass"),
        ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\); pass two numbers"),
        ({"epsilon": 0.0}, "epsilon is 0.0; pass a number above 0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; pass"),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings: dict[str, object], message: str):
    """A wrong number is refused when the optimiser is made."""
    with pytest.raises(ArgumentError, match=message):
        LazyAdam([random_table()], **({"learning_rate": 0.1} | settings))
