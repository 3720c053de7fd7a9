"""A plan as rows of text, for a terminal."""

from budgetrec.planner.record import NOISE, PARTS, Plan
from budgetrec.units import format_bytes

_BAR = 24
_PART_NAMES = {"optimizer_state": "optimiser state", "rows": "gathered rows"}
_NOISE_NAMES = {
    "example": "which sequences are drawn",
    "shared_class": "negatives that targets share",
    "target_class": "negatives of a target",
    "bias": "bias of sampling",
}


def bar(share: float) -> str:
    """Draw a share as blocks, in eighths.

    >>> bar(0.5), bar(0.0)
    ('████████████', '')
    """
    eighths = round(min(max(share, 0.0), 1.0) * _BAR * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def memory_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return name, bytes and bar of each part, then the total against the budget."""
    rows = [
        (
            _PART_NAMES.get(name, name),
            format_bytes(plan.parts[name]),
            bar(plan.parts[name] / plan.budget_bytes),
        )
        for name in PARTS
    ]
    share = plan.predicted_bytes / plan.budget_bytes
    rows.append(
        (
            "all",
            format_bytes(plan.predicted_bytes),
            f"{bar(share)} {share:.0%} of {format_bytes(plan.budget_bytes)}",
        )
    )
    return rows


def noise_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return name, value and bar of each source of noise."""
    total = plan.total_noise
    return [
        (_NOISE_NAMES[name], f"{plan.noise[name]:.3g}", bar(plan.noise[name] / total if total else 0.0))
        for name in NOISE
    ]


def candidate_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return the plan and those that lost: n, k, bytes, noise, seconds, score and why."""
    rows: list[tuple[str, ...]] = [
        (
            "this plan",
            f"{plan.batch_size:,}",
            f"{plan.num_negatives:,}",
            format_bytes(plan.predicted_bytes),
            f"{plan.total_noise:.3g}",
            format_seconds(plan.step_seconds),
            "1.00",
            "",
        )
    ]
    rows += [
        (
            each.name,
            f"{each.batch_size:,}",
            f"{each.num_negatives:,}",
            format_bytes(each.predicted_bytes),
            f"{each.noise:.3g}",
            format_seconds(each.step_seconds),
            f"{each.score:.2f}" if each.score < 100 else f"{each.score:,.0f}",
            each.why,
        )
        for each in plan.candidates
    ]
    return rows


def format_seconds(seconds: float) -> str:
    """Write a duration for people.

    >>> format_seconds(0.0123), format_seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"
