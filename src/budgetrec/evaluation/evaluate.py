"""Evaluate one run: averages with intervals, user by user, and what its training curve says."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.repeats import repeated_targets
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError, DataError
from budgetrec.evaluation.curves import summarise_curve
from budgetrec.evaluation.intervals import Interval, bootstrap_intervals
from budgetrec.files import write_whole
from budgetrec.ranking.metrics import check_cutoffs, list_metrics, per_user
from budgetrec.ranking.ranks import Ranking, rank_targets
from budgetrec.runs.layout import PARTS, evaluation_summary, evaluation_users
from budgetrec.runs.run import Run, write_frame

CUTOFFS = (5, 10, 20)
# What the average loss of a part is called.
LOSSES = {"test": "test_loss", "validation": "val_loss"}


@dataclass(frozen=True)
class Group:
    """What holds for a part of the users: their number, and averages with intervals by name."""

    num_users: int
    intervals: dict[str, Interval]

    def to_dict(self) -> dict[str, object]:
        """Return the averages by name and their intervals, for JSON."""
        return {
            "num_users": self.num_users,
            **{name: each.mean for name, each in self.intervals.items()},
            "intervals": {name: [each.low, each.high] for name, each in self.intervals.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """How good a run is on one part of its dataset.

    - `run`: what its folder is called.
    - `part`: `test` or `validation`, what was held out.
    - `keep_seen`: whether the items of a user's history were ranked too. If not, a held-out item that is one
      of them has the last rank, as it would not be recommended either.
    - `cutoffs`: the lengths of the lists that were judged, shortest first.
    - `num_users`, `num_items`: how many users had an item held out, and how many items it was ranked among.
    - `metrics`: averages over users by name, and `coverage@k`, which is one number for all of them.
    - `intervals`: where each average lies with 95% confidence.
    - `groups`: the same apart for users whose held-out item is `new` to them and for those who had it before,
      `repeated`; empty if no item is repeated.
    - `training`: what the run's own rows say, such as its last `val_loss`, its areas and its speed.
    - `per_user`: a row for each user: `user`, `item` (what was held out), `rank`, `loss`, `repeated` (whether
      the user had the item before) and every metric.
    """

    run: str
    part: str
    keep_seen: bool
    cutoffs: tuple[int, ...]
    num_users: int
    num_items: int
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    groups: dict[str, Group]
    training: dict[str, float | int | None]
    per_user: pl.DataFrame

    def to_dict(self) -> dict[str, object]:
        """Return everything but the table of users, for JSON."""
        return {
            "run": self.run,
            "part": self.part,
            "num_users": self.num_users,
            "num_items": self.num_items,
            "cutoffs": list(self.cutoffs),
            "ties": "pessimistic",
            "keep_seen": self.keep_seen,
            **self.training,
            **self.metrics,  # of the validation part they hold a val_loss of their own, of the best weights
            "intervals": {name: [each.low, each.high] for name, each in self.intervals.items()},
            "groups": {name: group.to_dict() for name, group in self.groups.items()},
        }

    def save(self, folder: Path, *, users: Path | None = None) -> tuple[Path, Path]:
        """Write `evaluation-PART.json` and `evaluation-PART.parquet` (or `users`), each whole or not."""
        summary = folder / evaluation_summary(self.part)
        users = users or folder / evaluation_users(self.part)
        write_frame(users, self.per_user)
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_whole(summary, lambda path: path.write_text(text, "utf-8"))
        return summary, users


def evaluate(
    run: Run | Path | str,
    *,
    part: str = "test",
    cutoffs: Sequence[int] = CUTOFFS,
    keep_seen: bool | None = None,
    dataset: Dataset | Path | str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    report: Callable[[str], None] = lambda stage: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Rank the held-out item of every user among the whole catalogue with the best weights of a run.

    Ties count against the model. Items of a user's history are left out, or not, as they are when the run
    recommends; `keep_seen` overrules that. The `seed` is of the bootstrap behind the intervals. `dataset`
    says where the data is now if it has moved, `batch_size` how many histories are encoded at once (what is
    fast, if not given), `report` hears what is being done and `progress` how
    many items are ranked. A run that is opened here computes on `device`, one of auto, cpu and cuda.
    """
    if part not in PARTS:
        raise ArgumentError(f"part is {part!r}. Pass {' or '.join(PARTS)}.")
    cutoffs = check_cutoffs(cutoffs)
    if not isinstance(run, Run):
        report("opening the run")
        run = Run.open(run, dataset=dataset, device=device)
    dataset, keep_seen = run.dataset, run.keep_seen if keep_seen is None else keep_seen
    if cutoffs[-1] > max(dataset.num_items, *CUTOFFS):
        raise ArgumentError(
            f"cutoffs are {cutoffs}, and the catalogue has {dataset.num_items:,} items. Pass shorter lists."
        )
    targets = dataset.test() if part == "test" else dataset.validation()
    if len(targets) == 0:
        raise DataError(f"the dataset of {run.folder} holds nothing out for {part}. Pass another --part.")
    report(f"ranking {len(targets):,} items among {dataset.num_items:,}")
    ranking = rank_targets(
        run.model,
        dataset,
        targets,
        batch_size=batch_size,
        keep_seen=keep_seen,
        list_length=cutoffs[-1],
        progress=progress,
    )
    report("averaging")
    of_lists = list_metrics(ranking, dataset, cutoffs)
    values = per_user(ranking.ranks, cutoffs)
    values |= {name: value for name, value in of_lists.items() if not isinstance(value, float)}
    averaged = {**values, LOSSES[part]: ranking.losses}
    intervals = bootstrap_intervals(averaged, seed=seed)
    repeated = repeated_targets(dataset, targets)
    metrics = {name: interval.mean for name, interval in intervals.items()}
    metrics |= {name: value for name, value in of_lists.items() if isinstance(value, float)}
    return Evaluation(
        run=run.name,
        part=part,
        keep_seen=keep_seen,
        cutoffs=tuple(cutoffs),
        num_users=len(ranking),
        num_items=ranking.num_items,
        metrics=metrics,
        intervals=intervals,
        groups=_groups(averaged, repeated, seed=seed),
        training={**summarise_training(run.metrics), "best_step": run.best_step},
        per_user=_table_of_users(run, ranking).with_columns(repeated=repeated, **values),
    )


def _groups(
    values: Mapping[str, NDArray[np.float64]], repeated: NDArray[np.bool_], *, seed: int
) -> dict[str, Group]:
    """Average apart what is new to its user and what is not, if there is anything of the second kind."""
    if not repeated.any():
        return {}
    return {
        name: Group(
            num_users=int(chosen.sum()),
            intervals=bootstrap_intervals(
                {metric: each[chosen] for metric, each in values.items()}, seed=seed
            ),
        )
        for name, chosen in (("new", ~repeated), ("repeated", repeated))
        if chosen.any()
    }


def summarise_training(metrics: pl.DataFrame) -> dict[str, float | int | None]:
    """Return what the rows of a run say: its last `val_loss`, its areas, how long and how fast it trained."""
    areas = summarise_curve(metrics)
    last = metrics.row(-1, named=True)
    seconds = last["seconds"]
    return {
        "val_loss": last["val_loss"],
        **areas,
        "training_bytes": metrics["training_bytes"].max() if "training_bytes" in metrics.columns else None,
        "peak_bytes": metrics["peak_bytes"].max() if "peak_bytes" in metrics.columns else None,
        "examples_per_second": last["examples"] / seconds if seconds else None,
        "steps": last["step"],
    }


def _table_of_users(run: Run, ranking: Ranking) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user": run.dataset.user_labels.gather(ranking.users),
            "item": run.dataset.item_labels.gather(ranking.targets),
            "rank": ranking.ranks,
            "loss": ranking.losses,
        }
    )
