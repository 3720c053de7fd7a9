"""What to change when nothing fits: each change with the bytes that it would take."""

from collections.abc import Callable
from typing import Any

from budgetrec.config import RunConfig
from budgetrec.errors import BudgetrecError, PlanError
from budgetrec.planner.record import PARTS
from budgetrec.units import format_bytes

_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "the optimiser's state",
    "encoder": "the encoder's activations",
    "rows": "gathered rows",
    "logits": "logits",
    "workspace": "workspace",
}


def nothing_fits(
    config: RunConfig,
    *,
    num_items: int,
    batch_size: int,
    num_negatives: int,
    budget: int,
    limit: float,
    least: Callable[[RunConfig], dict[str, int]],
) -> PlanError:
    """Say what takes the bytes, and which changes would fit or come nearest.

    `least` gives the bytes by part of the smallest step that settings allow.
    """
    parts = least(config)
    total = sum(parts.values())
    largest = sorted(PARTS, key=lambda name: parts[name], reverse=True)[:3]
    takes = ", ".join(f"{_NAMES[name]} {format_bytes(parts[name])}" for name in largest)
    model = config.model
    ways = []
    for words, settings in _changes(config):
        try:
            changed = least(config.replaced(settings))
        except BudgetrecError:
            continue
        bytes_then = sum(changed.values())
        if bytes_then < total:
            ways.append((bytes_then > limit, bytes_then, words))
    ways.sort()
    told = "; ".join(f"{words} {format_bytes(count)}" for _, count, words in ways[:3])
    would = "would fit" if ways and not ways[0][0] else "would come nearest"
    margin = "" if limit == budget else f" ({format_bytes(limit)} with the safety margin)"
    step = f"a step of {batch_size:,} x {num_negatives:,}"
    if batch_size == num_negatives == 1:
        step = "one sequence with one negative already"
    return PlanError(
        f"nothing fits in {format_bytes(budget)}{margin}: {step} takes {format_bytes(total)}: "
        f" {takes} ({num_items:,} items x dim {model.dim}, {config.training.precision}, "
        f"{config.optimizer.optimizer}). These {would}: {told}."
    )


def _changes(config: RunConfig) -> list[tuple[str, dict[str, Any]]]:
    """List changes that save bytes, with the words that tell them."""
    model = config.model
    found: list[tuple[str, dict[str, Any]]] = []
    for divisor in (2, 4, 8):
        dim = model.dim // divisor
        if dim >= 8 and dim % model.num_heads == 0:
            found.append((f"--dim {dim}", {"dim": dim}))
    if config.optimizer.optimizer != "adagrad":
        settings = {"optimizer": "adagrad", "table_updates": "row-sparse"}
        found.append(("--optimizer adagrad --table-updates row-sparse", settings))
    if config.optimizer.optimizer != "sgd":
        settings = {"optimizer": "sgd", "table_updates": "row-sparse"}
        found.append(("--optimizer sgd --table-updates row-sparse", settings))
    found.append(("--table-updates row-sparse", {"table_updates": "row-sparse"}))
    if model.max_length > 20:
        found.append((f"--max-length {model.max_length // 2}", {"max_length": model.max_length // 2}))
    if not model.tied:
        found.append(("--tied", {"tied": True}))
    return found
