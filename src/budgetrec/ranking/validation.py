"""The few numbers that a training run wants at each of its evaluations."""

import numpy as np

from budgetrec.data.store import Dataset, Targets
from budgetrec.errors import ArgumentError
from budgetrec.ranking.histories import NextItemModel
from budgetrec.ranking.metrics import hit_rate, mrr, ndcg
from budgetrec.ranking.ranks import rank_targets
from budgetrec.ranking.scorer import BLOCK_BYTES


def validate(
    model: NextItemModel,
    dataset: Dataset,
    targets: Targets,
    *,
    batch_size: int | None = None,
    keep_seen: bool = False,
    max_users: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> dict[str, float]:
    """Return `val_loss`, `ndcg@10`, `hit_rate@10` and `mrr` over the targets.

    Items of the history are left out unless `keep_seen`, as `rank_targets` says. The loss is the exact
    softmax over all items. With `max_users` the same evenly spread targets are taken at every call, so that
    rows of one run can be compared. Nothing is drawn at random, and the model is left in the mode it was in.
    """
    chosen = spread(targets, max_users)
    ranking = rank_targets(
        model, dataset, chosen, batch_size=batch_size, keep_seen=keep_seen, block_bytes=block_bytes
    )
    return {
        "val_loss": float(ranking.losses.mean()),
        "ndcg@10": float(ndcg(ranking.ranks, 10).mean()),
        "hit_rate@10": float(hit_rate(ranking.ranks, 10).mean()),
        "mrr": float(mrr(ranking.ranks).mean()),
    }


def spread(targets: Targets, max_users: int | None) -> Targets:
    """Take at most `max_users` targets, evenly spread."""
    if max_users is None or max_users >= len(targets):
        return targets
    if max_users < 1:
        raise ArgumentError(f"max_users is {max_users}. Pass at least 1, or nothing for all.")
    chosen = np.arange(max_users) * len(targets) // max_users
    return Targets(targets.users[chosen], targets.begins[chosen], targets.places[chosen])
