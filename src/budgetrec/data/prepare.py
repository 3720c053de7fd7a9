"""From raw interactions to a prepared dataset: read, clean, order, split, store."""

import hashlib
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from budgetrec.data.archives import Report
from budgetrec.data.cleaning import Cleaning, Step, filter_rare, filter_ratings, filter_repeats
from budgetrec.data.columns import Columns
from budgetrec.data.events import Events, count_codes, renumber
from budgetrec.data.ids import PLAIN_NUMBER, are_plain_numbers
from budgetrec.data.ordering import sort_into_sequences
from budgetrec.data.readers import Read, find_files, read_events
from budgetrec.data.repeats import count_repeats
from budgetrec.data.splits import LeaveOneOut, Part, Parts, Rows, Split
from budgetrec.data.store import FILES, MARKER, Dataset
from budgetrec.data.times import as_date
from budgetrec.errors import ArgumentError, DataError
from budgetrec.files import check_free, new_folder


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How `fit` reads, cleans and splits interactions; the words are those of `prepare`."""

    layout: str = "auto"
    columns: Columns | None = None
    file_order: bool = False
    header: bool = True
    drop_nulls: bool = False
    cleaning: Cleaning = field(default_factory=Cleaning)
    split: Split = field(default_factory=LeaveOneOut)

    def describe(self) -> dict[str, object]:
        """Return what `dataset.json` says of all this."""
        own = ("layout", "file_order", "header", "drop_nulls")
        reading = {name: getattr(self, name) for name in own}
        return {
            "reading": {**reading, "columns": asdict(self.columns or Columns())},
            "cleaning": asdict(self.cleaning),
            "split": self.split.describe(),
        }


def prepare(
    inputs: Path | str | Sequence[Path | str],
    output: Path | str,
    *,
    layout: str = "auto",
    columns: Columns | None = None,
    file_order: bool = False,
    header: bool = True,
    drop_nulls: bool = False,
    cleaning: Cleaning | None = None,
    split: Split | None = None,
    overwrite: bool = False,
    report: Report = lambda stage: None,
) -> Dataset:
    """Read interactions, clean and split them, and store them in the folder `output`.

    `inputs` is a file, several files or a folder, in any layout of `budgetrec.data.formats`. By default
    nothing is dropped and the split is leave-one-out. `report` is called with the name of each stage. The
    folder is written completely or not at all.
    """
    output = Path(output)
    cleaning = cleaning or Cleaning()
    split = split or LeaveOneOut()
    asked = PrepareOptions(
        layout=layout,
        columns=columns,
        file_order=file_order,
        header=header,
        drop_nulls=drop_nulls,
        cleaning=cleaning,
        split=split,
    )
    paths = [Path(inputs)] if isinstance(inputs, Path | str) else [Path(path) for path in inputs]
    check_free(output, overwrite=overwrite, files=FILES)
    files = find_files(paths)
    for path in files:
        if path.resolve().is_relative_to(output.resolve()):
            raise DataError(f"{path} is inside the output folder {output}. Pass another output folder.")
    if file_order and columns is not None and columns.time is not None:
        raise ArgumentError("a time column and the file order exclude each other. Pass only one.")
    if cleaning.rating_above is None and columns is not None and columns.rating is not None:
        raise ArgumentError("a rating column is only read to filter by it. Pass --rating-above too.")
    stop = threading.Event()
    with (
        ThreadPoolExecutor(1) as pool,
        ExitStack() as on_exit,
        new_folder(output, overwrite=overwrite, files=FILES) as folder,
    ):
        on_exit.callback(stop.set)  # so a failure need not wait for the checksum of a large file
        workspace = folder / "unpacked"
        workspace.mkdir()
        try:
            read = read_events(
                files,
                workspace=workspace,
                layout=layout,
                columns=columns,
                file_order=file_order,
                header=header,
                with_ratings=cleaning.rating_above is not None,
                drop_nulls=drop_nulls,
                report=report,
            )
        finally:
            shutil.rmtree(workspace)
        # Reading uses all cores; the later stages leave one for the checksum.
        source = pool.submit(describe_source, files, stop)
        steps = clean(read, cleaning, report)
        report("splitting")
        described = {**source.result(), "layout": read.layout, "columns": read.columns}
        info = {"source": described, "steps": steps, **asked.describe()}
        dataset = build(read.events, split, info)
        report("writing")
        dataset.save(folder)
    return Dataset.open(output)


def find_prepared(inputs: Sequence[Path], folder: Path, options: PrepareOptions) -> Dataset | None:
    """Return the dataset in `folder` if it was prepared from the same files in the same way."""
    if not (folder / MARKER).is_file():
        return None
    dataset = Dataset.open(folder)
    made: Mapping[str, Any] = dataset.info
    if any(made.get(name) != value for name, value in options.describe().items()):
        return None
    source = describe_source(find_files(inputs))
    return dataset if made["source"].get("sha256") == source["sha256"] else None


def clean(read: Read, cleaning: Cleaning, report: Report) -> list[Step]:
    """Filter the events and sort them into sequences; return the steps."""
    events = read.events
    steps = [Step("read", read.rows, read.rows)]
    if len(events) < read.rows:
        steps.append(Step("rows with nothing missing", read.rows, len(events)))
    if cleaning.rating_above is not None:
        report("filtering")
        steps.append(filter_ratings(events, cleaning.rating_above))
        events.ratings = None
    report("ordering")
    _number_users_by_label(events)
    events.users, events.items, events.times = sort_into_sequences(events.users, events.items, events.times)
    report("filtering")
    if cleaning.repeats == "first":
        steps.append(filter_repeats(events))
    steps += filter_rare(
        events, min_user=cleaning.min_user, min_item=cleaning.min_item, one_pass=cleaning.one_pass
    )
    return steps


def build(events: Events, split: Split, info: dict[str, Any]) -> Dataset:
    """Split events in sequence order, number users and items, and compute statistics."""
    offsets = _offsets(events.users)
    parts = split.parts(Rows(offsets, events.items, events.times, len(events.item_labels)))
    if not (parts == Part.TRAIN).any():
        raise DataError("the split leaves nothing to train on. Choose another split or smaller shares.")
    kept = parts != Part.DROPPED
    if not kept.all():
        rows = len(events)
        events.keep(kept)
        info["steps"].append(Step(f"split {split.describe()['name']}", rows, len(events)))
        parts = parts[kept]
        offsets = _offsets(events.users)
    item_labels, train_counts = _number_items_by_count(events, parts)
    dataset = Dataset(
        items=events.items,
        offsets=offsets,
        train_stops=offsets[1:] - np.diff(np.searchsorted(np.flatnonzero(parts != Part.TRAIN), offsets)),
        validation_targets=np.flatnonzero(parts == Part.VALIDATION_TARGET),
        test_targets=np.flatnonzero(parts == Part.TEST_TARGET),
        user_labels=_typed(events.user_labels.gather(events.users[offsets[:-1]])),
        item_labels=item_labels,
        train_counts=train_counts,
        info={},
    )
    info["steps"] = [asdict(step) for step in info["steps"]]
    made: Any = {"statistics": _statistics(dataset, events), "split": split.describe(), **info}
    dataset.info.update(made)
    dataset.info["repeated_targets"] = count_repeats(dataset)
    return dataset


def describe_source(files: list[Path], stop: threading.Event | None = None) -> dict[str, Any]:
    """Return names, total size and SHA-256: of the file or, for several, of the list of their hashes.

    Setting `stop` ends the reading early, when the result is no longer needed.
    """
    digests = []
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while (chunk := file.read(1 << 20)) and not (stop and stop.is_set()):
                digest.update(chunk)
        digests.append(digest.hexdigest())
    names = [path.name for path in files]
    together = digests[0] if len(files) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return {
        "files": names if len(names) <= 10 else [*names[:3], f"... {len(names) - 4:,} more", names[-1]],
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": together,
    }


def _offsets(users: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return where each user's rows begin, followed by the number of rows."""
    return np.concatenate([[0], np.flatnonzero(users[1:] != users[:-1]) + 1, [len(users)]])


def _number_users_by_label(events: Events) -> None:
    """Renumber users by label, so the result does not depend on how the files were read."""
    order = _by_label(events.user_labels)
    if np.all(order[1:] > order[:-1]):
        return
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    renumber(events.users, numbers)
    events.user_labels = events.user_labels.gather(order)


def _number_items_by_count(events: Events, parts: Parts) -> tuple[pl.Series, NDArray[np.int64]]:
    """Renumber the remaining items by training count, most frequent first, then by label."""
    size = len(events.item_labels)
    counts = count_codes(events.items, size)
    train_counts = counts - count_codes(events.items[parts != Part.TRAIN], size)
    present = np.flatnonzero(counts)
    present = present[_by_label(events.item_labels.gather(present))]
    present = present[np.argsort(-train_counts[present], kind="stable")]
    numbers = np.full(size, -1, np.int32)
    numbers[present] = np.arange(len(present), dtype=np.int32)
    renumber(events.items, numbers)
    return _typed(events.item_labels.gather(present)), train_counts[present]


def _by_label(labels: pl.Series) -> NDArray[np.int64]:
    """Return the order of labels: plain numbers by value, then text alphabetically."""
    if labels.dtype == pl.String:
        plain = pl.when(pl.col("label").str.contains(PLAIN_NUMBER)).then(pl.col("label")).cast(pl.Int64)
        frame = pl.DataFrame({"label": labels}).with_columns(number=plain)
        return frame.select(pl.arg_sort_by("number", "label", nulls_last=True)).to_series().to_numpy()
    return labels.arg_sort().to_numpy()


def _typed(labels: pl.Series) -> pl.Series:
    """Return labels as int64 if all are plain integers, so that they sort and join as numbers."""
    return labels.cast(pl.Int64) if are_plain_numbers(labels) else labels


def _statistics(dataset: Dataset, events: Events) -> dict[str, Any]:
    lengths = np.diff(dataset.offsets)
    users, items, rows = dataset.num_users, dataset.num_items, len(dataset.items)
    statistics: dict[str, Any] = {
        "users": users,
        "items": items,
        "interactions": rows,
        "density": rows / (users * items),
        "mean_length": float(lengths.mean()),
        "median_length": float(np.median(lengths)),
        "max_length": int(lengths.max()),
        "train_interactions": int((dataset.train_stops - dataset.offsets[:-1]).sum()),
        "validation_users": len(dataset.validation_targets),
        "test_users": len(dataset.test_targets),
    }
    if events.times is not None:
        unit, ends = events.time_unit, {"first": events.times.min(), "last": events.times.max()}
        dates = {name: as_date(int(time), unit) or int(time) for name, time in ends.items()}
        statistics["time"] = {"unit": unit, **dates}
    return statistics
