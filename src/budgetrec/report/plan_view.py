"""A plan as the page shows it: choices with their reasons, memory and noise by part, runners-up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from budgetrec.display.words import (
    MEMORY_NAMES,
    NOISE_NAMES,
    as_bytes,
    as_number,
    as_seconds,
    as_share,
    as_text,
    label,
)
from budgetrec.errors import DataError
from budgetrec.report.sortable import Table, records_table, setting_pairs
from budgetrec.runs.documents import number

_SYMBOLS = {"batch_size": "n", "num_negatives": "k", "num_groups": "G"}
_MEANS = ("goal", "budget_bytes", "margin", "step_seconds")  # said in the sentence above the choices
_INNER = ("seconds_model", "overhead_bytes", "gradient", "fixed")  # for planning again, not for people
_TABLES = ("predicted_bytes", "noise", "because", "candidates", "assumptions")


@dataclass(frozen=True)
class Choice:
    """One setting that the plan decided."""

    name: str
    symbol: str
    value: str
    because: str


@dataclass(frozen=True)
class Part:
    """A part of a whole: its size as text and as a share of the bar's length."""

    name: str
    text: str
    share: str  # of the whole
    width: float  # of the bar, in percent


@dataclass(frozen=True)
class Parts:
    """A bar of parts; `limit` is where a budget ends, in percent of the bar."""

    total: str
    parts: Sequence[Part]
    limit: float | None = None
    limit_text: str = ""
    margin: float | None = None
    measured: Part | None = None


@dataclass(frozen=True)
class PlanView:
    """Everything that a plan holds."""

    summary: str
    choices: Sequence[Choice]
    memory: Parts | None
    noise: Parts | None
    candidates: Table | None
    assumptions: Sequence[tuple[str, str]]
    others: Sequence[tuple[str, str]]  # of tables that the page knows nothing of


def view_plan(plan: dict[str, Any], *, source: object, added_bytes: float | None) -> PlanView:
    """Sort out a plan; `source` names its file, `added_bytes` is what training then added to the process."""
    because = _table(plan, "because", source)
    budget = number(plan, "budget_bytes", source)
    others = {name: value for name, value in plan.items() if name not in (*_MEANS, *_TABLES, *_INNER)}
    names = [name for name, value in others.items() if not isinstance(value, dict)]
    names += [name for name in because if name not in names]
    choices = [
        Choice(
            label(name),
            _SYMBOLS.get(name, ""),
            as_text(name, plan[name]) if name in plan else "",
            as_text(name, because.get(name, "")),
        )
        for name in names
    ]
    candidates = plan.get("candidates", [])
    if not isinstance(candidates, list) or not all(isinstance(each, dict) for each in candidates):
        raise DataError(f"{source} has candidates that are not tables. Make the plan again, or remove it.")
    assumptions = _table(plan, "assumptions", source)
    return PlanView(
        summary=_summary(plan, budget, source),
        choices=choices,
        memory=_memory(_table(plan, "predicted_bytes", source), budget, plan, added_bytes, source),
        noise=_noise(_table(plan, "noise", source), source),
        candidates=records_table(candidates) if candidates else None,
        assumptions=setting_pairs(assumptions),
        others=setting_pairs({name: value for name, value in others.items() if name not in names}),
    )


def _summary(plan: dict[str, Any], budget: float | None, source: object) -> str:
    told = []
    if budget is not None:
        margin = number(plan, "margin", source)
        kept = f", of which {as_share(margin)} stays free" if margin is not None else ""
        told.append(f"Planned for {as_bytes(budget)}{kept}.")
    if "goal" in plan:
        told.append(f"Goal: {as_text('goal', plan['goal'])}.")
    if (seconds := number(plan, "step_seconds", source)) is not None:
        told.append(f"A step should take {as_seconds(seconds)}.")
    return " ".join(told)


def _memory(
    document: dict[str, Any], budget: float | None, plan: dict[str, Any], added: float | None, source: object
) -> Parts | None:
    sizes = _sizes(_table(document, "parts", source), source)
    total = number(document, "total", source)
    if total is None:
        if not sizes:
            return None
        total = sum(sizes.values())
    whole = max(budget or 0.0, total, added or 0.0) or 1.0
    margin = number(plan, "margin", source)
    limit = 100 * budget / whole if budget else None
    measured = None
    if added is not None:
        share = as_share(added / budget) + " of the budget" if budget else ""
        measured = Part(label("training_bytes"), as_bytes(added), share, 100 * added / whole)
    return Parts(
        total=as_bytes(total),
        parts=_parts(sizes or {"predicted": total}, total, whole, as_bytes),
        limit=limit,
        limit_text=as_bytes(budget) if budget else "",
        margin=limit * (1 - margin) if limit and margin else None,
        measured=measured,
    )


def _noise(document: dict[str, Any], source: object) -> Parts | None:
    sizes = _sizes({name: value for name, value in document.items() if name != "total"}, source)
    total = number(document, "total", source)
    if total is None:
        total = sum(sizes.values())
    if not sizes:
        return None
    whole = max(total, sum(sizes.values())) or 1.0
    return Parts(as_number(total), _parts(sizes, total, whole, as_number))


def _parts(sizes: dict[str, float], total: float, whole: float, text: Callable[[float], str]) -> list[Part]:
    names = MEMORY_NAMES | NOISE_NAMES
    return [
        Part(
            name=names.get(name, label(name)),
            text=text(size),
            share=as_share(size / total) if total else "",
            width=100 * size / whole,
        )
        for name, size in sizes.items()
    ]


def _sizes(document: dict[str, Any], source: object) -> dict[str, float]:
    sizes = {name: number(document, name, source) or 0.0 for name in document}
    for name, size in sizes.items():
        if size < 0:
            raise DataError(f"{source} says {name} is {size}, below 0. Make the plan again, or remove it.")
    return sizes


def _table(document: dict[str, Any], name: str, source: object) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise DataError(f"{source} says {name} is {found!r}, not a table. Make the plan again, or remove it.")
    return found
