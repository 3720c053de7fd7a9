"""What to change when nothing fits: each change with the bytes that it would take."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from budgetrec.errors import BudgetrecError, PlanError
from budgetrec.planner.plan import PARTS
from budgetrec.settings.sections import RunConfig
from budgetrec.units import format_bytes

_ENOUGH = 3  # changes that fit are told
_COUNTED = 5  # changes are counted, about a second each
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
    enough: int,
    least: Callable[[RunConfig], dict[str, int]],
    table: Callable[[RunConfig], int],
) -> PlanError:
    """Say what takes the bytes, and which changes would fit or come nearest.

    `least` gives the bytes by part of the smallest step that settings allow, which takes a second to count;
    `table` those of the item table and its optimiser state alone. `enough` bytes would do.
    """
    parts = least(config)
    total = sum(parts.values())
    largest = sorted(PARTS, key=lambda name: parts[name], reverse=True)[:3]
    takes = ", ".join(f"{_NAMES[name]} {format_bytes(parts[name])}" for name in largest)
    model = config.model
    ways: list[tuple[int, str]] = []
    for words, settings in _promising(config, parts, limit, table):
        try:
            needed = sum(least(config.replaced(settings)).values())
        except BudgetrecError:  # a change that does not go with what was asked for
            continue
        if needed < total:
            ways.append((needed, words))
        if sum(way[0] <= limit for way in ways) == _ENOUGH:
            break
    # The gentlest changes that fit come first, which save the least; then those that come nearest.
    ways.sort(key=lambda way: (way[0] > limit, -way[0] if way[0] <= limit else way[0]))
    fitting = sum(needed <= limit for needed, _ in ways)
    told = "; ".join(f"{words} ({format_bytes(needed)})" for needed, words in ways[:_ENOUGH])
    would = "These would fit" if fitting == _ENOUGH else f"Of these {fitting or 'none'} would fit"
    would = f"{would}: {told}. " if told else ""
    margin = "" if limit == budget else f" ({format_bytes(limit)} with the safety margin)"
    step = f"a step of {batch_size:,} x {num_negatives:,}"
    if batch_size == num_negatives == 1:
        step = "one sequence with one negative already"
    return PlanError(
        f"nothing fits in {format_bytes(budget)}{margin}: {step} takes {format_bytes(total)}: "
        f"{takes} ({num_items:,} items x dim {model.dim}, {config.training.precision}, "
        f"{config.optimizer.optimizer}). {would}As it is, {enough // 2**20}MiB would do."
    )


def _promising(
    config: RunConfig, parts: Mapping[str, int], limit: float, table: Callable[[RunConfig], int]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the few changes worth counting: the gentlest that seem to fit, or those that save most."""
    total = sum(parts.values())

    def guess(settings: dict[str, Any]) -> float:
        changed = config.replaced(settings)
        rest = (total - table(config)) * changed.model.dim / config.model.dim
        shorter = parts["encoder"] / 2 if "max_length" in settings else 0.0
        return table(changed) + rest - shorter

    found = [(guess(settings), words, settings) for words, settings in _changes(config)]
    found.sort(key=lambda change: (change[0] > limit, change[0] if change[0] > limit else 0.0))
    return [(words, settings) for _, words, settings in found[:_COUNTED]]


def table_too_large(
    config: RunConfig, *, num_items: int, budget: int, limit: float, table: Callable[[RunConfig], int]
) -> PlanError:
    """Say that the item table and its optimiser state are above the bytes, and what would make them smaller.

    `table` gives the bytes of the two for any settings.
    """
    needed, ways = table(config), []
    for words, settings in _changes(config):
        less = table(config.replaced(settings))
        if less < needed:
            ways.append((less, f"{words} ({format_bytes(less)})"))
    ways.sort(key=lambda way: (way[0] > limit, -way[0] if way[0] <= limit else way[0]))
    margin = "" if limit == budget else f" ({format_bytes(limit)} with the safety margin)"
    told = "; ".join(words for _, words in ways[:_ENOUGH])
    return PlanError(
        f"nothing fits in {format_bytes(budget)}{margin}: the item table and its state of "
        f"{config.optimizer.optimizer} alone take {format_bytes(needed)} ({num_items:,} items x dim "
        f"{config.model.dim}, float32). "
        + (f"They would take less with {told}. " if told else "")
        + f"As it is, pass more than {math.ceil(needed * budget / limit / 2**20)}MiB."
    )


def _changes(config: RunConfig) -> list[tuple[str, dict[str, Any]]]:
    """List changes that save bytes, the gentler ones first, with the words that tell them."""
    model = config.model
    dims = [dim for dim in (model.dim // 2, model.dim // 4, model.dim // 8) if dim >= 8]
    narrow: list[tuple[str, dict[str, Any]]] = [
        (f"--dim {dim}", {"dim": dim}) for dim in dims if dim % model.num_heads == 0
    ]
    sparse: list[tuple[str, dict[str, Any]]] = [
        (f"--optimizer {name} --table-updates row-sparse", {"optimizer": name, "table_updates": "row-sparse"})
        for name in ("adagrad", "sgd")
    ]
    shorter: list[tuple[str, dict[str, Any]]] = []
    if model.max_length > 20:
        shorter.append((f"--max-length {model.max_length // 2}", {"max_length": model.max_length // 2}))
    if not model.tied:
        shorter.append(("--tied", {"tied": True}))
    both = [(f"{a} {b}", {**first, **second}) for a, first in narrow for b, second in sparse]
    return [*narrow[:1], *shorter, *sparse, *narrow[1:], *both]
