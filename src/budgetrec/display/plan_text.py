"""A plan as rows of text, for a terminal."""

from budgetrec.display.words import MEMORY_NAMES, NOISE_NAMES, SHARING_NAMES, as_step_seconds
from budgetrec.planner.plan import Candidate, Plan
from budgetrec.units import format_bytes

_BAR = 24


def bar(share: float) -> str:
    """Draw a share as blocks, in eighths.

    >>> bar(0.5), bar(0.0)
    ('████████████', '')
    """
    eighths = round(min(max(share, 0.0), 1.0) * _BAR * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def headline(plan: Plan) -> str:
    """Return in one sentence what a step is: its sequences, its negatives and how long it takes."""
    chosen, drawn = plan.allocation, "every item scored"
    if chosen.draws:
        negatives = f"{chosen.num_negatives:,} negative{'s'[: chosen.num_negatives > 1]}"
        drawn = f"{negatives}, {SHARING_NAMES[chosen.sharing]}"
    return (
        f"{chosen.batch_size:,} sequences per step ({plan.num_targets:,} targets), {drawn}: "
        f"about {as_step_seconds(plan.step_seconds)} per step."
    )


def memory_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return name, bytes and bar of each part, then the total against the budget."""
    rows = [
        (words, format_bytes(plan.parts[name]), bar(plan.parts[name] / plan.budget_bytes))
        for name, words in MEMORY_NAMES.items()
    ]
    share = plan.predicted_bytes / plan.budget_bytes
    budget = f"{bar(share)} {share:.0%} of {format_bytes(plan.budget_bytes)}"
    return [*rows, ("total", format_bytes(plan.predicted_bytes), budget)]


def noise_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return name, value and bar of each source of noise."""
    total = plan.total_noise
    return [
        (words, f"{plan.noise[name]:.3g}", bar(plan.noise[name] / total if total else 0.0))
        for name, words in NOISE_NAMES.items()
    ]


def candidate_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return the plan and those that lost: n, k, bytes, noise, seconds, score and why."""
    chosen = plan.allocation
    ours = _costs(plan, chosen.batch_size, chosen.num_negatives, plan.total_noise)
    rows: list[tuple[str, ...]] = [("this plan", *ours, "1.00", "")]
    for each in plan.candidates:
        score = f"{each.score:.2f}" if each.score < 100 else f"{each.score:,.0f}"
        rows.append(
            (each.name, *_costs(each, each.batch_size, each.num_negatives, each.noise), score, each.why)
        )
    return rows


def _costs(each: Plan | Candidate, n: int, k: int, noise: float) -> tuple[str, ...]:
    return (
        f"{n:,}",
        f"{k:,}",
        format_bytes(each.predicted_bytes),
        f"{noise:.3g}",
        as_step_seconds(each.step_seconds),
    )
