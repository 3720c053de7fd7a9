"""Cells and pairs that the pages of runs and studies share."""

from typing import Any

from budgetrec.report.sortable import Entry, setting_pairs
from budgetrec.runs.documents import number

QUALITY = "ndcg@10"


def interval(found: dict[str, Any], name: str) -> str:
    """Return the interval of a metric of an evaluation as text; nothing where it has none."""
    intervals = found.get("intervals")
    ends = intervals.get(name) if isinstance(intervals, dict) else None
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        return ""
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def mean_cell(found: dict[str, Any], name: str, source: object) -> Entry:
    """Return the mean of a metric with its interval below."""
    mean = number(found, name, source)
    return Entry("") if mean is None else Entry(f"{mean:.4f}", mean, interval(found, name))


def environment_pairs(environment: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return what is known of the machine as names and texts."""
    kept = {
        name: value for name, value in (environment or {}).items() if name != "command" and value is not None
    }
    return setting_pairs(kept)
