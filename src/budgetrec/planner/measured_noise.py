"""The noise of a model as it is trained: the law's constants, measured by the probe."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from budgetrec.allocation import Allocation
from budgetrec.planner.assumed import assumed_noise
from budgetrec.probe import NoiseProbe, ProbedLayer, check_allocation, measure_noise
from budgetrec.stepping.stepper import Stepper
from budgetrec.theory.noise import NoiseConstants

_CHECK_SEED = 1


@dataclass(frozen=True, kw_only=True)
class MeasuredNoise:
    """The law's constants, the squared norm of the true gradient, and what had to be assumed for them."""

    constants: NoiseConstants
    gradient: float
    assumptions: dict[str, str]
    layer: ProbedLayer | None = field(default=None, repr=False, compare=False)  # to check the law on

    def check(self, allocation: Allocation) -> dict[str, str]:
        """Take steps of an allocation on what was probed, and say how far the law is off."""
        if self.layer is None or not allocation.draws:
            return {}
        found = check_allocation(
            self.layer,
            batch_size=allocation.batch_size,
            num_negatives=allocation.num_negatives,
            sharing=allocation.sharing,
            generator=torch.Generator().manual_seed(_CHECK_SEED),
        )
        told = f"{abs(found.relative_error):.0%} {'above' if found.relative_error >= 0 else 'below'}"
        return {
            "law": f"{told} what {found.num_steps:,} steps of this plan were found to have "
            f"(standard error {found.relative_standard_error:.0%})"
        }

    @classmethod
    def of(cls, probe: NoiseProbe, steps: int) -> Self:
        """Adopt what the probe found after `steps` steps.

        The gradient's estimate may come out near 0 or below; a quarter of its upper end is then nearer.
        """
        worst = max((abs(each.relative_error) for each in probe.check), default=0.0)
        told = (
            f"measured after {steps:,} steps on {probe.num_targets:,} targets; the law was off by at most "
            f"{worst:.0%} where it was checked"
        )
        gradient = max(probe.gradient.value, probe.gradient.high / 4)
        # Steps that are timed later change the model's own table.
        layer = dataclasses.replace(probe.layer, table=probe.layer.table.clone())
        return cls(constants=probe.constants, gradient=gradient, assumptions={"noise": told}, layer=layer)


def probe_noise(stepper: Stepper, *, report: Callable[[str], None] = lambda stage: None) -> MeasuredNoise:
    """Measure the noise of the stepper's model."""
    config = stepper.config
    objective, training = config.objective, config.training
    if objective.cosine or objective.temperature != 1:
        mean_targets = stepper.batches.num_targets / stepper.batches.num_sequences
        constants, gradient = assumed_noise(dim=config.model.dim, mean_targets=mean_targets)
        told = {"noise": "not measured: the probe does not cover cosine or temperature"}
        return MeasuredNoise(constants=constants, gradient=gradient, assumptions=told)
    probe = measure_noise(
        stepper.model,
        stepper.dataset,
        log_q=_proposal(stepper),
        max_length=config.model.max_length,
        windows=training.windows,
        last_only=training.targets == "last",
        generator=torch.Generator().manual_seed(training.seed),
        report=report,
    )
    found = MeasuredNoise.of(probe, stepper.steps)
    if objective.specification.law == "guide":
        found.assumptions["objective"] = (
            f"the law is of the sampled softmax; for {objective.objective} it is a guide"
        )
    sampler = objective.sampler_specification
    if sampler is not None and sampler.whole_batch:
        found.assumptions["sampler"] = (
            f"the law takes what {sampler.name} finds in a batch for independent draws from how often "
            "items are targets"
        )
    return found


def _proposal(stepper: Stepper) -> Tensor | None:
    """Return log q of every item as the sampler draws; None where that is uniform."""
    specification = stepper.config.objective.sampler_specification
    if specification is None or stepper.sampler is None:
        return None
    log_q = specification.proposal(stepper.sampler)
    return None if log_q is None else log_q.cpu()
