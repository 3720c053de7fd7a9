r"""Example noise and the true gradient from more targets than class noise can afford.

Both need the full softmax of every target, and no products of two softmaxes but within a sequence: about half
of the work that the class noise takes for a target, and none of the draws. $\|\nabla F\|^2$ near 0 is the
product of two means whose noise is far above it, so it is what needs the most targets.
"""

from dataclasses import dataclass

import numpy as np
import torch

from budgetrec.probe.catalogue import Catalogue
from budgetrec.probe.leading import Estimate, GroupSums, estimate_all
from budgetrec.probe.sample import TargetSample, sum_by

_WORK = 2**33  # targets x classes x width: about two seconds of one core
_TIMES = 8  # as many targets as for class noise


@dataclass(frozen=True, kw_only=True)
class ExampleNoise:
    r"""What the larger sample says: $E\|V_s\|^2 / \bar T^2$, $E\|v_t\|^2$, $\|\nabla F\|^2$ and $\bar T$."""

    estimates: dict[str, Estimate]
    num_targets: int


def num_example_targets(num_targets: int, num_items: int, dim: int) -> int:
    """Return how many targets the time allows, or 0 if no more than `num_targets`.

    >>> num_example_targets(2048, 25_000, 64), num_example_targets(2048, 1_000_000, 64)
    (5368, 0)
    """
    most = min(_TIMES * num_targets, _WORK // (num_items * dim))
    return most if most > num_targets else 0


@torch.inference_mode()
def measure_example(sample: TargetSample, catalogue: Catalogue) -> ExampleNoise:
    """Pass over the catalogue twice: for the partition functions, and for all gradients."""
    states, columns = sample.states, catalogue.columns
    device, groups = states.device, sample.num_groups
    log_z = catalogue.log_partitions(states).logsumexp(0).float()[:, None]
    weighted = states * torch.from_numpy(sample.weights).float().to(device)[:, None]
    products = torch.zeros(groups, groups, dtype=torch.float64, device=device)
    slabs = [(slab, torch.from_numpy(slab.rows).to(device)) for slab in sample.slabs()]
    overlaps = [torch.zeros(*slab.rows.shape, slab.size, device=device) for slab, _ in slabs]
    for block in catalogue.blocks(len(states)):
        error = torch.mm(states, block.vectors.T).sub_(log_z).exp_()
        here = torch.nonzero((columns >= block.start) & (columns < block.stop))[:, 0]
        error[here, columns[here] - block.start] -= 1
        sums = torch.stack([torch.mm(error[rows].T, weighted[rows]) for rows in sample.group_rows()])
        products += (sums.flatten(1) @ sums.flatten(1).T).double()
        for (_, rows), overlap in zip(slabs, overlaps, strict=True):
            of_sequences = error[rows]
            overlap += torch.bmm(of_sequences, of_sequences.transpose(1, 2))
    own = {name: np.zeros(groups) for name in ("example_sequence", "example_target")}
    inside = np.zeros(groups)
    for (slab, rows), overlap in zip(slabs, overlaps, strict=True):
        found = (overlap * torch.bmm(states[rows], states[rows].transpose(1, 2))).double().cpu().numpy()
        whole, alone = found.sum((1, 2)), np.einsum("sii->s", found)
        weight, pair_weight = sample.lengths[slab.sequences] / slab.size, sample.pair_weights[slab.sequences]
        group = sample.groups[slab.sequences]
        own["example_target"] += sum_by(group, weight * alone, groups)
        own["example_sequence"] += sum_by(group, weight * alone + pair_weight * (whole - alone), groups)
        inside += sum_by(group, weight**2 * whole, groups)
    lengths = sample.lengths.astype(np.float64)
    own["sequences"] = sum_by(sample.groups, None, groups)
    own["targets"] = sum_by(sample.groups, lengths, groups)
    between = {
        "gradient": products.cpu().numpy() - np.diag(inside),
        "pairs": np.outer(own["targets"], own["targets"])
        - np.diag(sum_by(sample.groups, lengths**2, groups)),
    }
    estimates = estimate_all(GroupSums(own, between), _constants)
    return ExampleNoise(estimates=estimates, num_targets=len(sample.targets))


def _constants(sums: GroupSums) -> dict[str, float]:
    own = {name: float(values.sum()) for name, values in sums.own.items()}
    mean = own["targets"] / own["sequences"]
    gradient = float(sums.between["gradient"].sum() / sums.between["pairs"].sum())
    return {
        "squares": own["example_sequence"] / own["sequences"] / mean**2,
        "example_target": own["example_target"] / own["targets"] - gradient,
        "gradient": gradient,
        "mean_targets": mean,
    }
