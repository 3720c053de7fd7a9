"""What each measure of the main table puts first: of the paper's allocations, and of all."""

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from budgetrec.display.tables import StudyTable, Text, best_of

PLANNED = "plan"


def find_firsts(
    results: pl.DataFrame, *, group: Sequence[str], measures: Mapping[str, bool], printed: Mapping[str, str]
) -> pl.DataFrame:
    """Return a row per group and measure: the best of the paper's allocations, and if the plan is better.

    `measures` are columns and whether more is better; `printed` names the column of what the paper prints
    for a measure, whose best comes beside ours.
    """
    rows = []
    for key, all_rows in results.group_by(group, maintain_order=True):
        planned = all_rows.filter(pl.col("source") != "paper")
        paper = all_rows.filter(pl.col("source") == "paper")
        for name, largest in measures.items():
            best = best_of(paper[name].to_list(), largest=largest)
            ahead = None
            if best is not None and len(planned):
                ours, theirs = planned[name][0], paper[name][best]
                ahead = bool(ours > theirs if largest else ours < theirs)
            column = printed.get(name)
            theirs = best_of(paper[column].to_list(), largest=largest) if column else None
            rows.append(
                {
                    **dict(zip(group, key, strict=True)),
                    "measure": name,
                    "first": _pair(paper, best),
                    "plan_ahead": ahead,
                    "printed_first": _pair(paper, theirs),
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def firsts_table(
    firsts: pl.DataFrame, *, group: Sequence[str], titles: Mapping[str, str], words: Mapping[str, str]
) -> StudyTable:
    """Return a row per group and a column per measure; what the paper prints stands in columns of its own."""
    with_printed = [
        name for name in titles if firsts.filter(measure=name)["printed_first"].is_not_null().any()
    ]
    rows = []
    for key, group_rows in firsts.group_by(group, maintain_order=True):
        found = {row["measure"]: row for row in group_rows.iter_rows(named=True)}
        row = [Text(words.get(each, each)) for each in key]
        for name in titles:
            first = found[name]["first"] or ""
            row.append(Text(f"{PLANNED}, {first}" if found[name]["plan_ahead"] else first))
            if name in with_printed:
                row.append(Text(found[name]["printed_first"] or ""))
        rows.append(tuple(row))
    columns = [*("negatives" if name == "sharing" else name for name in group)]
    for name, title in titles.items():
        columns += [title, f"{title}, printed"] if name in with_printed else [title]
    return StudyTable(tuple(columns), rows, firsts, num_words=len(columns))


def tell_firsts(firsts: pl.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """Say how often each of the paper's allocations is first by each measure, and the plan before them."""
    counts, ahead = [], []
    for name, title in titles.items():
        rows = firsts.filter(measure=name)
        found = Counter(first for first in rows["first"] if first is not None)
        places = ", ".join(f"{pair} in {count}" for pair, count in found.most_common())
        counts.append(f"by {title} {places}")
        ahead.append(f"by {title} in {int(rows['plan_ahead'].fill_null(False).sum())}")
    total = len(firsts.select("dataset", "optimizer", "loss", "sharing").unique())
    told = [f"Of the paper's allocations these come first in {total} settings: {'; '.join(counts)}."]
    if firsts["plan_ahead"].is_not_null().any():
        told.append(f"The planner's row is better than all of them {'; '.join(ahead)} of {total}.")
    return told


def _pair(rows: pl.DataFrame, place: int | None) -> str | None:
    return None if place is None else f"({rows['batch_size'][place]}, {rows['num_negatives'][place]})"
