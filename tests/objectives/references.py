"""Every objective once more, slowly: loops written from the formula, which the fast paths are held to."""

import math

import torch
from torch import Tensor

from budgetrec.objectives.reduced import Rounds
from budgetrec.samplers import Negatives


def reduced_cross_entropy_reference(states: Tensor, wanted: Tensor, table: Tensor, rounds: Rounds) -> Tensor:
    """Cross-entropy over the set of items each state meets in any round; slow, for tests."""
    losses = []
    for row, own in enumerate(wanted.tolist()):
        near = (rounds.of_items - rounds.of_states[:, row, None]).abs() <= rounds.num_neighbors
        others = [item for item in near.any(0).nonzero().flatten().tolist() if item != own]
        losses.append(-torch.log_softmax(table[[own, *others]] @ states[row], 0)[0])
    return torch.stack(losses).mean()


def binary_cross_entropy_reference(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    negatives: Negatives,
    mask: Tensor,
    *,
    calibration: float = 0.0,
) -> Tensor:
    """Say the same one target at a time, as the formula is printed; slow, for tests."""
    losses = []
    for group, place in mask.nonzero().tolist():
        state, target = hidden[group, place], int(targets[group, place])
        valid = torch.ones_like(negatives.ids[group], dtype=torch.bool)
        if negatives.valid is not None:
            valid = negatives.valid[group]
        others = [item for item, real in zip(negatives.ids[group].tolist(), valid, strict=True) if real]
        others = [item for item in others if item != target]
        rate = len(others) / (table.shape[0] - 1)
        power = rate * (calibration * (1 - 1 / rate) + 1 / rate) if others else 1 - calibration
        total = power * torch.sigmoid(state @ table[target]).log()
        for item in others:
            total = total + torch.log(1 - torch.sigmoid(state @ table[item]))
        losses.append(-total / (len(others) + 1))
    return torch.stack(losses).mean()


def scalable_cross_entropy_reference(
    states: Tensor, wanted: Tensor, table: Tensor, rows: Tensor, items: Tensor
) -> Tensor:
    """Say the same one bucket and one state at a time, for given buckets; slow, for tests."""
    worst: dict[int, Tensor] = {}
    for bucket_rows, bucket_items in zip(rows.tolist(), items.tolist(), strict=True):
        for row in bucket_rows:
            own = int(wanted[row])
            classes = [own, *(item for item in bucket_items if item != own)]
            loss = -torch.log_softmax(table[classes] @ states[row], 0)[0]
            worst[row] = loss if row not in worst else torch.maximum(worst[row], loss)
    return torch.stack(list(worst.values())).mean()


def full_softmax_reference(hidden: Tensor, targets: Tensor, table: Tensor, mask: Tensor) -> Tensor:
    """Say the same one target at a time; slow, for tests."""
    losses = [
        -torch.softmax(table @ hidden[group, place], 0)[targets[group, place]].log()
        for group, place in mask.nonzero().tolist()
    ]
    return torch.stack(losses).mean()


def sampled_softmax_reference(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    negatives: Negatives,
    mask: Tensor,
    *,
    correction: str = "theorem",
    temperature: float = 1.0,
    cosine: bool = False,
) -> Tensor:
    """Say the same one target and one negative at a time; slow, for tests."""
    losses = []
    log_q = negatives.log_q.expand(negatives.ids.shape)
    log_q_targets = negatives.log_q_targets.expand(targets.shape)
    for group, place in mask.nonzero().tolist():
        state, target = hidden[group, place], int(targets[group, place])
        if cosine:
            state, table = state / state.norm(), table / table.norm(dim=1, keepdim=True)
        slots = [s for s, item in enumerate(negatives.ids[group].tolist()) if item != target]
        if negatives.valid is not None:
            slots = [s for s in slots if negatives.valid[group, s]]
        draws = negatives.num_draws  # hits are draws too, empty slots are not
        if draws is None:
            draws = negatives.num_negatives if negatives.valid is None else int(negatives.valid[group].sum())
        positive = state @ table[target] / temperature
        if not slots:
            losses.append(0 * positive)
            continue
        others = torch.stack([state @ table[negatives.ids[group, s]] / temperature for s in slots])
        log_q_others, own = log_q[group, slots], log_q_targets[group, place]
        log_q_given = log_q_others - torch.log(1 - own.exp())
        if correction == "theorem":
            others = others - log_q_given - math.log(len(slots))
        elif correction == "logq-negatives":
            others = others - log_q_others - math.log(draws)
        elif correction == "logq":
            positive, others = positive - own, others - log_q_others
        if correction == "refined-logq":
            rest = torch.exp(others - log_q_given)
            probability = positive.exp() / (positive.exp() + rest.mean())
            losses.append(-(1 - probability).detach() * (positive - rest.sum().log()))
        else:
            losses.append(-torch.log(positive.exp() / (positive.exp() + others.exp().sum())))
    return torch.stack(losses).mean()
