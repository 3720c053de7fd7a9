r"""What a plan assumes where it cannot measure: without data, without the device, or outside the law.

**Noise.** States are normalised, so $\|x\|^2 = d$ and a target's example noise is about $d$; the targets of a
sequence hardly share theirs. The softmax is taken to be as concentrated as in a SASRec after a few epochs on
MovieLens-1M ($\rho = 40$), and $C_x$, $C_p$ within a sequence and $C_p$ between sequences to have the ratios
that were measured there (experiments/LOG.md).

**Seconds.** Multiplications at a rate, bytes at a rate, and a fixed time per step.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgetrec.allocation import Allocation
from budgetrec.planner.seconds import StepSeconds
from budgetrec.settings.sections import RunConfig
from budgetrec.theory.noise import NoiseConstants

RHO = 40.0
_TARGET_CLASS = 1.5  # C_x over d rho
_WITHIN, _BETWEEN = 0.2, 0.04  # C_p within and between sequences, over C_x
_BIAS, _BIAS_NEGATIVES = 0.012, 40.0  # at one negative for width 64, and the k where half of it is left
_GRADIENT = 0.007  # ||grad F||^2 over C_y of a sequence of 100 targets, times d / 64


@dataclass(frozen=True, kw_only=True)
class Vanishing:
    """A bias that falls as 1 / k^2 once there are enough negatives.

    >>> float(Vanishing(coefficient=1.0, half=40.0)(40))
    0.5
    """

    coefficient: float
    half: float

    def __call__(self, num_negatives: ArrayLike) -> NDArray[np.float64]:
        """Evaluate the curve at one or many k."""
        k = np.asarray(num_negatives, np.float64)
        value: NDArray[np.float64] = self.coefficient / (1 + (k / self.half) ** 2)
        return value


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine does in a second, and what a step costs it whatever its size."""

    flops: float
    bytes: float
    fixed: float
    part: float
    words: str


RATES = {
    "cuda": Rates(
        flops=2e13, bytes=1e12, fixed=8e-3, part=4e-3, words="a GPU of 20 TFLOP/s and 1 TB/s, 8 ms per step"
    ),
    "cpu": Rates(
        flops=6e10, bytes=1e10, fixed=4e-3, part=1e-3, words="cores of 60 GFLOP/s and 10 GB/s, 4 ms per step"
    ),
}


def assumed_noise(*, dim: int, mean_targets: float) -> tuple[NoiseConstants, float]:
    """Return the law's constants and the squared norm of the gradient, as of a trained model."""
    target_class = _TARGET_CLASS * dim * RHO
    constants = NoiseConstants.saturating(
        example=1.5 * dim / mean_targets,
        target_class=target_class,
        shared_class=_BETWEEN * target_class,
        sequence_class=_WITHIN * target_class,
        rho=RHO,
    )
    bias = Vanishing(coefficient=_BIAS * dim / 64, half=_BIAS_NEGATIVES)
    return dataclasses.replace(constants, bias=bias), _GRADIENT * dim / 64


def assumed_seconds(
    way: Allocation, config: RunConfig, *, num_items: int, mean_targets: float, device_type: str
) -> StepSeconds:
    """Count multiplications and bytes of a step of one family, and divide them by a machine's rates.

    Each product of matrices is done once forward and twice backward; each number of a large tensor is written
    and read about six times.
    """
    model, rates = config.model, RATES[device_type]
    dim, hidden = model.dim, model.hidden_dim or model.dim
    block = 2 * (4 * dim * dim + 2 * dim * hidden) + 4 * dim * mean_targets
    encoder = 3 * model.num_blocks * block * mean_targets
    traffic = 4 * 6 * model.num_blocks * (10 * dim + hidden) * mean_targets
    logit = 6 * dim / rates.flops + 4 * 6 / rates.bytes
    row = 4 * 6 * dim / rates.bytes
    gathered = {"batch": 0.0, "sequence": 1.0, "target": mean_targets}[way.sharing]
    scored = 1.0 if config.training.targets == "last" else mean_targets
    dense = 4 * 8 * dim * num_items / rates.bytes if way.table_updates == "dense" else 0.0
    sequence = encoder / rates.flops + traffic / rates.bytes
    if not way.draws:
        sequence += num_items * scored * logit
    return StepSeconds(
        fixed=rates.fixed + dense,
        sequence=sequence,
        pair=0.0 if not way.draws else scored * logit + gathered * row,
        negative=row if way.sharing == "batch" and way.draws else 0.0,
        touched=4 * 12 * dim / rates.bytes if way.table_updates == "row-sparse" else 0.0,
        part=rates.part,
        rows_a_sequence=2 * mean_targets,
        num_items=num_items,
        sharing=way.sharing,
    )


def assumed_lengths(*, mean_length: float, max_length: int, count: int) -> NDArray[np.int64]:
    """Return the targets of training windows: lengths spread as an exponential, cut at `max_length`.

    >>> assumed_lengths(mean_length=40, max_length=200, count=4096).max()
    np.int64(200)
    """
    shares = (np.arange(count) + 0.5) / count
    lengths = np.ceil(-np.log1p(-shares) * mean_length)
    return np.clip(lengths, 1, max_length).astype(np.int64)
