"""Optimisers of item tables that read and write only the rows that a step has touched.

Each takes the sparse gradient of `embedding(..., sparse=True)`, gathers the rows of the table and of its
state a block at a time, updates them with torch's own kernels and copies them back, so that a step costs as
much for ten million items as for ten thousand. A row that was not touched stays as it is: its moments do not
decay, and neither does its weight. A dense gradient touches every row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final, overload

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from budgetrec.errors import ArgumentError
from budgetrec.optimizers.checks import (
    check_betas,
    check_epsilon,
    check_learning_rate,
    check_momentum,
    check_weight_decay,
)
from budgetrec.optimizers.row_gradients import row_blocks

# Where torch 2.13 has fused kernels for all of Adam, AdamW, SGD and Adagrad.
FUSED_DEVICES = ("cpu", "cuda")


class RowSparseOptimizer(torch.optim.Optimizer, ABC):
    """What the row-sparse optimisers share: gather rows, update them, copy them back."""

    def __init__(self, tables: Iterable[nn.Parameter], defaults: dict[str, Any]) -> None:
        tables = list(tables)
        for table in tables:
            if table.dim() != 2:
                raise ArgumentError(
                    f"a parameter of shape {tuple(table.shape)} is no table of rows; "
                    "pass tables (items, dim) here and other parameters to an optimiser of torch."
                )
        super().__init__(tables, defaults)

    @abstractmethod
    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the state that a table needs as tensors without memory, of the right shape and type.

        A state has one row for each row of the table, or is the counter `step`.
        """

    @abstractmethod
    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update in place the rows of "table" and of its state; `step` counts this step too."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every table that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._step_table(table, table.grad, group)
        return loss

    def _step_table(self, table: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        for name, like in self.state_like(table, group).items():
            if name not in state:
                state[name] = torch.zeros_like(like, device=table.device)
        counter = {"step": state["step"].add_(1)} if "step" in state else {}
        tensors = {"table": table.data} | {name: state[name] for name in state if name != "step"}
        if not gradient.is_sparse:
            self.update_rows(tensors | counter, gradient, group)
            return
        for rows, summed in row_blocks(gradient):
            gathered = {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}
            self.update_rows(gathered | counter, summed, group)
            for name, tensor in tensors.items():
                tensor.index_copy_(0, rows, gathered[name])


@final
class RowSparseSGD(RowSparseOptimizer):
    r"""Gradient descent on the touched rows, $w \leftarrow w - \eta v$ with $v \leftarrow \mu v + g$.

    Without `momentum` ($\mu = 0$) there is no state at all. With it the velocity of a row rests while the row
    is not touched. `weight_decay` adds its multiple of the touched rows to the gradient.

    >>> table = nn.Parameter(torch.ones(3, 2))
    >>> nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    >>> RowSparseSGD([table], learning_rate=0.25).step()  # the gradient of row 1 is 2
    >>> table.data
    tensor([[1.0000, 1.0000],
            [0.5000, 0.5000],
            [1.0000, 1.0000]])
    """

    def __init__(
        self,
        tables: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        check_learning_rate(learning_rate)
        check_momentum(momentum)
        check_weight_decay(weight_decay)
        super().__init__(tables, {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay})

    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the velocity, when there is momentum."""
        if group["momentum"] == 0:
            return {}
        return {"momentum_buffer": torch.empty_like(table, device="meta")}

    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update with torch's kernel."""
        sgd(
            [rows["table"]],
            [gradient],
            [rows.get("momentum_buffer")],
            fused=supports_fused(gradient),
            foreach=False,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@final
class LazyAdam(RowSparseOptimizer):
    r"""Adam on the touched rows: their moments move, those of other rows rest.

    $m \leftarrow \beta_1 m + (1 - \beta_1) g$, $v \leftarrow \beta_2 v + (1 - \beta_2) g^2$ and
    $w \leftarrow w - \eta \hat m / (\sqrt{\hat v} + \epsilon)$. As in `torch.optim.SparseAdam` the correction
    $\hat m = m / (1 - \beta_1^t)$ counts all steps of the table, not those of the row.

    `weight_decay` adds its multiple of the touched rows to the gradient, or, when `decoupled_weight_decay`,
    shrinks them by $1 - \eta \lambda$ as AdamW does.

    >>> table = nn.Parameter(torch.ones(2, 1))
    >>> nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    >>> LazyAdam([table], learning_rate=0.5).step()  # the first step is the sign of the gradient
    >>> table.data
    tensor([[1.0000],
            [0.5000]])
    """

    def __init__(
        self,
        tables: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_learning_rate(learning_rate)
        check_betas(betas)
        check_epsilon(epsilon)
        check_weight_decay(weight_decay)
        defaults = {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": weight_decay}
        super().__init__(tables, defaults | {"decoupled_weight_decay": decoupled_weight_decay})

    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the two moments and the counter."""
        moment = torch.empty_like(table, device="meta")
        step = torch.empty((), dtype=torch.float32, device="meta")
        return {"step": step, "exp_avg": moment, "exp_avg_sq": moment}

    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update with torch's kernel."""
        beta1, beta2 = group["betas"]
        adam(
            [rows["table"]],
            [gradient],
            [rows["exp_avg"]],
            [rows["exp_avg_sq"]],
            [],
            [rows["step"] - 1],  # torch counts up by itself, here once for every block
            fused=supports_fused(gradient),
            foreach=False,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


@final
class RowwiseAdagrad(RowSparseOptimizer):
    r"""Adagrad with one number a row: $s \leftarrow s + \frac{1}{d} \|g\|^2$, $w \leftarrow w - \eta g / (\sqrt{s} + \epsilon)$.

    The state is $1 / d$ of the table's size. The rule is that of fbgemm's exact row-wise Adagrad.
    `weight_decay` adds its multiple of the touched rows to the gradient.

    >>> table = nn.Parameter(torch.zeros(2, 2))
    >>> table.grad = torch.sparse_coo_tensor([[1]], [[1.0, 7.0]], (2, 2), check_invariants=True)
    >>> RowwiseAdagrad([table], learning_rate=0.5).step()  # the mean square is 25
    >>> table.data
    tensor([[ 0.0000,  0.0000],
            [-0.1000, -0.7000]])
    """  # noqa: E501 - one formula, one line

    def __init__(
        self,
        tables: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        check_learning_rate(learning_rate)
        check_epsilon(epsilon)
        check_weight_decay(weight_decay)
        super().__init__(tables, {"lr": learning_rate, "eps": epsilon, "weight_decay": weight_decay})

    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return one number a row."""
        return {"sum": torch.empty(table.shape[0], dtype=table.dtype, device="meta")}

    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update with three passes over the rows."""
        if group["weight_decay"]:
            gradient = gradient.add(rows["table"], alpha=group["weight_decay"])
        rows["sum"] += torch.linalg.vector_norm(gradient, dim=1).square_().div_(gradient.shape[1])
        scale = rows["sum"].sqrt().add_(group["eps"])
        rows["table"].addcdiv_(gradient, scale[:, None], value=-group["lr"])


def supports_fused(tensor: Tensor) -> bool:
    """Say whether torch can update this tensor with one kernel."""
    return tensor.device.type in FUSED_DEVICES and tensor.is_floating_point()
