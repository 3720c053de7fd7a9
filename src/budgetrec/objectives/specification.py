"""What the rest of the package knows about an objective besides its formula: see `objectives.registry`.

Nothing here imports torch, so that `--help` answers at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from budgetrec.options import Options, check_choice, check_count, check_positive, check_share, setting

if TYPE_CHECKING:
    from budgetrec.objectives.contract import Objective
    from budgetrec.samplers.contract import AnySampler

# A block's logits and gathered rows. Measured on one CPU thread: 2 to 16 MiB are alike, 0.5 and 64 MiB half
# as fast.
BLOCK_BYTES = 4 * 2**20
TABLE_BLOCK_BYTES = 64 * 2**20  # of logits against every item
SHARINGS = ("batch", "sequence", "target")
CORRECTIONS = ("none", "theorem", "logq", "logq-negatives", "refined-logq")


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """How vectors are scored."""

    temperature: float = setting(1.0, "Divide logits by this.")
    cosine: bool = setting(False, "Score by cosine similarity instead of dot product.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class SampledSoftmaxOptions(ScoreOptions):
    """Options of sampled softmax."""

    correction: str = setting(
        "theorem", f"How sampled softmax corrects for the sampler: {', '.join(CORRECTIONS)}."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("correction", self.correction, CORRECTIONS)


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(Options):
    """Options of gBCE."""

    calibration: float = setting(0.75, "gBCE: from 0 (plain BCE) to 1 (full correction).")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(calibration=self.calibration)


@dataclass(frozen=True, kw_only=True)
class ChunkOptions(Options):
    """Options of objectives that score targets against the items near them."""

    num_buckets: int = setting(64, "SCE: number of buckets; RECE: number of chunks.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(num_buckets=self.num_buckets, most=10**9)


@dataclass(frozen=True, kw_only=True)
class BucketOptions(ChunkOptions):
    """Options of SCE."""

    bucket_targets: int = setting(256, "SCE: targets per bucket.")
    bucket_items: int = setting(256, "SCE: items per bucket.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(bucket_targets=self.bucket_targets, bucket_items=self.bucket_items, most=10**9)


@dataclass(frozen=True, kw_only=True)
class ObjectiveParts:
    """What an objective is built from; `sampler` is given where it draws, `block_bytes` are of lean mode."""

    num_items: int
    num_negatives: int
    sharing: str
    lean: bool
    options: Options
    sampler: "AnySampler | None" = None
    block_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepFloor:
    """How large a step must be for an objective to work as it does in large ones."""

    targets: int = 48
    items: int = 200  # more than targets, as in any catalogue worth sampling from


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpecification:
    """An objective's name, its own options and what settings, planner, memory and stepper ask about it.

    `law` says how the noise law describes it: "exact", as a "guide", or not at all (None); then there is
    nothing to plan by. An objective that draws nothing and that the law covers scores every item.
    """

    name: str
    build: Callable[[ObjectiveParts], "Objective"]
    options: type[Options] = Options
    draws: bool = False  # a sampler draws its negatives; else it needs the whole item table
    separable: bool = True  # the loss of a batch is the mean of its parts' losses
    law: Literal["exact", "guide"] | None = None
    block_bytes: int = BLOCK_BYTES  # of logits in lean mode
    # Whether lean mode cuts items too, given their number and whether numbers have half precision.
    in_tiles: Callable[[int, bool], bool] = lambda num_items, half: False
    step_floor: Callable[[Options], StepFloor] = lambda options: StepFloor()
