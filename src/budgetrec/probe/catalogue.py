"""The classes that a probe uses: the whole catalogue or a sample of it, in blocks.

If there are more than `max_classes` items, all classes of the targets are kept, and the heaviest classes of a
few targets fill a quarter of `max_classes`: a few classes carry much of the noise, and a sample would mostly
miss them. The other classes are sampled uniformly and weighted by the inverse sampling rate, so that every
sum over the catalogue is unbiased. The sample is cut into folds, and leaving them out in turn measures the
sampling error.
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
_NUM_PILOTS = 64  # targets that decide which classes are heavy
_HEAVY_SHARE = 0.25  # of the classes used
_BLOCK_BYTES = 8 * 2**20  # of one block of probabilities: twice as fast while it fits the cache


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive classes: their vectors, 1/q, and the weight of each in sums over the catalogue."""

    start: int
    fold: int
    vectors: Tensor  # (width, d), float32
    inverse_q: Tensor | None  # (width,), None when q is uniform
    weight: float

    @property
    def stop(self) -> int:
        """The start of the next block."""
        return self.start + len(self.vectors)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The classes that a probe uses.

    `columns` (N,) is the position of each target's class among them. If `ids` is None, all classes are used.
    Otherwise the first `num_certain` have weight 1 and the others have `weight`.
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
        """Choose the classes to use: all, or `max_classes` of them."""
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
                f"max_classes is {max_classes}, and targets and heavy classes take {num_certain}; "
                f"pass at least {2 * (num_certain + NUM_FOLDS * NUM_FOLDS)}."
            )
        size = torch.tensor([num_items - num_certain], device=generator.device)
        ranks = draw_distinct(1, others, size, generator).to(table.device)
        certain = distinct[0, :num_certain]
        ids = torch.cat([certain, step_over(distinct, ranks)[0]])
        weight = (num_items - num_certain) / others
        if log_q is not None:  # the proposal must sum to 1 over the weighted sample too
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
        """The number of items."""
        return len(self.table)

    @property
    def num_classes(self) -> int:
        """The number of classes used."""
        return len(self.table) if self.ids is None else len(self.ids)

    @property
    def num_folds(self) -> int:
        """The number of parts of each sum: one, or the certain classes and the folds of the others."""
        return 1 if self.ids is None else 1 + NUM_FOLDS

    @cached_property
    def q(self) -> NDArray[np.float64]:
        """The proposal of each class used, (classes,)."""
        if self.log_q is None:
            return np.full(self.num_classes, 1 / self.num_items)
        chosen = self.log_q if self.ids is None else self.log_q[self.ids]
        values: NDArray[np.float64] = chosen.exp().cpu().numpy()
        return values

    @cached_property
    def class_weights(self) -> NDArray[np.float64] | None:
        """The weight of each class used, (classes,), or None if all are 1."""
        if self.ids is None:
            return None
        weights = np.full(self.num_classes, self.weight)
        weights[: self.num_certain] = 1.0
        return weights

    @cached_property
    def vectors(self) -> Tensor:
        """The vectors of the classes used, (classes, d): the table, or one copy of its rows."""
        return self.table if self.ids is None else self.table[self.ids]

    def blocks(self, num_rows: int) -> Iterator[Block]:
        """Yield the classes in blocks, which bound the size of (num_rows, width) probabilities."""
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
                vectors = self.vectors[chosen].float()
                yield Block(start=start, fold=fold, vectors=vectors, inverse_q=inverse_q, weight=weight)

    def log_partitions(self, states: Tensor) -> Tensor:
        """Return log sum_j e^(x . w_j) of each state over each fold, (folds, N) in double precision."""
        shape = (self.num_folds, len(states))
        totals = torch.full(shape, -math.inf, dtype=torch.float64, device=states.device)
        for block in self.blocks(len(states)):
            logits = states @ block.vectors.T
            peak = logits.amax(1)
            part = logits.sub_(peak[:, None]).exp_().sum(1).double().log() + peak.double()
            totals[block.fold] = torch.logaddexp(totals[block.fold], part + math.log(block.weight))
        return totals

    def _heaviest(self, states: Tensor, count: int) -> Tensor:
        """Return the classes with the largest contribution to the class noise of some states."""
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
        """Return log p of a few states over all classes used, (n, classes); `log_z` is (n,)."""
        whole = states.new_empty(len(states), self.num_classes)
        shift = log_z.float()[:, None]
        for block in self.blocks(len(states)):
            torch.sub(states @ block.vectors.T, shift, out=whole[:, block.start : block.stop])
        return whole
