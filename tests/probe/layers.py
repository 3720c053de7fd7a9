"""Last layers with known populations of sequences, small enough to look at every pair."""

from dataclasses import dataclass

import numpy as np
import torch

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.leading import measure_leading
from budgetrec.probe.products import sum_products
from budgetrec.probe.sample import TargetSample
from budgetrec.theory.constants import OutputLayer


@dataclass(frozen=True)
class Layer:
    """States (N, d), their targets and sequences, all items' vectors (K, d), and log q (None: uniform)."""

    states: np.ndarray
    targets: np.ndarray
    sequences: np.ndarray
    table: np.ndarray
    log_q: np.ndarray | None = None

    def sample(self, *, positions=None, generator=None, num_groups=16):
        """Return the sample of all targets, or of `positions` of each sequence."""
        lengths = np.bincount(self.sequences)
        rows = np.arange(len(self.targets))
        if positions is not None:
            shuffled = rows[np.lexsort((generator.random(len(rows)), self.sequences))]
            rank = np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[self.sequences]
            rows = shuffled[rank < positions]
        return TargetSample.of(
            torch.from_numpy(self.states[rows]),
            torch.from_numpy(self.targets[rows]),
            self.sequences[rows],
            lengths,
            num_groups=num_groups,
        )

    def catalogue(self, sample, *, max_classes=10**6, seed=0):
        """Return the classes a probe looks at."""
        return Catalogue.of(
            torch.from_numpy(self.table),
            None if self.log_q is None else torch.from_numpy(self.log_q),
            sample,
            max_classes=max_classes,
            generator=torch.Generator().manual_seed(seed),
        )

    def leading(self, *, positions=None, generator=None, max_classes=10**6, seed=0):
        """Measure the leading constants alone."""
        sample = self.sample(positions=positions, generator=generator)
        catalogue = self.catalogue(sample, max_classes=max_classes, seed=seed)
        return measure_leading(sum_products(sample, catalogue), catalogue)

    def for_theory(self):
        """Return the same as theory takes it."""
        num_items = len(self.table)
        log_q = np.full(num_items, -np.log(num_items)) if self.log_q is None else self.log_q
        return OutputLayer.of(
            features=self.states,
            table=self.table,
            targets=self.targets,
            log_q=log_q,
            sequences=self.sequences,
        )


def make_layer(
    lengths, *, num_items=300, dim=8, spread=1.2, mean=1.5, skewed=False, seed=0, table_seed=0, drift=0.0
):
    """Draw states that sequences share half of, and targets from their softmax; then `drift` moves states."""
    generator = np.random.default_rng(seed)
    fixed = np.random.default_rng(1000 + table_seed)
    table = fixed.standard_normal((num_items, dim)) * spread / dim**0.5
    log_q = np.log(fixed.dirichlet(np.full(num_items, 3.0))) if skewed else None
    lengths = np.asarray(lengths)
    sequences = np.repeat(np.arange(len(lengths)), lengths)
    common = generator.standard_normal((len(lengths), dim))[sequences]
    states = (common + generator.standard_normal((len(sequences), dim))) / np.sqrt(2)
    states[:, 0] += mean
    logits = states @ table.T
    cumulative = np.exp(logits - logits.max(1, keepdims=True)).cumsum(1)
    level = generator.random(len(states)) * cumulative[:, -1]
    targets = (cumulative < level[:, None]).sum(1)
    states[:, 1] += drift
    return Layer(states.astype(np.float32), targets, sequences, table.astype(np.float32), log_q)
