r"""The synthetic set-up: Gaussian features and targets from a multinomial logit over a linear layer.

A table $W^*$ with entries $N(0, s^2/d)$ and features $x \sim N(0, I_d)$ give logits of standard deviation
about $s$; the target of $x$ is drawn from $\mathrm{softmax}(W^* x)$. Nothing can have a smaller expected loss
than $W^*$ itself: for $s^2 < 2 \log K$ about $\log K - s^2/2$.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from budgetrec.files import write_whole
from budgetrec.objectives.full_softmax import full_softmax
from budgetrec.probe.measure import NoiseProbe, measure_layer
from budgetrec.probe.sample import TargetSample

WORLDS = "worlds"
_BLOCK_NUMBERS = 1 << 20  # of logits at a time: 4 MiB, which stay in the cache


@dataclass(frozen=True, kw_only=True)
class WorldSizes:
    """Sizes of a world."""

    num_examples: int
    num_validation: int
    num_items: int
    dim: int
    logit_scale: float


@dataclass(frozen=True, kw_only=True)
class WorldSettings(WorldSizes):
    """Sizes of a world and the seed that it is drawn with."""

    seed: int


@dataclass(frozen=True)
class SyntheticWorld:
    """Examples to train on, others to validate with, and the table that their targets came from."""

    table: Tensor  # (K, d)
    features: Tensor  # (N, d)
    targets: Tensor  # (N,)
    validation_features: Tensor
    validation_targets: Tensor

    @classmethod
    def draw(cls, settings: WorldSettings) -> "SyntheticWorld":
        """Draw a world; the same settings give the same one."""
        generator = torch.Generator().manual_seed(settings.seed)
        shape = (settings.num_items, settings.dim)
        table = torch.randn(shape, generator=generator) * (settings.logit_scale / settings.dim**0.5)
        count = settings.num_examples + settings.num_validation
        features = torch.randn(count, settings.dim, generator=generator)
        size = max(1, _BLOCK_NUMBERS // settings.num_items)
        blocks = (features[start : start + size] for start in range(0, count, size))
        targets = torch.cat([_draw_targets(block @ table.T, generator) for block in blocks])
        train, rest = slice(settings.num_examples), slice(settings.num_examples, None)
        return cls(table, features[train], targets[train], features[rest], targets[rest])

    def validation_loss(self, table: Tensor) -> float:
        """Return the exact loss of a table over the validation examples, in blocks over them."""
        with torch.inference_mode():
            return float(
                full_softmax(self.validation_features[None], self.validation_targets[None], table, lean=True)
            )


def _draw_targets(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a class from the softmax of each row: first a run of classes, then one of the run.

    A cumulative sum over all classes would take most of the time, and `torch.multinomial` ten times as long.
    """
    num_rows, num_items = logits.shape
    width = math.isqrt(num_items - 1) + 1
    weights = functional.pad(logits, (0, -num_items % width), value=-math.inf)
    weights = weights.sub_(logits.amax(1, keepdim=True)).exp_().view(num_rows, -1, width)
    run = _pick(weights.sum(2), generator)
    return run * width + _pick(weights[torch.arange(num_rows), run], generator)


def _pick(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a column of each row in proportion to its weight."""
    ends = weights.double().cumsum(1)
    level = torch.rand(len(ends), 1, generator=generator, dtype=torch.float64) * ends[:, -1:]
    return torch.searchsorted(ends, level, right=True)[:, 0]


@lru_cache(maxsize=2)
def open_world(settings: WorldSettings, folder: Path) -> SyntheticWorld:
    """Read a world from the folder of the study, or draw it and keep it there."""
    text = json.dumps(asdict(settings), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / WORLDS / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = SyntheticWorld.draw(settings)
        write_whole(path, lambda partial: save_file(dict(_tensors(drawn)), partial))
    return SyntheticWorld(**load_file(path))


def _tensors(world: SyntheticWorld) -> Iterator[tuple[str, Tensor]]:
    for name in SyntheticWorld.__dataclass_fields__:
        yield name, getattr(world, name)


def measure_world(world: SyntheticWorld, table: Tensor, *, num_targets: int, seed: int) -> NoiseProbe:
    """Measure what the noise law needs of a table, over the first training examples."""
    count = min(num_targets, len(world.targets))
    sample = TargetSample.of(
        world.features[:count], world.targets[:count], np.arange(count), np.ones(count, np.int64)
    )
    return measure_layer(sample, table, generator=torch.Generator().manual_seed(seed))
