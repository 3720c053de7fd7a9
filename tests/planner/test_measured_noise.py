"""The noise that a plan stands on: measured for what the sampler draws, or refused."""

import pytest
import torch

from budgetrec.planner.measured_noise import probe_noise
from budgetrec.probe import measure_noise
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.stepper import Stepper

SMALL = {
    "dim": 16,
    "max_length": 20,
    "num_heads": 1,
    "sharing": "batch",
    "batch_size": 16,
    "num_negatives": 32,
}


def test_a_sampler_without_one_proposal_is_not_planned_with(refused, dataset):
    """The kernel sampler was taken for uniform; now one sentence says why not and what to do, exit code 2."""
    said = refused("plan", dataset.folder, "--memory", "400MiB", "--sampler", "kernel")
    assert "the sampler kernel cannot be planned with: it draws differently for every state" in said
    assert "Pass another --sampler, or train with --batch-size and --num-negatives of your own." in said


@pytest.mark.parametrize("sampler", ["in-batch", "mixed"])
def test_noise_is_measured_for_what_is_drawn(dataset, sampler):
    """In-batch and mixed draws were probed as uniform; rho is now that of their own proposal to 2%."""
    config = RunConfig().replaced({**SMALL, "sampler": sampler})
    stepper = Stepper(dataset, config)
    found = probe_noise(stepper)
    assert f"takes what {sampler} finds in a batch for independent draws" in found.assumptions["sampler"]
    q = torch.from_numpy(count_of_targets(stepper))
    if sampler == "mixed":
        q = q / 2 + 0.5 / len(q)
    own = measure_noise(
        stepper.model,
        dataset,
        log_q=q.log(),
        max_length=config.model.max_length,
        generator=torch.Generator().manual_seed(config.training.seed),
    )
    assert float(found.constants.target_class(64)) == pytest.approx(
        float(own.constants.target_class(64)), rel=0.02
    )


def count_of_targets(stepper):
    """Return each item's share of all targets of an epoch."""
    targets = torch.cat([b.targets[b.mask] for b in stepper.batches.epoch(torch.Generator())])
    counts = torch.bincount(targets, minlength=stepper.dataset.num_items).double().clamp(min=1e-3)
    return (counts / counts.sum()).numpy()
