"""The gradient noise, simulated over (n, k, G) and every way of sharing, against the law.

Features are Gaussian, targets are drawn from the model's own softmax, so the true gradient is zero and the
noise of a step is the squared norm of its gradient. The law's constants come from a sample of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from budgetrec.errors import DataError
from budgetrec.study.engine.frame import Findings, Request, Study
from budgetrec.study.engine.grid import Cell, Outcome, Stage, Stages
from budgetrec.study.engine.scale import by_scale
from budgetrec.study.engine.tabulating import tabulate
from budgetrec.study.variance.figures import draw_errors, draw_noise
from budgetrec.theory.constants import OutputLayer, measure_constants, pair_products
from budgetrec.theory.noise import NoiseConstants, predict_noise
from budgetrec.theory.paper.assumptions import check_variance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A kind of features: where they lie, how far the logits spread, and how many targets a sequence has."""

    name: str
    mean_norm: float = 0.0
    logit_scale: float = 1.0
    targets_per_sequence: int = 1


SETTINGS = (
    Setting(name="mean 0"),
    Setting(name="mean norm 4", mean_norm=4.0),
    Setting(name="sequences of 4", targets_per_sequence=4),
    Setting(name="concentrated", logit_scale=2.5),
)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The size of a study."""

    num_items: int
    dim: int
    batch_sizes: tuple[int, ...]
    num_negatives: tuple[int, ...]
    num_repeats: int
    num_probe_targets: int
    num_curve_pairs: int


GRIDS = by_scale(
    Grid,
    num_items=(400, 5000, 50_000),
    dim=(16, 32, 32),
    batch_sizes=((8, 32), (8, 32, 128), (8, 32, 128, 512)),
    num_negatives=((8, 32), (8, 16, 32, 128), (8, 16, 32, 128, 512)),
    num_repeats=(150, 300, 1000),
    num_probe_targets=(800, 2000, 2000),
    num_curve_pairs=(64, 192, 256),
)
_COLUMNS = {
    "features": "{features}",
    "negatives": "{sharing}",
    "n": "{batch_size}",
    "k": "{num_negatives}",
    "G": "{num_groups}",
    "measured": "{measured:.4g}",
    "law": "{law:.4g}",
    "error": "{law_error:+.1%}",
    "k+rho": "{saturating_error:+.1%}",
    "1/k": "{leading_error:+.1%}",
}


@dataclass(frozen=True)
class World:
    """A last layer and the distribution of its targets."""

    setting: Setting
    table: Floats

    @classmethod
    def of(cls, setting: Setting, *, num_items: int, dim: int, generator: np.random.Generator) -> "World":
        """Draw the table of a setting."""
        return cls(setting, generator.standard_normal((num_items, dim)) * setting.logit_scale / dim**0.5)

    def draw(self, batch_size: int, generator: np.random.Generator) -> tuple[Floats, Ints, Floats]:
        """Draw features, targets and logits of a batch; a sequence shares half of its features' variance."""
        length, dim = self.setting.targets_per_sequence, self.table.shape[1]
        features = generator.standard_normal((batch_size * length, dim))
        if length > 1:
            common = np.repeat(generator.standard_normal((batch_size, dim)), length, axis=0)
            features = (features + common) / np.sqrt(2)
        features[:, 0] += self.setting.mean_norm
        logits = features @ self.table.T
        cumulative = np.cumsum(np.exp(logits - logits.max(1, keepdims=True)), axis=1)
        level = generator.random(len(features)) * cumulative[:, -1]
        return features, (cumulative < level[:, None]).sum(1), logits

    def step_gradient(
        self,
        batch: tuple[Floats, Ints, Floats],
        *,
        num_negatives: int,
        num_groups: int,
        generator: np.random.Generator,
    ) -> Floats:
        """Draw uniform negatives for a batch and give its corrected gradient, (K, d)."""
        features, targets, logits = batch
        count, num_items = len(features), len(self.table)
        drawn = generator.integers(0, num_items, (num_groups, num_negatives))
        ids = np.repeat(drawn, count // num_groups, axis=0)
        scores = np.take_along_axis(logits, ids, axis=1) + np.log(num_items / num_negatives)
        scores[ids == targets[:, None]] = -np.inf  # the own positive, met as a negative
        columns = np.concatenate([targets[:, None], ids], axis=1)
        scores = np.concatenate([logits[np.arange(count), targets][:, None], scores], axis=1)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        weights[:, 0] -= 1.0
        rows = np.repeat(np.arange(count), columns.shape[1])
        residual = csr_array((weights.ravel(), (columns.ravel(), rows)), shape=(num_items, count))
        gradient: Floats = residual @ features / count
        return gradient

    def step_noise(
        self,
        batch: tuple[Floats, Ints, Floats],
        *,
        num_negatives: int,
        num_groups: int,
        generator: np.random.Generator,
    ) -> float:
        """Return the squared norm of a corrected gradient, whose mean would be zero."""
        gradient = self.step_gradient(
            batch, num_negatives=num_negatives, num_groups=num_groups, generator=generator
        )
        return float(np.sum(gradient * gradient))


def measure_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Simulate one kind of features, with a generator of its own."""
    child = np.random.SeedSequence(settings["seed"]).spawn(settings["place"] + 1)[-1]
    rows = study_setting(
        Setting(**settings["setting"]), Grid(**settings["grid"]), np.random.default_rng(child)
    )
    return Outcome(values={"rows": list(rows)})


def stages(request: Request, folder: Path) -> Stages[Findings]:
    """Run a cell for each kind of features; a row of the frame has what was measured and predicted."""
    cells = [
        Cell(
            study="variance",
            version=1,
            function=f"{__name__}:measure_cell",
            settings={
                "setting": asdict(setting),
                "grid": asdict(GRIDS[request.scale]),
                "seed": request.seed,
                "place": place,
            },
        )
        for place, setting in enumerate(SETTINGS)
    ]
    outcomes = yield Stage(cells)
    rows = [row for outcome in outcomes if outcome is not None for row in outcome.values["rows"]]
    if not rows:
        raise DataError("every cell of the study failed. Look into cells/*.failed.json.")
    frame, grid = pl.DataFrame(rows), GRIDS[request.scale]
    error = largest_error(frame)
    return Findings(
        title="Gradient noise of a step: simulated, and by the law",
        text=[
            f"K = {grid.num_items:,} classes, width {grid.dim}, {grid.num_repeats} steps for each row. The "
            f"law is off by {error:.1%} at most where the paper's assumption A2 holds and k >= 8."
        ],
        tables={"noise": ("Measured and predicted", tabulate(frame, _COLUMNS, num_words=2))},
        charts={
            "noise": ("Noise of a step: simulated (points) and the law (lines).", draw_noise(frame)),
            "errors": ("How far three forms of the law are off.", draw_errors(frame)),
        },
        summary={"max_relative_error": error},
    )


STUDY = Study(name="variance", count=lambda request: len(SETTINGS), stages=stages)


def largest_error(frame: pl.DataFrame, *, least_negatives: int = 8) -> float:
    """Return the largest relative error of the law over cells with A2 and at least this many negatives."""
    cells = frame.filter(pl.col("a2_holds") & (pl.col("num_negatives") >= least_negatives))
    return float(max(abs(error) for error in cells["law_error"]))


def group_counts(setting: Setting, batch_size: int) -> dict[str, int]:
    """Name the ways of sharing and the sets each takes: grouped is one per sequence, or one for 4 targets."""
    length = setting.targets_per_sequence
    grouped = batch_size if length > 1 else max(1, batch_size // 4)
    return {"shared": 1, "grouped": grouped, "per target": batch_size * length}


def study_setting(
    setting: Setting, grid: Grid, generator: np.random.Generator
) -> Iterator[dict[str, object]]:
    """Simulate every (n, k, G) of one kind of features; yield a row for each."""
    world = World.of(setting, num_items=grid.num_items, dim=grid.dim, generator=generator)
    exact, guess, leading, variance = _laws(world, grid, generator)
    for batch_size in grid.batch_sizes:
        groups = group_counts(setting, batch_size)
        cells = [(name, count, k) for name, count in groups.items() for k in grid.num_negatives]
        noise = np.empty((grid.num_repeats, len(cells)))
        for repeat in range(grid.num_repeats):
            batch = world.draw(batch_size, generator)
            for column, (_, count, k) in enumerate(cells):
                noise[repeat, column] = world.step_noise(
                    batch, num_negatives=k, num_groups=count, generator=generator
                )
        for column, (name, count, k) in enumerate(cells):
            point = {
                "batch_size": batch_size,
                "num_targets": batch_size * setting.targets_per_sequence,
                "num_negatives": k,
                "num_groups": count,
            }
            found = mean_noise(noise[:, column])
            measured = found["measured"]
            predicted = float(predict_noise(exact, **point).total)
            yield {
                "features": setting.name,
                "sharing": name,
                **point,
                "logit_variance": variance,
                "a2_holds": variance < 1.2,
                **found,
                "law": predicted,
                "law_error": predicted / measured - 1,
                "saturating_error": float(predict_noise(guess, **point).total) / measured - 1,
                "leading_error": float(predict_noise(leading, **point).total) / measured - 1,
            }


def uniform_layer(features: Floats, targets: Ints, table: Floats, targets_per_sequence: int) -> OutputLayer:
    """Return a layer whose negatives are uniform; features and targets stand sequence by sequence."""
    return OutputLayer.of(
        features=features,
        table=table,
        targets=targets,
        log_q=np.full(len(table), -np.log(len(table))),
        sequences=np.arange(len(targets)) // targets_per_sequence,
    )


def mean_noise(repeats: Floats) -> dict[str, float]:
    """Return the mean over repeats and its standard error."""
    return {
        "measured": float(repeats.mean()),
        "standard_error": float(repeats.std() / np.sqrt(len(repeats))),
    }


def _laws(
    world: World, grid: Grid, generator: np.random.Generator
) -> tuple[NoiseConstants, NoiseConstants, NoiseConstants, float]:
    """Return the exact law, 1/(k + rho), the leading order and the logits' variance, from a fresh sample."""
    length = world.setting.targets_per_sequence
    count = grid.num_probe_targets // length
    features, targets, logits = world.draw(count, generator)
    variance = check_variance(logits).statistic
    layer = uniform_layer(features, targets, world.table, length)
    products = pair_products(layer)
    exact = measure_constants(
        layer,
        generator=generator,
        pairs=products,
        num_curve_targets=grid.num_curve_pairs,
        num_curve_pairs=grid.num_curve_pairs,
    )
    pairs = products.diffuse_class_noise
    within = layer.sequences[:, None] == layer.sequences[None, :]
    siblings = within & ~np.eye(len(within), dtype=bool)
    constants = {
        "example": exact.example,
        "target_class": float(pairs.diagonal().mean()),
        "shared_class": float(pairs[~within].mean()),
        "sequence_class": float(pairs[siblings].mean()) if siblings.any() else 0.0,
    }
    guess = NoiseConstants.saturating(**constants, rho=float(products.rho.mean()))
    return exact, guess, NoiseConstants.saturating(**constants), variance
