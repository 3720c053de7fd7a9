"""Small steps of the sizes that tell the features of a step apart."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from budgetrec.memory.law import Law, fit
from budgetrec.memory.rehearsal import STAGES, Rehearsed, Sizes, Stand, rehearse
from budgetrec.memory.step_features import Features
from budgetrec.objectives.blocks import TILE_TARGETS
from budgetrec.objectives.contract import Objective
from budgetrec.objectives.specification import StepFloor

_NUM_RUNS = 12
_LONGEST = 32
_FEW_ITEMS, _MANY_ITEMS = 60, 3000
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
    for asked in _asked(features, max_length, targets_share, floor):
        if fixed_items is not None:
            asked = replace(asked, num_items=fixed_items, block_bytes=features.block_bytes)
        stand, objective = setting(asked)
        runs.append(rehearse(stand, objective, asked.lengths))
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
        kept=fit([kept[None] for _, kept, _ in cuts], of_batch),
        before=fit([before for before, _, _ in cuts], of_batch),
        part=fit([part for _, _, part in cuts], of_part),
    )


def _shape(sizes: Sizes) -> NDArray[np.float64]:
    return np.array([sizes.sequences, sizes.positions, sizes.places, sizes.targets], np.float64)


def _cut(run: Rehearsed) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes before the first part, what of them is kept, and what the part adds."""
    live, during = run.timeline.live, run.timeline.during
    first, last = np.flatnonzero(during != STAGES.index("batch"))[[0, -1]]
    kept = live[first - 1]
    return live[:first], kept, np.maximum(live[first : last + 1] - kept, 0)


def _asked(features: Features, max_length: int, targets_share: float, floor: StepFloor) -> Iterator[Asked]:
    """Vary every size, so that no two features rise and fall together."""
    random = np.random.default_rng(0)
    longest = min(max_length, _LONGEST)
    fewest = max(
        2, round(floor.targets / (longest * targets_share))
    )  # sequences, so that there are enough targets
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
