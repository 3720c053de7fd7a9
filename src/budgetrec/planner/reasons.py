"""One sentence for each choice of a plan, and one for each allocation that lost."""

import dataclasses

from budgetrec.allocation import SHARING_WORDS, Allocation
from budgetrec.planner.plan import Candidate
from budgetrec.planner.search import Choice, Search
from budgetrec.units import format_bytes

_WORTH_TELLING = 1.2
_UNIT = {"time": "time to the same loss", "noise": "noise"}


def give_reasons(search: Search, chosen: Choice, ranked: list[Choice], fixed: set[str]) -> dict[str, str]:
    """Say why each part of `chosen` is as it is; `ranked` is the best of each way."""
    way = chosen.allocation
    told = {
        "objective": _objective(search, chosen, ranked),
        "batch_size": _number(search, chosen, "batch_size", "sequence"),
    }
    if way.draws:
        told["num_negatives"] = _number(search, chosen, "num_negatives", "negative")
        told["sharing"] = _sharing(search, chosen, ranked)
    told["lean"] = _lean(chosen, ranked)
    told["micro_batches"] = _micro_batches(chosen, asked="micro_batches" in fixed)
    told["table_updates"] = _table_updates(chosen, ranked)
    for name in fixed & told.keys():
        told[name] = f"as you asked. {told[name][0].upper()}{told[name][1:]}"
    return told


def _times(value: float) -> str:
    return f"{value:.2f} times" if value < 10 else f"{value:,.0f} times"


def _number(search: Search, chosen: Choice, name: str, word: str) -> str:
    """Compare a number with its half and its double, all else equal."""
    value = getattr(chosen.allocation, name)
    counted = f"{value:,} {word}{'s'[: value > 1]}"
    most = search.max_batch_size if name == "batch_size" else max(search.num_items - 1, 1)
    parts = []
    for other in (value // 2, 2 * value):
        if not 1 <= other <= most:
            continue
        there = {"n": chosen.allocation.batch_size, "k": chosen.allocation.num_negatives}
        there["n" if name == "batch_size" else "k"] = other
        if float(search.total_bytes(chosen.allocation, there["n"], there["k"])) > search.limit:
            needed = format_bytes(float(search.total_bytes(chosen.allocation, there["n"], there["k"])))
            parts.append(f"{other:,} would need {needed}")
            continue
        ratio = float(search.score(chosen.allocation, there["n"], there["k"])) / chosen.score
        parts.append(f"{other:,} would mean {_times(ratio)} the {_UNIT[search.goal]}")
    if name == "batch_size" and value == search.max_batch_size:
        parts.append("the data has no more sequences")
    if name == "num_negatives" and value == most:
        parts.append("the catalogue has no more items")
    if name == "num_negatives" and value > most:
        parts.append(f"scoring all {search.num_items:,} items (--objective full-softmax) costs less")
    return f"{counted}: {'; '.join(parts) or 'nothing else is possible'}."


def _best(ranked: list[Choice], **wanted: object) -> Choice | None:
    """Return the best choice whose allocation has these values."""
    return next(
        (
            choice
            for choice in ranked
            if all(getattr(choice.allocation, name) == value for name, value in wanted.items())
        ),
        None,
    )


def _against(chosen: Choice, other: Choice, goal: str) -> str:
    return (
        f"{_times(other.score / chosen.score)} the {_UNIT[goal]} "
        f"(n = {other.allocation.batch_size:,}, k = {other.allocation.num_negatives:,})"
    )


def _objective(search: Search, chosen: Choice, ranked: list[Choice]) -> str:
    name = chosen.allocation.objective
    if not chosen.allocation.draws:
        other = next((choice for choice in ranked if choice.allocation.draws), None)
        if other is None:
            return "every item is scored, so there is no sampling noise."
        return (
            f"every item is scored, which fits; sampling would mean {_against(chosen, other, search.goal)}."
        )
    full = next((choice for choice in ranked if not choice.allocation.draws), None)
    if full is not None:
        return f"{name}: scoring every item would mean {_against(chosen, full, search.goal)}."
    if not all(way.draws for way in (*search.families, *search.left_out)):
        return f"{name}: scoring every item does not fit."
    return f"{name}: you asked for it, or for something that implies it."


def _sharing(search: Search, chosen: Choice, ranked: list[Choice]) -> str:
    way = chosen.allocation
    words = SHARING_WORDS
    told = []
    for sharing in words:
        other = None if sharing == way.sharing else _best(ranked, objective=way.objective, sharing=sharing)
        if other is not None:
            same = dataclasses.replace(way, sharing=sharing)
            noise = float(search.noise(same, way.batch_size, way.num_negatives).total) / chosen.noise
            told.append(
                f"{words[sharing]} has {_times(noise)} the noise for the same n and k, and at its own best "
                f"{_times(other.score / chosen.score)} the {_UNIT[search.goal]}"
            )
    return f"{words[way.sharing]}: {'; '.join(told)}." if told else f"{words[way.sharing]}."


def _lean(chosen: Choice, ranked: list[Choice]) -> str:
    way = chosen.allocation
    same = {"objective": way.objective, "sharing": way.sharing}
    other = _best(ranked, **same, lean=not way.lean)
    words = "a block of logits at a time" if way.lean else "all logits of a part at once"
    if other is None:
        return f"{words}: the other way does not fit, or was ruled out."
    return _other_way(words, chosen, other)


def _other_way(words: str, chosen: Choice, other: Choice) -> str:
    if other.score < chosen.score:  # the paper's rule asks for the largest n = k, whatever its score
        return f"{words}: it allows the largest n = k, as the paper's rule wants."
    return f"{words}: the other way is {_times(other.score / chosen.score)} as costly at its best."


def _micro_batches(chosen: Choice, *, asked: bool) -> str:
    parts = chosen.allocation.micro_batches
    if parts is None:
        return "steps are cut in the fastest way, which fits."
    if asked:
        return f"steps are cut into {parts}."
    return f"steps are cut into {parts}: in fewer parts the best batch would not fit."


def _table_updates(chosen: Choice, ranked: list[Choice]) -> str:
    way = chosen.allocation
    other = _best(
        ranked,
        objective=way.objective,
        sharing=way.sharing,
        table_updates="dense" if way.table_updates == "row-sparse" else "row-sparse",
    )
    words = "only touched rows" if way.table_updates == "row-sparse" else "the whole item table"
    if other is None:
        return f"{words} is updated each step." if way.table_updates == "dense" else f"{words} are updated."
    return _other_way(words, chosen, other)


def runner_ups(search: Search, chosen: Choice, ranked: list[Choice]) -> tuple[Candidate, ...]:
    """Tell the best of each way of sharing, the paper's allocation and the extremes, and why they lost."""
    found: list[tuple[str, Choice]] = []
    seen: set[tuple[str, str]] = {(chosen.allocation.objective, chosen.allocation.sharing)}
    for choice in ranked:
        mark = (choice.allocation.objective, choice.allocation.sharing)
        if mark not in seen:
            seen.add(mark)
            found.append((choice.allocation.describe(), choice))
    sampled = [way for way in search.families if way.draws]
    if sampled and not search.fixed:
        shared = next((way for way in sampled if way.sharing == "batch"), sampled[0])
        square = paper_choice(search, shared)
        if square is not None and _numbers(square) != _numbers(chosen):
            found.append(("the paper's n = k", square))
    if not search.fixed and chosen.allocation.draws:
        found += _extremes(search, chosen.allocation)
    return tuple(_candidate(search, chosen, name, other) for name, other in found)


def _extremes(search: Search, way: Allocation) -> list[tuple[str, Choice]]:
    """Return the largest batch with one negative, and the most negatives for one sequence, that fit."""
    found = []
    sizes = [
        int(n) for n in search.batch_sizes() if float(search.total_bytes(way, int(n), 1)) <= search.limit
    ]
    if sizes:
        found.append(("largest batch, k = 1", search.choice(way, sizes[-1], 1)))
    counts = [
        int(k) for k in search.negatives(way) if float(search.total_bytes(way, 1, int(k))) <= search.limit
    ]
    if counts:
        found.append(("n = 1, most negatives", search.choice(way, 1, counts[-1])))
    return found


def paper_choice(search: Search, way: Allocation) -> Choice | None:
    """Return the largest n = k that fits."""
    most = min(search.max_batch_size, max(search.num_items - 1, 1))
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if float(search.total_bytes(way, middle, middle)) <= search.limit:
            low = middle
        else:
            high = middle - 1
    return search.choice(way, low, low) if low else None


def _candidate(search: Search, chosen: Choice, name: str, other: Choice) -> Candidate:
    ratio = other.score / chosen.score
    noise, seconds = other.noise / chosen.noise, other.seconds / chosen.seconds
    if search.goal == "noise":
        why = f"{_times(noise)} the noise"
    elif noise >= 1 and seconds >= 1:
        why = f"{_times(noise)} the noise and {_times(seconds)} the seconds per step"
    elif noise >= 1:
        why = f"{_times(noise)} the noise for {seconds:.2f} of the seconds per step"
    elif ratio >= 1:
        why = f"{_times(seconds)} the seconds per step for {noise:.2f} of the noise"
    else:
        why = "better by the law, and not chosen because something else was asked for"
    slower = search.slowed_by_bias(other)
    if search.goal == "time" and ratio >= 1 and slower >= _WORTH_TELLING:
        why += f"; the bias at such a small k means {_times(slower)} the steps"
    return Candidate(
        name=name,
        batch_size=other.allocation.batch_size,
        num_negatives=other.allocation.num_negatives,
        sharing=other.allocation.sharing,
        objective=other.allocation.objective,
        predicted_bytes=round(other.bytes),
        noise=other.noise,
        step_seconds=other.seconds,
        score=ratio,
        why=why,
    )


def _numbers(choice: Choice) -> tuple[int, int]:
    return choice.allocation.batch_size, choice.allocation.num_negatives
