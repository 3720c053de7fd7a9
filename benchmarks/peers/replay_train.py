"""Train RePlay's SasRec with sampled cross-entropy on the training rows.

RePlay draws 128 negatives for the whole batch. `--buckets ROWS` turns its length buckets on, which crop
padding: its `from_params` leaves them off, but they are part of the package, so both are measured. The
sequences are written to a parquet file first, as its `ParquetModule` wants; that is not part of the time.
"""

import tempfile
import time
import warnings
from pathlib import Path

import lightning
import polars as pl
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
)
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import ParquetModule, TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.loss import CESampled
from replay.nn.sequential import LengthBucketedQueryEncoder, SasRec
from replay.nn.transform import UniformNegativeSamplingTransform
from replay.nn.transform.template import make_default_sasrec_transforms


class Timer(ClockCallback, lightning.Callback):
    """The clock for RePlay's Lightning."""


def write_sequences(data: Path, output: Path) -> int:
    """Write one row a user with the items in order of time, encoded from 0; give back how many items."""
    interactions = pl.read_parquet(data).sort("user", "timestamp", maintain_order=True)
    items = interactions["item"].unique().sort()
    (
        interactions.with_columns(
            item_id=pl.col("item").replace_strict(items, pl.arange(len(items), eager=True))
        )
        .group_by("user", maintain_order=True)
        .agg("item_id")
        .rename({"user": "user_id"})
        .write_parquet(output)
    )
    return len(items)


def build(num_items: int, dropout: float, buckets: int) -> tuple[SasRec, TensorSchema]:
    """Return the model with its sampled loss, and the schema of its input."""
    schema = TensorSchema(
        TensorFeatureInfo(
            "item_id",
            is_seq=True,
            feature_type=FeatureType.CATEGORICAL,
            embedding_dim=DIM,
            padding_value=num_items,
            cardinality=num_items,
            feature_hint=FeatureHint.ITEM_ID,
            feature_sources=[TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")],
        )
    )
    body = SasRec.from_params(
        schema,
        embedding_dim=DIM,
        num_heads=HEADS,
        num_blocks=BLOCKS,
        max_sequence_length=MAX_LENGTH,
        dropout=dropout,
    ).body
    if buckets:
        body.encoder = LengthBucketedQueryEncoder(body.encoder, bucket_size=buckets)
    return SasRec(body=body, loss=CESampled()), schema


def main() -> None:
    """Train, measure, print."""
    parser = parse_arguments(__doc__)
    parser.add_argument("--buckets", type=int, default=0, metavar="ROWS", help="rows in a length bucket")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    lightning.seed_everything(asked.seed)
    for message in ("The following dataset paths aren't provided", "The 'train_dataloader' does not have"):
        warnings.filterwarnings("ignore", message=message)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        sequences = Path(folder) / "sequences.parquet"
        num_items = write_sequences(asked.data, sequences)
        model, schema = build(num_items, asked.dropout, asked.buckets)
        transforms = make_default_sasrec_transforms(schema)
        transforms["train"].append(UniformNegativeSamplingTransform(num_items, NEGATIVES))
        # One more position than the model sees, as the next-token transform takes one away.
        shapes = {"item_id": {"shape": MAX_LENGTH + 1, "padding": num_items}}
        module = ParquetModule(
            batch_size=BATCH_SIZE,
            metadata={"train": shapes},
            transforms={"train": transforms["train"]},
            train_path=str(sequences),
        )
        timer = Timer(asked.warm_up_steps, mask_name="target_padding_mask")
        trainer = lightning.Trainer(
            max_epochs=asked.epochs,
            limit_train_batches=asked.steps,
            limit_val_batches=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            enable_checkpointing=False,
            devices=1,
            accelerator="cpu",
            callbacks=[timer],
        )
        trainer.fit(LightningModule(model), datamodule=module)
        found = timer.clock.report()
        found["prepare_seconds"] = timer.clock.first - start
    print_report(found, "replay-rec", "torch", "lightning", "numpy", "polars")


if __name__ == "__main__":
    main()
