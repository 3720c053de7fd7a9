"""The light reader of a run's folder: no weights, no dataset, and what is missing is simply not there."""

import polars as pl
import pytest

from budgetrec import Run
from budgetrec.errors import ConfigError, DataError
from budgetrec.runs.record import read_metrics, read_run, read_settings


def test_a_record_agrees_with_the_run(trained):
    """Settings, metrics and dataset are those of the opened run."""
    run, record = Run.open(trained.table), read_run(trained.table)
    assert record.name == run.name
    assert record.metrics.equals(run.metrics)
    assert read_settings(trained.table).config() == run.config
    assert record.dataset["identity"] == run.dataset.identity
    assert record.dataset["statistics"]["items"] == run.num_items


def test_what_is_missing_is_not_there(moved):
    """Without weights, metrics and dataset a record has its settings, no rows and no statistics."""
    (moved / "checkpoint" / "best.safetensors").unlink()
    (moved / "metrics.parquet").unlink()
    record = read_run(moved)
    assert record.settings["model"]["dim"] == 8
    assert record.metrics.is_empty()
    assert record.dataset["statistics"] == {}
    assert (record.plan, record.evaluations, record.recommendations) == (None, {}, None)


def test_metrics_are_read_or_refused_in_a_sentence(moved):
    """Without the file, without a column and with a place that is no number."""
    whole = read_metrics(moved)
    assert whole["step"].to_list()[0] == 0
    whole.drop("val_loss").write_parquet(moved / "metrics.parquet")
    with pytest.raises(DataError, match="has no numeric 'val_loss'"):
        read_metrics(moved)
    whole.with_columns(seconds=pl.lit(float("nan"))).write_parquet(moved / "metrics.parquet")
    with pytest.raises(DataError, match="rows whose seconds is not a number"):
        read_metrics(moved)
    (moved / "metrics.parquet").unlink()
    with pytest.raises(DataError, match="does not exist"):
        read_metrics(moved)


def test_settings_without_a_dataset_are_refused(tmp_path):
    """The sentence names the file."""
    (tmp_path / "run.toml").write_text("[model]\ndim = 8\n", "utf-8")
    with pytest.raises(ConfigError, match=r"run\.toml has no \[dataset\] with path and identity"):
        read_settings(tmp_path)
