"""What a run's folder says, read without its weights or its dataset; what is missing is simply not there."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.store import MARKER as DATASET_MARKER
from budgetrec.errors import ConfigError, DataError
from budgetrec.runs.documents import read_frame, read_json
from budgetrec.runs.layout import (
    ENVIRONMENT,
    MARKER,
    METRICS_FILE,
    PARTS,
    PLAN,
    RECOMMENDATIONS,
    evaluation_summary,
    evaluation_users,
)
from budgetrec.settings.sections import METRICS, RunConfig, read_toml

_MOST_RECOMMENDATIONS = 10_000  # of which a page shows the first few
_PLACES = ("step", "examples", "seconds")  # columns that say when an evaluation was
_NEEDED = (*_PLACES, "val_loss")
_EVERY_ROW = (*_PLACES, "epoch", *METRICS, "peak_bytes")


@dataclass(frozen=True)
class Settings:
    """What `run.toml` says: settings by section, and where and what the dataset was."""

    source: Path
    sections: dict[str, dict[str, Any]]
    version: str | None  # of the budgetrec that wrote it
    dataset_path: Path
    dataset_identity: str
    num_items: int | None  # of the dataset; runs of budgetrec 0.1 do not say

    def config(self) -> RunConfig:
        """Return the settings, checked."""
        found = RunConfig.from_dict(self.sections, str(self.source))
        if found.training.keep_seen is None:  # budgetrec 0.1 left out what a user had had
            found = found.replaced({"keep_seen": False})
        return found


@dataclass(frozen=True)
class RunRecord:
    """A run as its files describe it."""

    name: str
    folder: Path
    settings: dict[str, dict[str, Any]]  # by section
    version: str | None
    dataset: dict[str, Any]  # name, identity, and statistics if it is still where it was
    metrics: pl.DataFrame  # empty before the first evaluation
    evaluations: dict[str, dict[str, Any]]  # by part
    plan: dict[str, Any] | None
    environment: dict[str, Any] | None
    recommendations: pl.DataFrame | None
    date: str


def read_settings(folder: Path) -> Settings:
    """Read `run.toml` of a run."""
    source = folder / MARKER
    document = read_toml(source)
    dataset = document.pop("dataset", None)
    if not isinstance(dataset, dict) or not all(
        isinstance(dataset.get(key), str) for key in ("path", "identity")
    ):
        raise ConfigError(f"{source} has no [dataset] with path and identity.")
    version, num_items = document.pop("budgetrec", None), dataset.get("num_items")
    document.pop("features", None)  # their width and hash are for people
    for section in RunConfig().to_dict():
        if not isinstance(document.setdefault(section, {}), dict):
            raise ConfigError(f"{source} has no table [{section}]. Restore the file.")
    return Settings(
        source=source,
        sections=document,
        version=None if version is None else str(version),
        dataset_path=Path(dataset["path"]),
        dataset_identity=dataset["identity"],
        num_items=num_items if isinstance(num_items, int) else None,
    )


def read_metrics(folder: Path) -> pl.DataFrame:
    """Read what was measured while a run trained: one row per evaluation."""
    path = folder / METRICS_FILE
    frame = read_frame(path)
    if frame is None:
        raise DataError(f"{path} does not exist. Train the run again.")
    missing = [name for name in _NEEDED if name not in frame.columns or not frame[name].dtype.is_numeric()]
    if missing:
        raise DataError(
            f"{path} has no numeric {missing[0]!r} (found: {', '.join(frame.columns)}). Train the run again."
        )
    for name in _PLACES:
        if not frame[name].cast(pl.Float64).is_finite().fill_null(False).all():
            raise DataError(f"{path} has rows whose {name} is not a number. Train the run again.")
    return frame


def read_rows(folder: Path, step: int) -> list[dict[str, Any]]:
    """Read the rows of evaluations up to a step, for a run that goes on from there."""
    frame, path = read_metrics(folder), folder / METRICS_FILE
    for name in _EVERY_ROW:
        if name not in frame.columns or not frame[name].dtype.is_numeric() or frame[name].has_nulls():
            raise DataError(f"{path} has rows without a number {name!r}. Train the run again.")
    rows = frame.filter(pl.col("step") <= step).to_dicts()
    if not rows:
        raise DataError(f"{path} has no row of step {step:,} or before. Train the run again.")
    return rows


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder."""
    settings = read_settings(folder)
    environment = read_json(folder / ENVIRONMENT)
    trained = (folder / METRICS_FILE).exists()
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        settings={section: settings.sections[section] for section in RunConfig().to_dict()},
        version=settings.version,
        dataset=_dataset(settings),
        metrics=read_metrics(folder) if trained else pl.DataFrame(schema=dict.fromkeys(_NEEDED, pl.Float64)),
        evaluations={
            part: found
            for part in PARTS
            if (found := read_json(folder / evaluation_summary(part))) is not None
        },
        plan=read_toml(folder / PLAN) if (folder / PLAN).exists() else None,
        environment=environment,
        recommendations=read_frame(folder / RECOMMENDATIONS, _MOST_RECOMMENDATIONS),
        date=_date(folder, environment),
    )


def read_users(run: RunRecord) -> pl.DataFrame | None:
    """Read what `evaluate` kept of each user of the test part, if it did."""
    frame = read_frame(run.folder / evaluation_users("test"))
    return frame if frame is not None and {"user", "item"} <= set(frame.columns) else None


def training_bytes(metrics: pl.DataFrame) -> float | None:
    """Return what training added to the process at most, as a budget counts it."""
    most = metrics["training_bytes"].max() if "training_bytes" in metrics.columns else None
    return most if isinstance(most, int | float) else None


def _dataset(settings: Settings) -> dict[str, Any]:
    """Return its name, never its path: a page is shown to others."""
    info = None
    with suppress(DataError, OSError):  # of another time or another machine: the run stands without it
        info = read_json(settings.dataset_path / DATASET_MARKER)
    statistics = (info or {}).get("statistics")
    return {
        "name": settings.dataset_path.name,
        "identity": settings.dataset_identity,
        "statistics": statistics if isinstance(statistics, dict) else {},
    }


def _date(folder: Path, environment: dict[str, Any] | None) -> str:
    started = (environment or {}).get("started")
    if isinstance(started, str):
        return started[:10]
    return datetime.fromtimestamp((folder / MARKER).stat().st_mtime, UTC).date().isoformat()
