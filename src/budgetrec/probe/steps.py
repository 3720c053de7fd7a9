r"""The whole noise of one allocation, measured by taking steps on the probe's own sample.

A step draws $n$ sequences of the sample and negatives as training would. Its gradient of the table is $g =
\frac1T \sum_t w_t (p''_t - y_t) x_t^\top$, which is nothing but the rows of drawn classes and positives: no
pass over the catalogue is needed. Of long sequences the probe keeps a few targets, each of which stands for
$w_t = T_s / m_s$. The squared norm of $g$ counts pairs of those of one sequence too often, so it is taken
apart: the squared norms of each sequence and of each target enter with the weights that pairs and targets
have in a whole sequence, the rest as it is.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.objectives.specification import SHARINGS
from budgetrec.probe.sample import TargetSample
from budgetrec.samplers.alias import AliasTable
from budgetrec.theory.noise import NoiseConstants, predict_noise

_STEP_NUMBERS = 2**22  # of the vectors and logits of one step
_ALL_NUMBERS = 2**26  # of all steps: about half a second
_FEWEST_STEPS, _MOST_STEPS = 16, 200
_NUM_COMPOSITIONS = 2**18  # sequences, of steps whose example noise is only added up


@dataclass(frozen=True, kw_only=True)
class ProbedLayer:
    """What a probe looked at, targets, table (K, d) and log q (None: uniform), and what it found."""

    sample: TargetSample
    table: Tensor
    log_q: Tensor | None
    constants: NoiseConstants
    example: Tensor  # (S,), ||p - y||^2 ||x||^2 of all targets of a sequence
    example_pairs: Tensor  # (S,), <p - y, p' - y'> x . x' of all pairs of them
    gradient: float
    mean_targets: float


@dataclass(frozen=True, kw_only=True)
class AllocationCheck:
    """The noise of a step as drawn, with its standard error, and by the law.

    `drawn_batch_size` is less than the batch size where the sample is small: what every sequence adds was
    then scaled.
    """

    batch_size: int
    num_negatives: int
    sharing: str
    drawn_batch_size: int
    num_steps: int
    measured: float
    standard_error: float
    law: float

    @property
    def relative_error(self) -> float:
        """How far the law is above the measurement, relative to it."""
        return self.law / self.measured - 1 if self.measured else math.inf

    @property
    def relative_standard_error(self) -> float:
        """The standard error of `relative_error`."""
        return self.law * self.standard_error / self.measured**2 if self.measured else math.inf


@torch.inference_mode()
def check_allocation(
    layer: ProbedLayer, *, batch_size: int, num_negatives: int, sharing: str, generator: torch.Generator
) -> AllocationCheck:
    """Take steps of `batch_size` sequences on the sample of a probe, and compare their noise with the law.

    The table must be as it was when it was probed. All randomness comes from `generator`, on the CPU.
    """
    if sharing not in SHARINGS:
        raise ArgumentError(f"sharing is {sharing!r}; pass one of {', '.join(map(repr, SHARINGS))}.")
    if batch_size < 1 or num_negatives < 1:
        raise ArgumentError(
            f"batch_size is {batch_size} and num_negatives {num_negatives}; pass at least 1 of each."
        )
    steps = _Steps(layer, num_negatives, sharing)
    n = steps.most_sequences(batch_size)
    count = int(np.clip(_ALL_NUMBERS // (steps.numbers_of_sequence * n), _FEWEST_STEPS, _MOST_STEPS))
    own, across = np.array([steps.draw(n, generator) for _ in range(count)]).T
    own += steps.example_noise(n, generator)
    targets = batch_size * layer.mean_targets
    law = predict_noise(
        layer.constants,
        batch_size=batch_size,
        num_targets=targets,
        num_negatives=num_negatives,
        num_groups={"batch": 1.0, "sequence": float(batch_size), "target": targets}[sharing],
    )
    ragged = layer.constants.raggedness
    of_one, of_one_drawn = (float(ragged.at("pairs", each)) / each for each in (batch_size, n))
    per_sequence = n / batch_size * ragged.at("example", batch_size) / ragged.at("example", n)
    noise = own * per_sequence - of_one * layer.gradient
    if sharing != "batch":  # without shared draws there is only bias between sequences, too small to be seen
        noise = noise + law.bias
    elif n > 1:
        noise = noise + (across / (1 - of_one_drawn) - layer.gradient) * (1 - of_one)
    return AllocationCheck(
        batch_size=batch_size,
        num_negatives=num_negatives,
        sharing=sharing,
        drawn_batch_size=n,
        num_steps=count,
        measured=float(noise.mean()),
        standard_error=float(noise.std(ddof=1) / math.sqrt(count)),
        law=float(law.total),
    )


class _Steps:
    """Takes steps with negatives drawn as an allocation says."""

    def __init__(self, layer: ProbedLayer, num_negatives: int, sharing: str) -> None:
        sample, self._table = layer.sample, layer.table
        self._k, self._sharing = num_negatives, sharing
        device = sample.states.device
        self._num_items = len(layer.table)
        self._log_q = None if layer.log_q is None else layer.log_q.to(device).float()
        self._alias = None if layer.log_q is None else AliasTable(layer.log_q.double().exp().cpu().numpy())
        firsts = np.cumsum(sample.sizes) - sample.sizes
        self._width = int(sample.sizes.max())
        places = np.arange(self._width)
        self._real = torch.from_numpy(places < sample.sizes[:, None]).to(device)  # (S, m)
        at = torch.from_numpy(np.minimum(firsts[:, None] + places, len(sample.sequences) - 1)).to(device)
        self._states = sample.states[at] * self._real[..., None]
        self._targets = sample.targets[at]
        self._lengths = torch.from_numpy(sample.lengths).double().to(device)
        self._sizes = torch.from_numpy(sample.sizes).double().to(device)
        self._pair_weights = torch.from_numpy(sample.pair_weights).to(device)
        self._example_pairs = layer.example_pairs.to(device)
        self._example = layer.example.to(device) + self._example_pairs
        sets = self._width if sharing == "target" else 1
        rows = sets * num_negatives + self._width
        self.numbers_of_sequence = rows * sample.states.shape[1] + self._width * num_negatives

    def most_sequences(self, batch_size: int) -> int:
        """Return how many sequences a step can have, at most `batch_size` and half of the sample."""
        most = min(len(self._lengths) // 2, _STEP_NUMBERS // self.numbers_of_sequence)
        return min(batch_size, max(2, most))

    def draw(self, num_sequences: int, generator: torch.Generator) -> tuple[float, float]:
        """Take one step; return the squared norms of its sequences, and the products of two of them.

        The former are without their example noise, which `example_noise` knows better; the latter are those
        of a set that the batch shares, as other sequences share nothing but the gradient.
        """
        order = torch.randperm(len(self._lengths), generator=generator, device=generator.device)
        chosen = order[:num_sequences].to(self._lengths.device)
        x, y, real = self._states[chosen], self._targets[chosen], self._real[chosen]
        weight = self._lengths[chosen] / self._sizes[chosen]
        ids, log_times = self._negatives(x.shape[:2], generator)  # (G, k), with how often each was drawn
        vectors = self._table[ids].float()
        if self._sharing == "target":
            vectors, ids, log_times = (
                each.view(*x.shape[:2], *each.shape[1:]) for each in (vectors, ids, log_times)
            )
            logits = (vectors @ x[..., None]).squeeze(-1)
        else:  # one set for every sequence, or for each
            ids, log_times = (each[:, None].expand(len(x), x.shape[1], -1) for each in (ids, log_times))
            logits = x @ vectors.transpose(1, 2)
        logits = (logits + log_times).masked_fill_(ids == y[..., None], -math.inf)
        own = (x * self._table[y].float()).sum(-1, keepdim=True)
        p = torch.cat([logits, own], 2).softmax(2) * real[..., None]  # (n, m, k + 1)
        drawn, miss = p[..., :-1], p[..., -1] - real.float()  # the error at the classes drawn, and at the own
        squares = (x * x).sum(-1) * ((drawn * drawn).sum(-1) + miss * miss)
        alone = weight * squares.sum(1).double()
        total = self._lengths[chosen].sum() ** 2
        if self._sharing == "target":  # two targets share no negatives: only their example noise
            return float((alone + self._example_pairs[chosen] - self._example[chosen]).sum() / total), 0.0
        rows = self._rows(x, y, ids[:, 0], drawn, miss)
        norms = rows.square().sum((1, 2)).double()
        inside = self._pair_weights[chosen] * (norms - alone / weight) + alone - self._example[chosen]
        across = 0.0
        if self._sharing == "batch":
            rows *= weight[:, None, None].float()
            positives, places = torch.unique(y.flatten(), return_inverse=True)
            missed = rows[:, self._k :].flatten(0, 1)
            at_own = missed.new_zeros(len(positives), missed.shape[1]).index_add_(0, places.flatten(), missed)
            whole = rows[:, : self._k].sum(0).square().sum() + at_own.square().sum()
            across = float((whole.double() - (weight * weight * norms).sum()) / total)
        return float(inside.sum() / total), across

    def example_noise(self, num_sequences: int, generator: torch.Generator) -> float:
        """Return the mean over many steps of what their sequences add with the full softmax."""
        shape = (max(1, _NUM_COMPOSITIONS // num_sequences), num_sequences)
        chosen = torch.randint(len(self._lengths), shape, generator=generator, device=generator.device)
        chosen = chosen.to(self._lengths.device)
        return float((self._example[chosen].sum(1) / self._lengths[chosen].sum(1).square()).mean())

    def _rows(self, x: Tensor, y: Tensor, ids: Tensor, drawn: Tensor, miss: Tensor) -> Tensor:
        """Return the rows of each sequence's gradient, at drawn classes and at other positives (n, k + m, d).

        Two targets with the same positive share a row, as does a positive that was drawn for another target.
        """
        place = torch.searchsorted(ids.contiguous(), y).clamp_(max=self._k - 1)
        first = (y[:, :, None] == y[:, None, :]).int().argmax(2)
        place = torch.where(ids.gather(1, place) == y, place, self._k + first)
        rows = torch.cat([drawn.transpose(1, 2) @ x, torch.zeros_like(x)], 1)
        return rows.scatter_add_(1, place[..., None].expand_as(x), miss[..., None] * x)

    def _negatives(self, shape: torch.Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw (G, k) classes; the first of equal ones has the log of their number over k q, others -inf."""
        groups = {"batch": 1, "sequence": shape[0], "target": shape[0] * shape[1]}[self._sharing]
        if self._alias is None:
            device = generator.device
            ids = torch.randint(self._num_items, (groups, self._k), generator=generator, device=device)
        else:
            ids = self._alias.draw((groups, self._k), generator)
        ids = ids.to(self._table.device).sort(1).values
        first = torch.searchsorted(ids, ids)
        times = torch.searchsorted(ids, ids, right=True) - first
        log_times = times.float().log() - math.log(self._k)
        log_q = -math.log(self._num_items) if self._log_q is None else self._log_q[ids]
        repeated = first != torch.arange(self._k, device=ids.device)
        return ids, (log_times - log_q).masked_fill_(repeated, -math.inf)
