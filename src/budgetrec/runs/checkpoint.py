"""Checkpoints: one safetensors file that holds tensors and, in its header, JSON. Nothing is ever executed.

A file is written under a temporary name, flushed to the disk and renamed, so a kill at any moment leaves the
old checkpoint or the new one.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from budgetrec.errors import TrainingError
from budgetrec.files import cannot_be_written, write_whole

_STATE = "budgetrec"
VERSION = 1
# What a damaged file makes of a reader, the state in its header included.
_UNREADABLE = (
    SafetensorError,
    OSError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
    RuntimeError,
)


def save_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and state as one file, whole or not at all."""
    metadata = {_STATE: json.dumps({"version": VERSION, **state})}
    held = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        write_whole(path, lambda partial: save_file(held, partial, metadata=metadata))
    except SafetensorError as error:  # which wraps what the system said
        raise cannot_be_written(path, error) from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads((file.metadata() or {})[_STATE])
            version = state.pop("version")
            if type(state.get("step", 0)) is not int:
                raise ValueError(f"its step is {state['step']!r}")
    except FileNotFoundError:
        raise TrainingError(f"{path} does not exist, so there is no checkpoint to resume from.") from None
    except _UNREADABLE as error:
        raise TrainingError(f"{path} is not a budgetrec checkpoint, or is damaged: {error}.") from error
    if version != VERSION:
        raise TrainingError(f"{path} has format version {version}, and this budgetrec reads {VERSION}.")
    return tensors, state


def generator_tensors(generators: dict[str, torch.Generator]) -> dict[str, Tensor]:
    """Return the states of generators as tensors."""
    return {f"generator.{name}": generator.get_state() for name, generator in generators.items()}


def load_generators(generators: dict[str, torch.Generator], tensors: dict[str, Tensor]) -> None:
    """Set generators to the states that `generator_tensors` returned."""
    for name, generator in generators.items():
        state = tensors.get(f"generator.{name}")
        if state is None:
            raise TrainingError(f"the checkpoint holds no state of the generator {name!r}. Train again.")
        try:
            generator.set_state(state)
        except (RuntimeError, TypeError) as error:
            raise TrainingError(
                f"the checkpoint holds no state of the generator {name!r}: {error}. Train again."
            ) from error


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and lasting buffers by name; a tensor with two names appears once."""
    lasting = model.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in lasting)
    return {f"model.{name}": tensor for name, tensor in (*model.named_parameters(), *buffers)}


def load_model_tensors(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy weights into the model, all of them or none."""
    wanted = model_tensors(model)
    for name, tensor in wanted.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            seen = tuple(tensors[name].shape) if name in tensors else "missing"
            raise TrainingError(
                f"{source} does not fit the model: {name.removeprefix('model.')} is {seen}, not "
                f"{tuple(tensor.shape)}. Its run.toml was changed, or its dataset."
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
