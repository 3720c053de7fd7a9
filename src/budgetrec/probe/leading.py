r"""The leading constants of the noise law and their errors, from the sums of one pass over the catalogue.

A step of $n$ sequences with $T_s$ targets each divides by $T = \sum_s T_s$, so with $V_s = \sum_{t \in s}
(p_t - y_t) x_t^\top$ and $\bar T = E\,T_s$ the example noise of one sequence is that of a ratio of means,
$C_y = E\|V_s - T_s \nabla F\|^2 / \bar T^2$. All are averages over pairs of distinct targets (U-statistics):
the products of a target or a sequence with itself are subtracted from the sums over all pairs.

Errors come from the jackknife: each of 16 groups of sequences is left out in turn and, if the catalogue is
sampled, each of 8 folds of classes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from budgetrec.probe.catalogue import NUM_FOLDS, Catalogue
from budgetrec.probe.products import PairProducts, Products
from budgetrec.probe.sample import TargetSample, sum_by

Floats = NDArray[np.float64]

_LEVEL = 0.95
CONSTANTS = {  # every leading constant by its name, with its title
    "example_sequence": "example noise, per sequence C_y",
    "example_target": "example noise, per target   C_y",
    "gradient": "true gradient         ||grad F||^2",
    "shared_class": "class noise, shared         C_p",
    "sequence_class": "class noise, in a sequence  C_p",
    "target_class": "class noise, per target     C_x",
    "rho": "catalogue / likely classes  rho",
    "mean_targets": "targets per sequence",
}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A constant with its 95% confidence interval.

    `error` is its standard error; `class_error` is the part of it due to sampling classes.
    """

    value: float
    low: float
    high: float
    error: float
    class_error: float = 0.0

    @property
    def relative_error(self) -> float:
        """The standard error relative to the value."""
        return self.error / abs(self.value) if self.value else 0.0


@dataclass(frozen=True)
class GroupSums:
    """Sums over sequences by group (groups,), and over pairs of sequences by both groups (groups, groups)."""

    own: dict[str, Floats]
    between: dict[str, Floats]

    def without(self, group: int) -> "GroupSums":
        """Return the sums without a group."""
        keep = np.arange(len(self.own["sequences"])) != group
        return GroupSums(
            {name: values[keep] for name, values in self.own.items()},
            {name: values[np.ix_(keep, keep)] for name, values in self.between.items()},
        )

    def constants(self) -> dict[str, float]:
        """Return the leading constants."""
        own = {name: float(values.sum()) for name, values in self.own.items()}
        between = {name: float(values.sum()) for name, values in self.between.items()}
        count, mean = own["sequences"], own["targets"] / own["sequences"]
        gradient = between["gradient"] / between["pairs"]
        curvature = between["curvature"] / between["core_pairs"]
        pairs_of_one = mean * (mean - 1)
        # E||V - T grad F||^2 / mean^2, expanded.
        example_sequence = (
            own["example_sequence"] / count
            - 2 * between["lengthwise"] / between["sequence_pairs"] / mean
            + own["squared_lengths"] / count * gradient
        ) / mean**2
        return {
            "example_sequence": example_sequence,
            "example_target": own["example_target"] / own["targets"] - gradient,
            "gradient": gradient,
            "shared_class": between["shared"] / between["pairs"] + curvature,
            "sequence_class": own["sequence_class"] / count / pairs_of_one if pairs_of_one > 0 else 0.0,
            "target_class": own["target_class"] / own["targets"],
            "rho": own["rho"] / own["targets"],
            "mean_targets": mean,
        }


def measure_leading(products: Products, catalogue: Catalogue) -> dict[str, Estimate]:
    """Return every leading constant with its interval."""
    sums = sum_groups(products)
    class_errors = _class_errors(products, catalogue, sums.constants())
    return estimate_all(sums, GroupSums.constants, class_errors)


def estimate_all(
    sums: GroupSums,
    constants: Callable[[GroupSums], dict[str, float]],
    class_errors: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Estimate]:
    """Return every constant of the sums with its interval, jackknifed over the groups."""
    num_groups = len(sums.own["sequences"])
    left_out = [constants(sums.without(group)) for group in range(num_groups)] if num_groups > 2 else []
    reach = float(stats.t.ppf((1 + _LEVEL) / 2, num_groups - 1))
    estimates = {}
    for name, value in constants(sums).items():
        spread = jackknife_error(np.array([each[name] for each in left_out])) if left_out else np.inf
        own = class_errors.get(name, 0.0)
        error = float(np.hypot(spread, own))
        low, high = value - reach * error, value + reach * error
        estimates[name] = Estimate(value=value, low=low, high=high, error=error, class_error=own)
    return estimates


def jackknife_error(values: Floats) -> float:
    """Return the standard error of an estimate from its values with each of m parts left out.

    The mean of 1, 2 and 6 is 3 with a standard error of sqrt(7/3); without each of them it is 4, 3.5 and 1.5:

    >>> round(jackknife_error(np.array([4.0, 3.5, 1.5])) ** 2 * 3, 12)
    7.0
    """
    count = len(values)
    return float(np.sqrt((count - 1) / count * np.square(values - values.mean()).sum()))


def sum_groups(products: Products, *, without: int | None = None) -> GroupSums:
    """Sum targets and pairs of one sequence by group, and subtract the latter from the sums over all pairs.

    Without a fold of classes, only sums over individual pairs are known: sums over pairs of different
    sequences are then those of the core.
    """
    sample = products.sample
    count = sample.num_groups
    own: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(count))
    for slab in sample.slabs():
        pairs = products.slab_products(slab, without=without)
        group = sample.groups[slab.sequences]
        length = sample.lengths[slab.sequences].astype(np.float64)
        weight, pair_weight = length / slab.size, sample.pair_weights[slab.sequences]
        example, own_example = pairs.example.sum((1, 2)), _traces(pairs.example)
        class_noise, own_class = pairs.class_noise.sum((1, 2)), _traces(pairs.class_noise)
        found = {
            "example_target": weight * own_example,
            "example_sequence": weight * own_example + pair_weight * (example - own_example),
            "target_class": weight * own_class,
            "sequence_class": pair_weight * (class_noise - own_class),
            "rho": weight * pairs.rho.sum(1),
            "shared": weight**2 * (class_noise - pairs.curvature.sum((1, 2))),
            "gradient": weight**2 * example,
            "lengthwise": length * weight**2 * example,
        }
        for name, values in found.items():
            own[name] += sum_by(group, values, count)
    inside = {name: np.diag(own.pop(name)) for name in ("shared", "gradient", "lengthwise")}
    lengths = sample.lengths.astype(np.float64)
    own["sequences"] = sum_by(sample.groups, None, count)
    own["targets"] = sum_by(sample.groups, lengths, count)
    own["squared_lengths"] = sum_by(sample.groups, lengths**2, count)
    between = _core_sums(products, products.core_products(without=without))
    if without is None:
        between |= {
            "shared": products.shared - inside["shared"],
            "gradient": products.gradient - inside["gradient"],
            "lengthwise": products.lengthwise - inside["lengthwise"],
            "pairs": np.outer(own["targets"], own["targets"]) - np.diag(own["squared_lengths"]),
            "sequence_pairs": np.outer(own["sequences"], own["sequences"]) - np.diag(own["sequences"]),
        }
    return GroupSums(dict(own), between)


def sum_sequences(products: Products, name: str) -> tuple[Floats, Floats]:
    """Sum one of the products over the targets of each sequence (S,), and over the pairs of them (S,)."""
    sample = products.sample
    alone, pairs = np.empty((2, len(sample.lengths)))
    for slab in sample.slabs():
        found: Floats = getattr(products.slab_products(slab), name)
        traces, own = _traces(found), slab.sequences
        alone[own] = sample.lengths[own] / slab.size * traces
        pairs[own] = sample.pair_weights[own] * (found.sum((1, 2)) - traces)
    return alone, pairs


def core_weights(sample: TargetSample, rows: NDArray[np.int64]) -> Floats:
    """Return the weight of each pair of targets of the core, (M, M): 0 within a sequence."""
    owners = sample.sequences[rows]
    weights = sample.lengths[owners] / np.bincount(owners)[owners]
    apart: Floats = np.outer(weights, weights) * (owners[:, None] != owners[None, :])
    return apart


def _core_sums(products: Products, pairs: PairProducts) -> dict[str, Floats]:
    """Return sums over pairs of the core from different sequences, by group."""
    sample = products.sample
    weights = core_weights(sample, products.core)
    owners = sample.sequences[products.core]
    group = np.eye(sample.num_groups)[sample.groups[owners]]  # (M, groups)
    lengths = sample.lengths[owners].astype(np.float64)

    def by_group(values: Floats) -> Floats:
        total: Floats = group.T @ (weights * values) @ group
        return total

    ones = np.ones_like(weights)
    return {
        "curvature": by_group(pairs.curvature[0]),
        "core_pairs": by_group(ones),
        "shared": by_group(pairs.class_noise[0] - pairs.curvature[0]),
        "gradient": by_group(pairs.example[0]),
        "lengthwise": by_group(lengths[:, None] * pairs.example[0]),
        "pairs": by_group(ones),
        "sequence_pairs": by_group(1 / np.outer(lengths, lengths)),
    }


def _class_errors(products: Products, catalogue: Catalogue, values: dict[str, float]) -> dict[str, float]:
    """Return the standard errors due to sampling classes, 0 if all classes are used.

    Without a fold, constants of different sequences are known only for the core; the relative error of the
    core's constant is used for all.
    """
    if catalogue.ids is None:
        return dict.fromkeys(values, 0.0)
    certain = catalogue.num_certain
    share_seen = (catalogue.num_classes - certain) / (catalogue.num_items - certain)
    whole = GroupSums(sum_groups(products).own, _core_sums(products, products.core_products())).constants()
    folds = [sum_groups(products, without=1 + fold).constants() for fold in range(NUM_FOLDS)]
    errors = {}
    for name, value in values.items():
        error = jackknife_error(np.array([each[name] for each in folds])) * np.sqrt(1 - share_seen)
        scale = value / whole[name] if name == "shared_class" and whole[name] else 1.0
        errors[name] = float(error * abs(scale))
    return errors


def _traces(matrices: Floats) -> Floats:
    traces: Floats = np.einsum("sii->s", matrices)
    return traces
