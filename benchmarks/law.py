"""The noise law against an independent simulation.

    .venv/bin/python benchmarks/law.py --record benchmarks/results/law.md

Nothing here but the prediction comes from budgetrec: worlds, draws, corrected softmax and gradients are
written from the formulas alone. Each world is a population of sequences with states, targets and a table of
items. A step takes n random sequences of it, draws negatives for the batch, for each sequence or for each
target, and its gradient of the table, the mean of (p'' - y) x^T over its targets, is compared with that of
the whole population under the full softmax. The law predicts the mean squared error from the constants that
the probe measures on the population. About ten minutes on one core.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from budgetrec.probe.measure import NoiseProbe, measure_layer
from budgetrec.probe.sample import TargetSample
from budgetrec.theory.noise import predict_noise

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_SIZES = (8, 16, 64)
NEGATIVES = (32, 128)
SHARINGS = ("batch", "sequence", "target")
WORLDS: dict[str, dict[str, Any]] = {
    "equal lengths": {"spread": 1.0, "ragged": False},
    "ragged": {"spread": 1.0, "ragged": True},
    "ragged, skewed, drawn by popularity": {"spread": 1.5, "ragged": True, "mean": 2.0, "popular": True},
    "ragged, concentrated": {"spread": 3.0, "ragged": True},
    "ragged, confidence differs": {"spread": 2.0, "ragged": True, "uneven_spread": 0.4},
}
POPULATION = {"num_sequences": 1500, "num_items": 2000, "dim": 16}


@dataclass(frozen=True)
class World:
    """A population of sequences: states (N, d), targets (N,), where each sequence begins, and the table."""

    states: Floats
    targets: Ints
    begins: Ints  # (S + 1,)
    table: Floats
    q: Floats  # (K,)

    @property
    def lengths(self) -> Ints:
        """The number of targets of each sequence."""
        return np.diff(self.begins)

    def softmax(self, rows: Ints) -> Floats:
        """Return the softmax of some states over all items."""
        logits = self.states[rows] @ self.table.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        normal: Floats = p / p.sum(1, keepdims=True)
        return normal

    def gradient(self) -> Floats:
        """Return the gradient of the mean loss of all targets, (K, d)."""
        total = np.zeros_like(self.table)
        for rows in np.array_split(np.arange(len(self.targets)), max(1, len(self.targets) // 512)):
            error = self.softmax(rows)
            error[np.arange(len(rows)), self.targets[rows]] -= 1
            total += error.T @ self.states[rows]
        return total / len(self.targets)


def make_world(
    *,
    num_sequences: int,
    num_items: int,
    dim: int,
    spread: float,
    ragged: bool,
    mean_length: int = 10,
    mean: float = 1.0,
    drift: float = 0.3,
    uneven_spread: float = 0.0,
    popular: bool = False,
    seed: int = 0,
) -> World:
    """Draw a world.

    Logits have a standard deviation of about `spread`; states share half of their variance within a sequence
    and have a common `mean`, so that some items are popular; `drift` moves the states after targets were
    drawn, so that the model is not yet the truth; `uneven_spread` makes the confidence of sequences differ.
    Lengths are `mean_length`, or geometric. Negatives are uniform, or by a power of popularity.
    """
    generator = np.random.default_rng(seed)
    table = generator.standard_normal((num_items, dim)) * spread / dim**0.5
    lengths = np.full(num_sequences, mean_length)
    if ragged:
        lengths = np.minimum(generator.geometric(1 / mean_length, num_sequences), 6 * mean_length)
    owner = np.repeat(np.arange(num_sequences), lengths)
    states = generator.standard_normal((num_sequences, dim))[owner]
    states = (states + generator.standard_normal((len(owner), dim))) / np.sqrt(2)
    states *= np.exp(uneven_spread * generator.standard_normal(num_sequences))[owner, None]
    states[:, 0] += mean
    targets = np.empty(len(owner), np.int64)
    for rows in np.array_split(np.arange(len(owner)), max(1, len(owner) // 512)):
        logits = states[rows] @ table.T
        targets[rows] = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    states[:, 1] += drift
    q = np.full(num_items, 1 / num_items)
    if popular:
        counts = np.bincount(targets, minlength=num_items) + 1.0
        q = counts**0.75 / (counts**0.75).sum()
    begins = np.concatenate([[0], lengths.cumsum()])
    return World(states, targets, begins, table, q)


def draw_step(
    world: World, sequences: Ints, sharing: str, num_negatives: int, generator: np.random.Generator
) -> Floats:
    """Return the gradient (K, d) of one step; its negatives are drawn from q, and hits are masked."""
    rows = np.concatenate([np.arange(world.begins[s], world.begins[s + 1]) for s in sequences])
    owner = np.repeat(np.arange(len(sequences)), world.lengths[sequences])
    group = {"batch": 0 * owner, "sequence": owner, "target": np.arange(len(rows))}[sharing]
    cumulative = world.q.cumsum()
    level = generator.random((group.max() + 1, num_negatives)) * cumulative[-1]
    drawn = np.searchsorted(cumulative, level, side="right")  # (G, k)
    x, y = world.states[rows], world.targets[rows]
    every = np.arange(len(rows))
    logits = x @ world.table.T
    if sharing == "batch":  # the classes are the same for all
        ids, times = np.unique(drawn[0], return_counts=True)
        scores = logits[:, ids] + np.log(times / (num_negatives * world.q[ids]))
        ids = np.broadcast_to(ids, scores.shape)
    else:
        ids = drawn[group]
        scores = np.take_along_axis(logits, ids, 1) - np.log(num_negatives * world.q[ids])
    scores = np.where(ids == y[:, None], -np.inf, scores)
    scores = np.concatenate([logits[every, y][:, None], scores], 1)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    error = np.zeros_like(logits)
    np.add.at(error, (every[:, None], ids), weights[:, 1:])
    error[every, y] = weights[:, 0] - 1
    gradient: Floats = error.T @ x / len(rows)
    return gradient


def measure(
    world: World,
    truth: Floats,
    *,
    batch_size: int,
    sharing: str,
    num_negatives: int,
    repeats: int,
    seed: int,
) -> tuple[float, float]:
    """Return the mean squared error of steps, and its standard error."""
    generator = np.random.default_rng(seed)
    errors = np.empty(repeats)
    for place in range(repeats):
        sequences = generator.integers(0, len(world.lengths), batch_size)
        step = draw_step(world, sequences, sharing, num_negatives, generator)
        errors[place] = np.square(step - truth).sum()
    return float(errors.mean()), float(errors.std(ddof=1) / np.sqrt(repeats))


def probe(world: World) -> NoiseProbe:
    """Measure the law's constants on the whole population, so that none of its errors is of sampling."""
    owner = np.repeat(np.arange(len(world.lengths)), world.lengths)
    states, targets = torch.from_numpy(world.states), torch.from_numpy(world.targets)
    return measure_layer(
        TargetSample.of(states, targets, owner, world.lengths),
        torch.from_numpy(world.table).float(),
        log_q=torch.from_numpy(world.q).log(),
        generator=torch.Generator().manual_seed(0),
    )


def predict(found: NoiseProbe, *, batch_size: int, sharing: str, num_negatives: int) -> float:
    """Return the law's noise of a step."""
    num_targets = batch_size * found.mean_targets.value
    groups = {"batch": 1.0, "sequence": float(batch_size), "target": num_targets}
    return float(
        predict_noise(
            found.constants,
            batch_size=batch_size,
            num_targets=num_targets,
            num_negatives=num_negatives,
            num_groups=groups[sharing],
        ).total
    )


def rows_of(name: str, repeats: int) -> list[str]:
    """Return the lines of one world's table."""
    world = make_world(**POPULATION, **WORLDS[name])
    truth, found = world.gradient(), probe(world)
    lines, worst = [], 0.0
    for sharing in SHARINGS:
        for batch_size in BATCH_SIZES:
            cells = []
            for k in NEGATIVES:
                point = {"batch_size": batch_size, "sharing": sharing, "num_negatives": k}
                measured, error = measure(world, truth, repeats=repeats, seed=batch_size + k, **point)
                law = predict(found, **point)
                worst = max(worst, abs(law / measured - 1))
                cells.append(
                    f"{measured:.4g} ± {error / measured:.1%} | {law:.4g} | {law / measured - 1:+.1%}"
                )
            lines.append(f"| {sharing} | {batch_size} | {' | '.join(cells)} |")
    head = " | ".join(f"k = {k} | law | off" for k in NEGATIVES)
    return [
        f"## {name.capitalize()}",
        "",
        f"rho has a mean of {found.rho.value:.3g} and a median of {found.rho_median:.3g}; a sequence has "
        f"{found.mean_targets.value:.3g} targets. The law is off by {worst:.1%} at most.",
        "",
        f"| negatives of a | n | {head} |",
        "|---|---|" + "---|" * (3 * len(NEGATIVES)),
        *lines,
        "",
    ]


def main() -> None:
    """Measure every world, and print or record the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", type=Path, help="a file for the tables")
    parser.add_argument("--repeats", type=int, default=250, help="steps for each cell")
    options = parser.parse_args()
    from machine import describe_machine  # here, so that a test can load the rest of this file

    size = POPULATION
    lines = [
        "# The noise law against an independent simulation",
        "",
        f"`make bench-law`: the mean squared error of a step's gradient of the table over {options.repeats} "
        f"steps, with its standard error, and the law. {size['num_sequences']:,} sequences with 10 targets "
        f"each or a geometric number of them, {size['num_items']:,} items, width {size['dim']}.",
        "",
        describe_machine(),
        "",
    ]
    for name in WORLDS:
        lines += rows_of(name, options.repeats)
        sys.stderr.write(f"{name}: done\n")
    text = "\n".join(lines)
    if options.record:
        options.record.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
