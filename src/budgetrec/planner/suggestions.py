"""What to change when nothing fits: each change with the bytes that it would take."""

from collections.abc import Callable
from typing import Any

from budgetrec.errors import BudgetrecError, PlanError
from budgetrec.planner.plan import PARTS
from budgetrec.settings.sections import RunConfig
from budgetrec.units import format_bytes

_ENOUGH = 3
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
) -> PlanError:
    """Say what takes the bytes, and which changes would fit or come nearest.

    `least` gives the bytes by part of the smallest step that settings allow; `enough` bytes would do.
    """
    parts = least(config)
    total = sum(parts.values())
    largest = sorted(PARTS, key=lambda name: parts[name], reverse=True)[:3]
    takes = ", ".join(f"{_NAMES[name]} {format_bytes(parts[name])}" for name in largest)
    model = config.model
    ways: list[tuple[int, str]] = []
    for words, settings in _changes(config):
        try:
            needed = sum(least(config.replaced(settings)).values())
        except BudgetrecError:  # a change that does not go with what was asked for
            continue
        if needed < total:
            ways.append((needed, words))
        if sum(way[0] <= limit for way in ways) == _ENOUGH:  # each costs a second to count
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
