"""Optimiser state as named tensors, for checkpoints that resume bit for bit.

The settings of an optimiser are not included: they come from the configuration that built it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer

from budgetrec.errors import ArgumentError, DataError
from budgetrec.optimizers.row_sparse import RowSparseOptimizer

PREFIX = "optimizer."


def optimizer_tensors(
    optimizers: Sequence[Optimizer], names: Mapping[nn.Parameter, str]
) -> dict[str, Tensor]:
    """Return all state under keys such as `optimizer.0.exp_avg.<parameter name>`.

    The tensors are the optimisers' own, not copies: write them before the next step. The state of a parameter
    that has not been updated yet is zero, as at the start.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> sorted(optimizer_tensors([Adam([weight])], {weight: "norm.weight"}))
    ['optimizer.0.exp_avg.norm.weight', 'optimizer.0.exp_avg_sq.norm.weight', 'optimizer.0.step.norm.weight']
    """
    tensors = {}
    for key, optimizer, parameter, name, like, device in _slots(optimizers, names):
        kept = optimizer.state[parameter].get(name) if parameter in optimizer.state else None
        tensors[key] = torch.zeros_like(like, device=device) if kept is None else kept.detach()
    return tensors


def load_optimizer_tensors(
    optimizers: Sequence[Optimizer], names: Mapping[nn.Parameter, str], tensors: Mapping[str, Tensor]
) -> None:
    """Restore the tensors of `optimizer_tensors` into new optimisers; nothing changes unless all of them fit.

    `tensors` may have other keys too, such as the weights, unless they start with "optimizer.".
    """
    advice = "resume with the model and optimiser that saved it, or start a new run."
    restored: list[tuple[Optimizer, nn.Parameter, str, Tensor]] = []
    expected = set()
    for key, optimizer, parameter, name, like, device in _slots(optimizers, names):
        if key not in tensors:
            raise DataError(f"the checkpoint does not fit: it has no tensor {key!r}; {advice}")
        found = tensors[key]
        if found.shape != like.shape or found.dtype != like.dtype:
            raise DataError(
                f"the checkpoint does not fit: {key!r} is {tuple(found.shape)} {found.dtype}, not "
                f"{tuple(like.shape)} {like.dtype}; {advice}"
            )
        expected.add(key)
        restored.append((optimizer, parameter, name, found.detach().to(device, copy=True)))
    unexpected = sorted(key for key in tensors if key.startswith(PREFIX) and key not in expected)
    if unexpected:
        raise DataError(
            f"the checkpoint does not fit: it has {len(unexpected)} tensors that these optimisers do not "
            f"have, such as {unexpected[0]!r}; {advice}"
        )
    for optimizer, parameter, name, tensor in restored:
        optimizer.state[parameter][name] = tensor


def _slots(
    optimizers: Sequence[Optimizer], names: Mapping[nn.Parameter, str]
) -> Iterator[tuple[str, Optimizer, nn.Parameter, str, Tensor, torch.device]]:
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in names:
                    raise ArgumentError(
                        f"optimizer {number} has a parameter of shape {tuple(parameter.shape)} "
                        "without a name; pass the names of all parameters, as in model.named_parameters()."
                    )
                for name, like in _state_like(optimizer, parameter, group).items():
                    key = f"{PREFIX}{number}.{name}.{names[parameter]}"
                    # torch keeps counters on the CPU unless a fused kernel reads them.
                    on_cpu = name == "step" and not group.get("fused", True)
                    device = torch.device("cpu") if on_cpu else parameter.device
                    yield key, optimizer, parameter, name, like, device


def _state_like(optimizer: Optimizer, parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state as meta tensors: torch allocates it only at the first step."""
    if isinstance(optimizer, RowSparseOptimizer):
        return optimizer.state_like(parameter, group)
    like = torch.empty_like(parameter, device="meta")
    step = torch.empty((), dtype=torch.float32, device="meta")
    if isinstance(optimizer, Adam) and not group["amsgrad"]:  # AdamW is an Adam too
        return {"step": step, "exp_avg": like, "exp_avg_sq": like}
    if isinstance(optimizer, Adagrad):
        return {"step": step, "sum": like}
    if isinstance(optimizer, SGD) and group["dampening"] == 0:
        # With dampening, torch's first step does not start from a velocity of zero.
        return {"momentum_buffer": like} if group["momentum"] else {}
    raise ArgumentError(
        f"the state of {type(optimizer).__name__} cannot be saved; build optimisers with make_optimizers."
    )
