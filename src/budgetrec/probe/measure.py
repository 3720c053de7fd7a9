"""Measure the gradient noise of a model on its data, so the noise law can predict it for any (n, k, G)."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.models.contract import SequenceModel
from budgetrec.models.own_model import fill_in
from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.check import Check, Simulation, check_law, correct_curves
from budgetrec.probe.example import ExampleNoise, measure_example, num_example_targets
from budgetrec.probe.leading import CONSTANTS, Estimate, measure_leading, sum_sequences
from budgetrec.probe.noise_curves import measure_curves
from budgetrec.probe.products import Products, sum_products
from budgetrec.probe.sample import TargetSample, draw_targets
from budgetrec.probe.steps import ProbedLayer
from budgetrec.ranking.histories import evaluating
from budgetrec.theory.noise import NoiseConstants


@dataclass(frozen=True, kw_only=True)
class NoiseProbe:
    r"""The constants of the noise law for a model and its data, with their uncertainty.

    Pass `constants` to `predict_noise`, with `num_targets` as `mean_targets` times the batch size. The
    estimates are the leading orders: `example_sequence` and `example_target` are C_y counted by sequences and
    by targets, `shared_class` and `sequence_class` C_p between and within sequences, `target_class` C_x,
    `gradient` $\|\nabla F\|^2$, `rho` the mean of $\sum_i p_i^2 / q_i$ over targets (and `rho_median`).
    Example noise and gradient are those of `num_example_targets` targets, and `squares` is the part of the
    former in the class noise's sample that is not centred.
    `check` compares the law with directly measured class noise; `check_allocation` takes steps on `layer`.
    """

    constants: NoiseConstants
    example_sequence: Estimate
    example_target: Estimate
    gradient: Estimate
    shared_class: Estimate
    sequence_class: Estimate
    target_class: Estimate
    rho: Estimate
    rho_median: float
    mean_targets: Estimate
    squares: float
    num_targets: int
    num_example_targets: int
    num_sequences: int
    num_items: int
    num_classes: int
    check: tuple[Check, ...]
    layer: ProbedLayer = field(repr=False, compare=False)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The leading constants by name."""
        return {name: getattr(self, name) for name in CONSTANTS}

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the curves, for JSON; numbers that are not finite become None."""
        checks = [asdict(each) | {"relative_error": each.relative_error} for each in self.check]
        numbers = {
            "num_targets",
            "num_example_targets",
            "num_sequences",
            "num_items",
            "num_classes",
            "rho_median",
        }
        return {
            **{name: _finite(asdict(each)) for name, each in self.estimates.items()},
            **{name: getattr(self, name) for name in sorted(numbers)},
            "check": [_finite(each) for each in checks],
        }

    def __str__(self) -> str:
        """Return a table of constants and checks."""
        seen = f"{self.num_classes:,} of {self.num_items:,}" if self.num_classes < self.num_items else "all"
        lines = [
            f"{self.num_targets:,} targets of {self.num_sequences:,} sequences, {seen} items",
            f"{'':38}{'value':>10}  95% interval",
        ]
        for name, each in self.estimates.items():
            sampled = f"  ({each.class_error:.2g} from sampling classes)" if each.class_error else ""
            lines.append(
                f"{CONSTANTS[name]:38}{each.value:>10.4g}  {each.low:.4g} to {each.high:.4g}{sampled}"
            )
        lines.append(f"{'  median':38}{self.rho_median:>10.4g}")
        if self.check:
            lines.append(f"{'class noise, drawn':22}{'k':>6}{'measured':>12}{'+-':>10}{'law':>11}{'off':>7}")
        lines += [
            f"{each.part:22}{each.num_negatives:>6}{each.measured:>12.4g}{each.standard_error:>10.2g}"
            f"{each.law:>11.4g}{each.relative_error:>7.0%}"
            for each in self.check
        ]
        return "\n".join(lines)


def measure_noise(
    model: SequenceModel,
    dataset: Dataset,
    *,
    log_q: Tensor | None = None,
    num_targets: int = 2048,
    max_length: int | None = None,
    windows: str = "last",
    generator: torch.Generator,
    last_only: bool = False,
    max_classes: int = 1_000_000,
    report: Callable[[str], None] | None = None,
) -> NoiseProbe:
    """Measure the constants of the noise law on about `num_targets` targets of random training sequences.

    Negatives are assumed to be drawn from `log_q` (K,), by default uniformly. `max_length`, `windows` and
    `last_only` are as in training. A catalogue of more than `max_classes` items is sampled, and the intervals
    include the sampling error. The model is probed in evaluation mode and then returned to its mode. All
    randomness comes from `generator`, on the CPU. `report` is called with the name of each stage.
    """
    model = fill_in(model, num_items=dataset.num_items, max_length=max_length)
    if model.num_items != dataset.num_items:
        raise ArgumentError(
            f"the model has {model.num_items:,} items and the dataset has {dataset.num_items:,}; "
            "probe a model on the dataset it is trained on."
        )
    tell = report or (lambda stage: None)
    with evaluating(model):
        tell(f"encoding sequences for {num_targets:,} targets")
        sample = draw_targets(
            model,
            dataset,
            num_targets=num_targets,
            max_length=model.max_length if max_length is None else max_length,
            windows=windows,
            last_only=last_only,
            generator=generator,
        )
        table = model.item_table().detach()
        probe = measure_layer(
            sample, table, log_q=log_q, max_classes=max_classes, generator=generator, report=tell
        )
        more = num_example_targets(num_targets, *table.shape)
        if not more or len(table) > max_classes:
            return probe
        tell(f"example noise of {more:,} targets")
        larger = draw_targets(
            model,
            dataset,
            num_targets=more,
            max_length=model.max_length if max_length is None else max_length,
            windows=windows,
            last_only=last_only,
            generator=generator,
        )
        everything = Catalogue.of(table, None, larger, max_classes=max_classes, generator=generator)
        return _with_example(probe, measure_example(larger, everything))


def _with_example(probe: NoiseProbe, found: ExampleNoise) -> NoiseProbe:
    """Take over what a larger sample says of example noise and of the gradient."""
    estimates = found.estimates
    # E||V - T grad F||^2 / mean^2 is that of V less ||grad F||^2, and a small rest where lengths differ.
    rest = probe.example_sequence.value - probe.squares + probe.gradient.value - estimates["gradient"].value
    squares = estimates["squares"]
    example = dataclasses.replace(
        squares, value=squares.value + rest, low=squares.low + rest, high=squares.high + rest
    )
    return dataclasses.replace(
        probe,
        constants=dataclasses.replace(probe.constants, example=example.value),
        example_sequence=example,
        example_target=estimates["example_target"],
        gradient=estimates["gradient"],
        num_example_targets=found.num_targets,
    )


@torch.inference_mode()
def measure_layer(
    sample: TargetSample,
    table: Tensor,
    *,
    log_q: Tensor | None = None,
    max_classes: int = 1_000_000,
    generator: torch.Generator,
    report: Callable[[str], None] = lambda stage: None,
) -> NoiseProbe:
    """Measure the constants from a sample of targets and the vectors (K, d) of all items."""
    catalogue = Catalogue.of(table, log_q, sample, max_classes=max_classes, generator=generator)
    report(f"softmax of {len(sample.targets):,} targets over {catalogue.num_classes:,} items")
    products = sum_products(sample, catalogue)
    estimates = measure_leading(products, catalogue)
    report("class noise at every k")
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    leading = {name: each.value for name, each in estimates.items()}
    constants = measure_curves(products, catalogue, leading, generator=np.random.default_rng(seed))
    alone, pairs = sum_sequences(products, "example")
    report("checking the law on drawn negatives")
    simulation = Simulation(products, catalogue)
    constants = correct_curves(simulation, constants, generator=generator)
    return NoiseProbe(
        constants=constants,
        **estimates,
        rho_median=_median_rho(products),
        squares=float((alone + pairs).mean()) / leading["mean_targets"] ** 2,
        num_targets=len(sample.targets),
        num_example_targets=len(sample.targets),
        num_sequences=len(sample.lengths),
        num_items=catalogue.num_items,
        num_classes=catalogue.num_classes,
        check=check_law(simulation, constants, generator=generator),
        layer=ProbedLayer(
            sample=sample,
            table=table,
            log_q=log_q,
            constants=constants,
            example=torch.from_numpy(alone),
            example_pairs=torch.from_numpy(pairs),
            gradient=leading["gradient"],
            mean_targets=leading["mean_targets"],
        ),
    )


def _median_rho(products: Products) -> float:
    """Return the weighted median of rho over targets."""
    sample = products.sample
    rho = np.empty(len(sample.targets))
    for slab in sample.slabs():
        rho[slab.rows] = products.slab_products(slab).rho
    order = np.argsort(rho)
    below = np.cumsum(sample.weights[order])
    return float(rho[order][np.searchsorted(below, below[-1] / 2)])


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
