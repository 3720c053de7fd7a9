"""The noise law against an independent simulation.

    .venv/bin/python benchmarks/law.py --record benchmarks/results/law.md

Nothing here but the prediction comes from budgetrec: worlds, draws, corrected softmax and gradients are
written from the formulas alone. Each world is a population of sequences with states, targets and a table of
items. A step takes n random sequences of it, draws negatives for the batch, for each sequence or for each
target, and its gradient of the table, the mean of (p'' - y) x^T over its targets, is compared with that of
the whole population under the full softmax. The law predicts the mean squared error from the constants that
the probe measures on the population. About ten minutes on one core.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_SIZES = (8, 16, 64)
NEGATIVES = (32, 128, 512)
SHARINGS = ("batch", "sequence", "target")


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
    Lengths are 10, or geometric with mean 10. Negatives are uniform, or by a power of popularity.
    """
    generator = np.random.default_rng(seed)
    table = generator.standard_normal((num_items, dim)) * spread / dim**0.5
    lengths = np.full(num_sequences, 10)
    if ragged:
        lengths = np.minimum(1 + generator.geometric(0.1, num_sequences), 60)
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
