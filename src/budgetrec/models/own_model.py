"""A model of one's own: checked before anything slow happens, filled in, and left as it was."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from budgetrec.errors import ArgumentError, first_line
from budgetrec.models.contract import SequenceModel
from budgetrec.models.registry import MODELS


def fill_in(model: nn.Module, *, num_items: int | None, max_length: int | None) -> SequenceModel:
    """Write into a model of one's own how many items it has and positions it reads, if it does not say so."""
    name = type(model).__name__
    if not isinstance(model, SequenceModel):
        raise ArgumentError(
            f"{name} is no budgetrec.models.SequenceModel; derive its class from that, and give it "
            "forward(ids, mask) and item_vectors(ids)."
        )
    for member, value in (("num_items", num_items), ("max_length", max_length)):
        if getattr(model, member, None) is None:
            if value is None:
                raise ArgumentError(f"{name} has no {member}, and nothing else says it here; set it.")
            setattr(model, member, value)
    return model


def complete(model: nn.Module, *, num_items: int, max_length: int) -> SequenceModel:
    """Return a model of one's own, filled in and tried out, or refuse it in a sentence."""
    model, name = fill_in(model, num_items=num_items, max_length=max_length), type(model).__name__
    if name in MODELS:
        raise ArgumentError(f"your model's class has the name of one of ours, {name}; call it otherwise.")
    if next(model.parameters(), None) is None:
        raise ArgumentError(f"{name} has no parameters, so there is nothing to train; give it some.")
    if model.num_items != num_items:
        raise ArgumentError(
            f"{name} has {model.num_items:,} items and the dataset has {num_items:,}; "
            "build it with dataset.num_items."
        )
    _try_out(model, name, min(max_length, model.max_length))
    return model


def _try_out(model: SequenceModel, name: str, width: int) -> None:
    """Let the model read as many positions as it must, and give the vectors of its first and last item."""
    ids = torch.zeros(2, width, dtype=torch.int64, device=next(model.parameters()).device)
    ids[1] = model.num_items - 1
    with modes_kept(model.modules()), torch.no_grad():
        model.eval()
        asked = f"forward(ids, mask) of shape (2, {width})"
        hidden = _answer(name, asked, lambda: model(ids, torch.ones_like(ids, dtype=torch.bool)))
        asked = f"item_vectors(ids) for items 0 and {model.num_items - 1:,}"
        vectors = _answer(name, asked, lambda: model.item_vectors(ids[:, 0]))
    if hidden.shape[:-1] != (2, width) or vectors.shape != (2, hidden.shape[-1]):
        raise ArgumentError(
            f"{name} made {tuple(hidden.shape)} of two sequences of {width} items and {tuple(vectors.shape)} "
            "of two items; return states (sequences, positions, dim) from forward and vectors (items, dim) "
            "from item_vectors."
        )


def _answer(name: str, asked: str, ask: Callable[[], Tensor]) -> Tensor:
    try:
        given = ask()
    except Exception as error:
        raise ArgumentError(
            f"{name} has no answer to {asked}: {first_line(error)}; it must read max_length positions, "
            "which the settings or the model itself say, and know every item of the dataset."
        ) from error
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{name} answers {asked} with a {type(given).__name__}; return a tensor.")
    return given


def width_of(model: SequenceModel) -> int:
    """Return the width of the vectors of items."""
    first = torch.zeros(1, dtype=torch.int64, device=next(model.parameters()).device)
    return model.item_vectors(first).shape[-1]


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put weights, buffers and modes back at the end, and drop gradients: planning trains a little."""
    tensors = [*model.parameters(), *model.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    with modes_kept(model.modules()):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, kept, strict=True):
                    tensor.copy_(value)
            model.zero_grad()


@contextmanager
def modes_kept(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Put each part of a model back into training or evaluation mode at the end, as it was."""
    modes = [(part, part.training) for part in parts]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
