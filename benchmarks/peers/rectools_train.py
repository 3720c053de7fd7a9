"""Train RecTools' SASRec on the training rows, and time its recommend when asked to.

RecTools draws 128 negatives for every target and gathers their rows: (n, L, 129, d) floats. No validation, no
checkpoints, no logger, no progress bar: the defaults of `SASRecModel`, with a trainer that differs from its
own by the clock alone. `dataloader_num_workers` stays at its default of 0: the loader takes about a
hundredth of a step.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from measuring import (
    BATCH_SIZE,
    BLOCKS,
    DIM,
    HEADS,
    MAX_LENGTH,
    NEGATIVES,
    ClockCallback,
    parse_arguments,
    print_report,
    status_bytes,
)
from pytorch_lightning import Callback, Trainer, seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


class Timer(ClockCallback, Callback):
    """The clock for RecTools' Lightning."""


def time_calls(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Wrap a function so that the seconds of each call are kept."""

    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - start)

    return timed


def time_recommend(model: SASRecModel, dataset: Dataset, repeats: int) -> dict[str, Any]:
    """Recommend ten unseen items to every user, with the making of its sequences told apart.

    Two calls inside `recommend` make them: one maps the ids; the other, far slower, groups the rows by user.
    """
    users = dataset.user_id_map.external_ids
    preparing: list[float] = []
    preparator = model.data_preparator
    for name in ("transform_dataset_u2i", "get_dataloader_recommend"):
        setattr(preparator, name, time_calls(getattr(preparator, name), preparing))
    whole, apart = [], []
    for _ in range(repeats):
        preparing.clear()
        start = time.perf_counter()
        found = model.recommend(users=users, dataset=dataset, k=10, filter_viewed=True)
        whole.append(time.perf_counter() - start)
        apart.append(sum(preparing))
    if len(found) != 10 * len(users):
        raise SystemExit(f"expected {10 * len(users):,} recommendations, saw {len(found):,}")
    return {
        "recommend_seconds": whole,
        "recommend_prepare_seconds": apart,
        "recommend_users": len(users),
        "recommend_peak_bytes": status_bytes("VmHWM"),
    }


def main() -> None:
    """Train, measure, print."""
    parser = parse_arguments(__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--recommend", type=int, default=0, metavar="TIMES", help="then time recommend")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    seed_everything(asked.seed)
    warnings.filterwarnings("ignore", message="The 'train_dataloader' does not have many workers")
    start = time.perf_counter()
    interactions = pd.read_parquet(asked.data).rename(
        columns={"user": Columns.User, "item": Columns.Item, "timestamp": Columns.Datetime}
    )
    interactions[Columns.Datetime] = pd.to_datetime(interactions[Columns.Datetime], unit="s")
    interactions[Columns.Weight] = 1
    dataset = Dataset.construct(interactions)
    timer = Timer(asked.warm_up_steps, mask_name="y")

    def make_trainer() -> Trainer:
        return Trainer(
            max_epochs=asked.epochs,
            min_epochs=asked.epochs,
            limit_train_batches=asked.steps,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            enable_checkpointing=False,
            devices=1,
            accelerator="cpu",
            callbacks=[timer],
        )

    model = SASRecModel(
        n_blocks=BLOCKS,
        n_heads=HEADS,
        n_factors=DIM,
        session_max_len=MAX_LENGTH,
        batch_size=BATCH_SIZE,
        dropout_rate=asked.dropout,
        loss="sampled_softmax",
        n_negatives=NEGATIVES,
        dataloader_num_workers=asked.workers,
        get_trainer_func=make_trainer,
    )
    model.fit(dataset)
    # Lightning deep-copies the trainer together with its callbacks.
    clock = next(callback for callback in model.fit_trainer.callbacks if isinstance(callback, Timer)).clock
    found = clock.report()
    found["prepare_seconds"] = clock.first - start
    if asked.recommend:
        found |= time_recommend(model, dataset, asked.recommend)
    print_report(found, "rectools", "torch", "pytorch-lightning", "numpy", "pandas")


if __name__ == "__main__":
    main()
