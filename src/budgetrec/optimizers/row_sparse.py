"""Optimisers of item tables that read and write only the rows touched by a step.

Each takes the sparse gradient of `embedding(..., sparse=True)`, gathers the rows of the table and its state
one block at a time, updates them with torch's kernels and copies them back, so a step costs the same for ten
million items as for ten thousand. An untouched row does not change: neither its moments nor its weights
decay. A dense gradient touches every row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final, overload

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from budgetrec.errors import ArgumentError
from budgetrec.optimizers.ranges import check_settings
from budgetrec.optimizers.row_gradients import row_blocks

# Devices for which torch 2.13 has fused kernels of Adam, AdamW, SGD and Adagrad.
FUSED_DEVICES = ("cpu", "cuda")


class RowSparseOptimizer(torch.optim.Optimizer, ABC):
    """Base of the row-sparse optimisers: gather rows, update them, copy them back."""

    def __init__(self, tables: Iterable[nn.Parameter], defaults: dict[str, Any]) -> None:
        tables = list(tables)
        for table in tables:
            if table.dim() != 2:
                raise ArgumentError(
                    f"a parameter of shape {tuple(table.shape)} is not a table of rows; "
                    "pass tables (items, dim) here and other parameters to one of torch's optimisers."
                )
        super().__init__(tables, defaults)

    @abstractmethod
    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the state of a table as meta tensors of the right shape and type.

        Each has one row per row of the table, except the counter `step`.
        """

    @abstractmethod
    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update the rows of "table" and of its state in place; `step` already includes this step."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every table that has a gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
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

    Without `momentum` ($\mu = 0$) there is no state. The velocity of an untouched row does not change.
    `weight_decay` times the touched rows is added to the gradient.

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
        check_settings(learning_rate=learning_rate, weight_decay=weight_decay, momentum=momentum)
        super().__init__(tables, {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay})

    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the velocity, if there is momentum."""
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
    r"""Adam on the touched rows; the moments of other rows do not change.

    $m \leftarrow \beta_1 m + (1 - \beta_1) g$, $v \leftarrow \beta_2 v + (1 - \beta_2) g^2$ and $w \leftarrow
    w - \eta \hat m / (\sqrt{\hat v} + \epsilon)$. As in `torch.optim.SparseAdam`, the correction $\hat m = m
    / (1 - \beta_1^t)$ counts the steps of the whole table, not those of the row.

    `weight_decay` times the touched rows is added to the gradient or, if `decoupled_weight_decay`, the rows
    shrink by $1 - \eta \lambda$ as AdamW does.

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
        check_settings(learning_rate=learning_rate, weight_decay=weight_decay, betas=betas, epsilon=epsilon)
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
            [rows["step"] - 1],  # torch adds 1 itself, once per block
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
    r"""Adagrad with one number per row: $s \leftarrow s + \frac{1}{d} \|g\|^2$, $w \leftarrow w - \eta g / (\sqrt{s} + \epsilon)$.

    The state is $1 / d$ the size of the table. The update is that of fbgemm's exact row-wise Adagrad.
    `weight_decay` times the touched rows is added to the gradient.

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
        check_settings(learning_rate=learning_rate, weight_decay=weight_decay, epsilon=epsilon)
        super().__init__(tables, {"lr": learning_rate, "eps": epsilon, "weight_decay": weight_decay})

    def state_like(self, table: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return one number per row."""
        return {"sum": torch.empty(table.shape[0], dtype=table.dtype, device="meta")}

    def update_rows(self, rows: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Update in three passes over the rows."""
        if group["weight_decay"]:
            gradient = gradient.add(rows["table"], alpha=group["weight_decay"])
        rows["sum"] += torch.linalg.vector_norm(gradient, dim=1).square_().div_(gradient.shape[1])
        scale = rows["sum"].sqrt().add_(group["eps"])
        rows["table"].addcdiv_(gradient, scale[:, None], value=-group["lr"])


def supports_fused(tensor: Tensor) -> bool:
    """Return whether torch has a fused kernel for this tensor."""
    return tensor.device.type in FUSED_DEVICES and tensor.is_floating_point()
