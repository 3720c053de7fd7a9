"""What a run's folder says, read without its weights or its dataset; what is missing is simply not there."""

import json
import math
import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from budgetrec.data.store import MARKER as DATASET_MARKER
from budgetrec.errors import ConfigError, DataError
from budgetrec.evaluation.curves import AXES
from budgetrec.evaluation.evaluate import PARTS
from budgetrec.report.sortable import Cell, setting_pairs
from budgetrec.runs.environment import FILE as ENVIRONMENT_FILE
from budgetrec.runs.run import MARKER, METRICS_FILE
from budgetrec.settings.sections import read_toml

PLAN_FILE = "plan.toml"
RECOMMENDATIONS_FILE = "recommendations.parquet"
QUALITY = "ndcg@10"
_MOST_RECOMMENDATIONS = 10_000  # of which the page shows the first few
_SECTIONS = ("model", "objective", "optimizer", "training")
_NEEDED = (*AXES.values(), "val_loss")


@dataclass(frozen=True)
class RunRecord:
    """A run as its files tell it."""

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


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder."""
    document = read_toml(folder / MARKER)
    dataset = document.get("dataset")
    if not isinstance(dataset, dict) or not isinstance(dataset.get("path"), str):
        raise ConfigError(f"{folder / MARKER} has no [dataset] with path and identity.")
    settings = {}
    for section in _SECTIONS:
        settings[section] = document.get(section, {})
        if not isinstance(settings[section], dict):
            raise ConfigError(f"{folder / MARKER} has no table [{section}]. Restore the file.")
    environment = read_json(folder / ENVIRONMENT_FILE)
    version = document.get("budgetrec")
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        settings=settings,
        version=None if version is None else str(version),
        dataset=_dataset(Path(dataset["path"]), dataset.get("identity")),
        metrics=_metrics(folder / METRICS_FILE),
        evaluations={
            part: found
            for part in PARTS
            if (found := read_json(folder / f"evaluation-{part}.json")) is not None
        },
        plan=read_toml(folder / PLAN_FILE) if (folder / PLAN_FILE).exists() else None,
        environment=environment,
        recommendations=_frame(folder / RECOMMENDATIONS_FILE, _MOST_RECOMMENDATIONS),
        date=_date(folder, environment),
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or nothing where there is no such file."""
    try:
        document = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Make it again, or remove it.") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} holds no JSON object. Make it again, or remove it.")
    return document


def number(document: dict[str, Any], name: str, source: object) -> float | None:
    """Return a number of a document, or nothing where it has none of that name."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(
            f"{source} says {name} is {value!r}, which is no number. Make it again, or remove it."
        )
    return value


def interval(found: dict[str, Any], name: str) -> str:
    """Return the interval of a metric of an evaluation as text; nothing where it has none."""
    intervals = found.get("intervals")
    ends = intervals.get(name) if isinstance(intervals, dict) else None
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        return ""
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def mean_cell(found: dict[str, Any], name: str, source: object) -> Cell:
    """Return the mean of a metric with its interval below."""
    mean = number(found, name, source)
    return Cell("") if mean is None else Cell(f"{mean:.4f}", mean, interval(found, name))


def peak_bytes(metrics: pl.DataFrame) -> float | None:
    """Return what training added to the process at most, or, in older runs, the process's own peak."""
    known = [name for name in ("training_bytes", "peak_bytes") if name in metrics.columns]
    peak = metrics[known[0]].max() if known else None
    return peak if isinstance(peak, int | float) else None


def read_users(run: RunRecord) -> pl.DataFrame | None:
    """Read what `evaluate` kept of each user of the test part, if it did."""
    frame = _frame(run.folder / "evaluation-test.parquet")
    return frame if frame is not None and {"user", "item"} <= set(frame.columns) else None


def environment_pairs(environment: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return what is known of the machine as names and texts."""
    kept = {
        name: value for name, value in (environment or {}).items() if name != "command" and value is not None
    }
    return setting_pairs(kept)


def command_text(environment: dict[str, Any] | None) -> str:
    """Return the command as one would type it; nothing where it was not kept."""
    command = (environment or {}).get("command")
    return shlex.join(str(part) for part in command) if isinstance(command, list) else ""


def _dataset(folder: Path, identity: Any) -> dict[str, Any]:
    """Return its name, never its path: a page is shown to others."""
    info = None
    with suppress(DataError, OSError):  # of another time or another machine: the run stands without it
        info = read_json(folder / DATASET_MARKER)
    statistics = (info or {}).get("statistics")
    return {
        "name": folder.name,
        "identity": str(identity or ""),
        "statistics": statistics if isinstance(statistics, dict) else {},
    }


def _metrics(path: Path) -> pl.DataFrame:
    frame = _frame(path)
    if frame is None:
        return pl.DataFrame(schema=dict.fromkeys(_NEEDED, pl.Float64))
    missing = [name for name in _NEEDED if name not in frame.columns or not frame[name].dtype.is_numeric()]
    if missing:
        raise DataError(
            f"{path} has no numbers {missing[0]!r} (found: {', '.join(frame.columns)}). Train the run again."
        )
    for name in AXES.values():
        if not frame[name].cast(pl.Float64).is_finite().fill_null(False).all():
            raise DataError(f"{path} has rows whose {name} is no number. Train the run again.")
    return frame


def _frame(path: Path, num_rows: int | None = None) -> pl.DataFrame | None:
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:  # a path would be a pattern to polars: run[1] is a fine name
            return pl.read_parquet(file, n_rows=num_rows)
    except (OSError, pl.exceptions.PolarsError) as error:
        told = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as Parquet: {told}. Make it again, or remove it.") from error


def _date(folder: Path, environment: dict[str, Any] | None) -> str:
    started = (environment or {}).get("started")
    if isinstance(started, str):
        return started[:10]
    return datetime.fromtimestamp((folder / MARKER).stat().st_mtime, UTC).date().isoformat()


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
