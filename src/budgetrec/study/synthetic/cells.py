"""One run of the synthetic study: a linear layer from zero, sampled softmax, exact validation loss."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from budgetrec.errors import NotFiniteError
from budgetrec.objectives.sampled_softmax import sampled_softmax
from budgetrec.optimizers import make_optimizers
from budgetrec.samplers import Uniform
from budgetrec.study.engine.grid import DIVERGED, Outcome
from budgetrec.study.synthetic.world import SyntheticWorld, WorldSettings, measure_world, open_world
from budgetrec.theory.convergence import steps_to_gain
from budgetrec.theory.noise import predict_noise

SHARED, PER_TARGET = "shared", "per target"
PLACES = {"start": 0.0, "halfway": 0.5, "truth": 1.0}  # shares of the world's own table


def train_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Train with one (n, k), way of sharing, optimiser, correction and learning rate.

    `values` holds `steps`, which are those of `evaluations`, and the `val_loss` there, or `diverged`. Adam is
    torch's own and moves every row in every step; gradient descent moves the rows that a step touches, which
    comes to the same as moving all.
    """
    world = open_world(WorldSettings(**settings["world"]), folder)
    table = nn.Parameter(torch.zeros_like(world.table))
    sparse = settings["optimizer"] == "sgd"
    (optimizer,) = make_optimizers(
        [],
        [table],
        optimizer=settings["optimizer"],
        table_updates="row-sparse" if sparse else "dense",
        learning_rate=settings["learning_rate"],
    )
    sampler = Uniform(len(table), settings["num_negatives"])
    generator = torch.Generator().manual_seed(settings["seed"])
    at = settings["evaluations"]
    losses, seconds = [world.validation_loss(table.detach())], [0.0]
    spent = 0.0
    for step in range(1, at[-1] + 1):
        begin = time.perf_counter()
        features, targets = _batch(world, settings["batch_size"], settings["sharing"], generator)
        optimizer.zero_grad()
        try:
            sampled_softmax(
                features,
                targets,
                table,
                sampler.draw(targets, generator),
                correction=settings["correction"],
                sparse_grad=sparse,
            ).backward()  # type: ignore[no-untyped-call]
        except NotFiniteError:
            return Outcome(values={DIVERGED: step})
        optimizer.step()
        spent += time.perf_counter() - begin
        if step == at[len(losses)]:
            try:
                loss = world.validation_loss(table.detach())
            except NotFiniteError:
                return Outcome(values={DIVERGED: step})
            losses.append(loss)
            seconds.append(spent)
    return Outcome(values={"steps": at, "val_loss": losses}, measured={"seconds": seconds})


def _batch(
    world: SyntheticWorld, batch_size: int, sharing: str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw examples as (G, T/G, d) and (G, T/G): one group, or one for each."""
    rows = torch.randint(len(world.targets), (batch_size,), generator=generator)
    shape = (1, batch_size) if sharing == SHARED else (batch_size, 1)
    return world.features[rows].view(*shape, -1), world.targets[rows].view(shape)


def measure_cell(settings: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> Outcome:
    """Make the world, and give the loss of its own table and what theory says of each (n, k, sharing).

    `noise` is the law's, `steps` what the steps to a gain are in proportion to (T23). Both are evaluated at
    the start of training, where the table is zero, at half the world's own table, and at that table, where
    training would end with enough examples.
    """
    world = open_world(WorldSettings(**settings["world"]), folder)
    rows = []
    for place, share in PLACES.items():
        probe = measure_world(
            world, share * world.table, num_targets=settings["num_targets"], seed=settings["seed"]
        )
        for n, k in settings["pairs"]:
            for sharing in (SHARED, PER_TARGET):
                noise = predict_noise(
                    probe.constants,
                    batch_size=n,
                    num_negatives=k,
                    num_groups=1 if sharing == SHARED else n,
                )
                bias = probe.constants.bias(k)
                steps = steps_to_gain(
                    variance=np.maximum(noise.total - bias, 0.0), bias=bias, gradient=probe.gradient.value
                )
                rows.append(
                    {
                        "at": place,
                        "batch_size": n,
                        "num_negatives": k,
                        "sharing": sharing,
                        "noise": float(noise.total),
                        "steps": float(steps),
                    }
                )
    return Outcome(values={"oracle_loss": world.validation_loss(world.table), "theory": rows})
