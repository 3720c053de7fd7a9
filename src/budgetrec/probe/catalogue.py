"""The catalogue as a probe sees it: all classes, or a uniform sample of them, a block at a time.

Of more than `max_classes` items, the classes of the targets are taken all, and a quarter of `max_classes`
are those that a few of the targets find heaviest: a few classes carry much of the noise, and a sample would
mostly miss them. Of the others a uniform sample is taken, and each stands for as many as were left out, so
that every sum over the catalogue stays unbiased. The sample is cut into folds, and leaving out one after the
other tells what the sampling costs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.probe.sample import TargetSample
from budgetrec.samplers.contract import check_log_q
from budgetrec.samplers.uniform import distinct_targets, draw_distinct, step_over

NUM_FOLDS = 8  # of sampled classes, left out in turn
_NUM_PILOTS = 64  # targets that say which classes are heavy
_HEAVY_SHARE = 0.25  # of the classes looked at
_BLOCK_BYTES = 8 * 2**20  # of one block of probabilities: what stays in the cache is twice as fast


@dataclass(frozen=True, kw_only=True)
class Block:
    """Classes that follow each other: their vectors, 1/q, and for how many each of them stands."""

    start: int
    fold: int
    vectors: Tensor  # (width, d), float32
    inverse_q: Tensor | None  # (width,), None when q is uniform
    weight: float

    @property
    def stop(self) -> int:
        """Where the next block starts."""
        return self.start + len(self.vectors)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The classes a probe looks at.

    `columns` (N,) is the place of each target's class among them. With `ids`, the first `num_certain` stand
    for themselves and the others for `weight` classes each; without, all stand for themselves.
    """

    table: Tensor  # (K, d)
    log_q: Tensor | None  # (K,), None when uniform
    columns: Tensor
    ids: Tensor | None
    num_certain: int
    weight: float

    @classmethod
    def of(
        cls,
        table: Tensor,
        log_q: Tensor | None,
        sample: TargetSample,
        *,
        max_classes: int,
        generator: torch.Generator,
    ) -> "Catalogue":
        """Choose the classes to look at: all, or `max_classes` of them."""
        num_items, targets = len(table), sample.targets
        if log_q is not None:
            log_q = check_log_q(log_q, num_items).to(table.device, torch.float64)
        every = cls(table=table, log_q=log_q, columns=targets, ids=None, num_certain=0, weight=1.0)
        if num_items <= max_classes:
            return every
        pilot = torch.from_numpy(sample.spread(_NUM_PILOTS)).to(table.device)
        heavy = every._heaviest(sample.states[pilot], int(max_classes * _HEAVY_SHARE))
        distinct, counts = distinct_targets(torch.cat([targets, heavy])[None], num_items, None)
        num_certain = int(counts)
        others = max_classes - num_certain
        if others < NUM_FOLDS * NUM_FOLDS:
            raise ArgumentError(
                f"max_classes is {max_classes}, of which targets and heavy classes take {num_certain}; "
                f"pass at least {2 * (num_certain + NUM_FOLDS * NUM_FOLDS)}."
            )
        size = torch.tensor([num_items - num_certain], device=generator.device)
        ranks = draw_distinct(1, others, size, generator).to(table.device)
        certain = distinct[0, :num_certain]
        ids = torch.cat([certain, step_over(distinct, ranks)[0]])
        weight = (num_items - num_certain) / others
        if log_q is not None:  # what is looked at must be a proposal too
            drawn = log_q[ids].exp()
            total = drawn[:num_certain].sum() + weight * drawn[num_certain:].sum()
            log_q = log_q - total.log()
        return cls(
            table=table,
            log_q=log_q,
            columns=torch.searchsorted(certain, targets),
            ids=ids,
            num_certain=num_certain,
            weight=weight,
        )

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return len(self.table)

    @property
    def num_classes(self) -> int:
        """How many of them are looked at."""
        return len(self.table) if self.ids is None else len(self.ids)

    @property
    def num_folds(self) -> int:
        """How many parts sums are kept by: one, or the certain classes and the folds of the others."""
        return 1 if self.ids is None else 1 + NUM_FOLDS

    @cached_property
    def q(self) -> NDArray[np.float64]:
        """The proposal of each class looked at, (classes,)."""
        if self.log_q is None:
            return np.full(self.num_classes, 1 / self.num_items)
        chosen = self.log_q if self.ids is None else self.log_q[self.ids]
        values: NDArray[np.float64] = chosen.exp().cpu().numpy()
        return values

    @cached_property
    def class_weights(self) -> NDArray[np.float64] | None:
        """How many classes each class looked at stands for, (classes,), None when that is one each."""
        if self.ids is None:
            return None
        weights = np.full(self.num_classes, self.weight)
        weights[: self.num_certain] = 1.0
        return weights

    @cached_property
    def vectors(self) -> Tensor:
        """The vectors of the classes looked at, (classes, d): the table, or a copy of the rows, made once."""
        return self.table if self.ids is None else self.table[self.ids]

    def blocks(self, num_rows: int) -> Iterator[Block]:
        """Return the classes in blocks, so that (num_rows, width) probabilities have a bounded size."""
        most = max(64, _BLOCK_BYTES // (4 * num_rows))
        bounds = [0, self.num_classes]
        if self.ids is not None:
            others = self.num_classes - self.num_certain
            bounds = [0, *(self.num_certain + others * fold // NUM_FOLDS for fold in range(NUM_FOLDS + 1))]
        for fold, (begin, end) in enumerate(pairwise(bounds)):
            weight = self.weight if fold else 1.0
            for start in range(begin, end, most):
                chosen = slice(start, min(start + most, end))
                inverse_q = None
                if self.log_q is not None:
                    inverse_q = torch.from_numpy(1 / self.q[chosen]).float().to(self.table.device)
                yield Block(
                    start=start,
                    fold=fold,
                    vectors=self.vectors[chosen].float(),
                    inverse_q=inverse_q,
                    weight=weight,
                )

    def log_partitions(self, states: Tensor) -> Tensor:
        """Return log sum_j e^(x . w_j) of each state over each fold, (folds, N) in double precision."""
        totals = torch.full(
            (self.num_folds, len(states)), -math.inf, dtype=torch.float64, device=states.device
        )
        for block in self.blocks(len(states)):
            logits = states @ block.vectors.T
            peak = logits.amax(1)
            part = logits.sub_(peak[:, None]).exp_().sum(1).double().log() + peak.double()
            totals[block.fold] = torch.logaddexp(totals[block.fold], part + math.log(block.weight))
        return totals

    def _heaviest(self, states: Tensor, count: int) -> Tensor:
        """Return the classes with the largest share in the class noise of some states."""
        log_z = self.log_partitions(states).logsumexp(0).float()[:, None]
        shares = torch.cat(
            [
                (torch.mm(states, block.vectors.T) - log_z).mul_(2).exp_().sum(0)
                * (1.0 if block.inverse_q is None else block.inverse_q)
                for block in self.blocks(len(states))
            ]
        )
        return shares.topk(count).indices

    def log_softmax(self, states: Tensor, log_z: Tensor) -> Tensor:
        """Return log p of a few states over all classes looked at, (n, classes); `log_z` is (n,)."""
        whole = states.new_empty(len(states), self.num_classes)
        shift = log_z.float()[:, None]
        for block in self.blocks(len(states)):
            torch.sub(states @ block.vectors.T, shift, out=whole[:, block.start : block.stop])
        return whole
