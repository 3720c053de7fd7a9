"""Small steps of the sizes that tell the features of a step apart."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from budgetrec.memory.law import Law, fit
from budgetrec.memory.rehearsal import STAGES, Rehearsed, Sizes, Stand, rehearse
from budgetrec.memory.step_features import BLOCKS, SLOTS, Features
from budgetrec.objectives.blocks import FEWEST_TARGETS, TILE_TARGETS
from budgetrec.objectives.contract import Objective
from budgetrec.objectives.specification import StepFloor

_NUM_RUNS = 12
_LONGEST = 32
_FEW_ITEMS, _MANY_ITEMS = 60, 3000
_ENDS = 24  # moments at either end of a stretch whose length varies
_OWN_TARGETS = 300  # of a step that scores all items of a given catalogue in blocks: three blocks or more
_TILES = 17  # at least 16 are needed for tiles to be used at all


@dataclass(frozen=True)
class StepLaws:
    """What a batch keeps while its parts run, its own peak before them, and the peak of a part."""

    kept: Law
    before: Law
    part: Law


@dataclass(frozen=True)
class Asked:
    """One small step; `block_bytes` are those of a lean objective."""

    lengths: NDArray[np.int64]
    num_negatives: int
    num_items: int
    block_bytes: int


Setting = Callable[[Asked], tuple[Stand, Objective]]


def find_laws(
    setting: Setting,
    features: Features,
    *,
    max_length: int,
    targets_share: float,
    floor: StepFloor,
    fixed_items: int | None = None,
) -> StepLaws:
    """Take small steps with what `setting` gives for each, and find the bytes of steps of any size.

    `targets_share` is about how many targets there are for each position that is read. Steps are about as
    large as `floor` or larger.
    `fixed_items` is given where the model has a catalogue that cannot be varied.
    """
    runs, rows = [], []
    for asked in _asked(features, max_length, targets_share, floor, fixed_items):
        stand, objective = setting(asked)
        among = None if fixed_items is None else min(asked.num_items, fixed_items)
        runs.append(rehearse(stand, objective, asked.lengths, among=among))
        rows.append(replace(features, num_items=asked.num_items, block_bytes=asked.block_bytes))
    shapes = [_shape(run.sizes) for run in runs]
    negatives = [np.array(run.sizes.num_negatives, np.float64) for run in runs]
    of_batch = np.stack([row.of_batch(s, k) for row, s, k in zip(rows, shapes, negatives, strict=True)])
    of_part = np.stack(
        [
            row.of_part(s, k, np.array(run.sizes.distinct, np.float64))
            for row, s, k, run in zip(rows, shapes, negatives, runs, strict=True)
        ]
    )
    cuts = [_cut(run) for run in runs]
    return StepLaws(
        kept=fit([cut.kept[None] for cut in cuts], of_batch),
        before=fit([cut.before for cut in cuts], of_batch),
        part=_fit_part(cuts, of_part, features),
    )


def _shape(sizes: Sizes) -> NDArray[np.float64]:
    return np.array([sizes.sequences, sizes.positions, sizes.places, sizes.targets], np.float64)


@dataclass(frozen=True)
class _Cut:
    """Bytes before the first part, what of them is kept, and what the part adds, in which stages."""

    before: NDArray[np.int64]
    kept: NDArray[np.int64]
    part: NDArray[np.int64]
    during: NDArray[np.int64]


def _cut(run: Rehearsed) -> _Cut:
    live, during = run.timeline.live, run.timeline.during
    first, last = np.flatnonzero(during != STAGES.index("batch"))[[0, -1]]
    kept = live[first - 1]
    part = slice(first, last + 1)
    return _Cut(live[:first], kept, np.maximum(live[part] - kept, 0), during[part])


def _alike(cuts: list[_Cut]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return moments that can be compared, with their stages: all, unless steps differ in their number.

    A recurrent network goes through as many moments as a sequence has items. Of the stretches in which it
    does, the first and last moments and the peak are compared, and all moments of the others.
    """
    stretches = [_stretches(cut) for cut in cuts]
    if len({tuple(stage for stage, _ in each) for each in stretches}) > 1:
        peaks = [cut.part[[cut.part.sum(1).argmax()]] for cut in cuts]
        return peaks, np.full(1, STAGES.index("encoder"))
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in cuts]
    during: list[int] = []
    for same in zip(*stretches, strict=True):
        ends = min(_ENDS, *(len(moments) for _, moments in same))
        equal = len({len(moments) for _, moments in same}) == 1
        for piece, (_, moments) in zip(pieces, same, strict=True):
            peak = moments[[moments.sum(1).argmax()]]
            piece.extend([moments] if equal else [moments[:ends], peak, moments[-ends:]])
        during.extend([same[0][0]] * (len(same[0][1]) if equal else 2 * ends + 1))
    return [np.concatenate(piece) for piece in pieces], np.array(during, np.int64)


def _fit_part(cuts: list[_Cut], of_part: NDArray[np.float64], features: Features) -> Law:
    """Find the law of a part; what is in blocks is told from what there is for all targets.

    In lean mode a small step has two blocks that together hold all of its negatives, and a large one has
    many. So what blocks add is a law of the sizes of two blocks alone, on top of what is there anyway, and
    all else a law without them.
    """
    moments, during = _alike(cuts)
    rows = np.flatnonzero(during == STAGES.index("rows"))
    if not features.lean or features.sharing is None or len(rows) == 0:
        return fit(moments, of_part)
    after = during[rows[-1] + 1 :] == STAGES.index("logits")
    inside = np.zeros(len(during), bool)
    inside[rows[-1] + 1 :] = np.logical_and.accumulate(after)
    anyway = [each[inside].min(0) for each in moments]
    blocks, others = of_part.copy(), of_part.copy()
    blocks[:, SLOTS] = 0
    others[:, list(BLOCKS)] = 0
    base = fit([each[None] for each in anyway], others).coefficients
    added = fit([each[inside] - least for each, least in zip(moments, anyway, strict=True)], blocks)
    rest = fit([each[~inside] for each in moments], others)
    return Law(np.concatenate([rest.coefficients, base + added.coefficients]))


def _stretches(cut: _Cut) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the moments between two changes of the stage, with the stage."""
    bounds = [0, *(np.flatnonzero(np.diff(cut.during)) + 1).tolist(), len(cut.during)]
    return [(int(cut.during[begin]), cut.part[begin:end]) for begin, end in pairwise(bounds)]


def _asked(
    features: Features, max_length: int, targets_share: float, floor: StepFloor, fixed_items: int | None
) -> Iterator[Asked]:
    """Vary every size, so that no two features rise and fall together."""
    random = np.random.default_rng(0)
    longest = min(max_length, _LONGEST)
    in_blocks = features.sharing is None and features.lean and not features.tiles
    least = _OWN_TARGETS if in_blocks and fixed_items is not None else floor.targets
    fewest = max(2, round(least / (longest * targets_share)))  # sequences, so that there are enough targets
    for run in range(_NUM_RUNS):
        width = max(1, longest - (longest // 4) * (run % 3))
        lengths = np.full(fewest + run % 4, width)
        lengths[1:] = random.integers(max(1, width // 2), width + 1, len(lengths) - 1)
        block_bytes = features.block_bytes
        num_items, num_negatives = _MANY_ITEMS, int(random.integers(4, 60))
        if features.sharing is None:
            num_items = int(random.integers(floor.items, 5 * floor.items))
            if features.tiles:
                block_bytes = 4 * TILE_TARGETS * int(random.integers(4, 12))
                num_items = _TILES * block_bytes // (4 * TILE_TARGETS)
            if fixed_items is not None:  # then blocks must vary instead
                num_items = fixed_items
                if features.tiles:
                    block_bytes = 4 * TILE_TARGETS * int(fixed_items // random.uniform(_TILES, 2 * _TILES))
                elif features.lean:
                    block_bytes = 4 * fixed_items * int(random.integers(FEWEST_TARGETS, _OWN_TARGETS // 3))
        elif features.lean:
            num_items = (_FEW_ITEMS, 10 * _FEW_ITEMS, _MANY_ITEMS)[run % 3]
            if features.sharing == "sequence":
                lengths = lengths[: 3 + run % 2] if len(lengths) > 3 else np.full(3 + run % 2, width)
            share = random.uniform(0.72, 0.92)
            block_bytes = _for_two_blocks(features, lengths, num_negatives, targets_share, share)
        yield Asked(lengths, num_negatives, num_items, block_bytes)


def _for_two_blocks(
    features: Features,
    lengths: NDArray[np.int64],
    num_negatives: int,
    targets_share: float,
    share: float,
) -> int:
    """Return the block bytes for which lean mode takes two blocks, the first with `share` of the work."""
    num_targets = max(1, round(float(lengths.sum()) * targets_share))
    if features.sharing == "sequence":  # three or four groups, two of them in a block
        size = max(1.0, float(lengths.max()) * targets_share)
        return int(4 * num_negatives * 2 * (size + features.dim) / share)
    if features.sharing == "target":
        return int(4 * num_negatives * (1 + features.dim) * num_targets * share)
    return int(4 * num_negatives * num_targets * share)
