"""A study is a grid of cells, each named by a hash of what it is, run once, kept and never run again.

A cell is a function that can be imported, its settings and a version of the study's code that is raised by
hand when the same settings would give other numbers. Its outcome is one JSON file, written whole or not at
all, so a killed study resumes with what is missing. A study yields lists of cells and is sent their outcomes,
so that a later list may depend on an earlier one.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard, TypeVar

from budgetrec.errors import DataError
from budgetrec.files import remove_partial, write_whole

CELLS = "cells"
RUNS = "runs"
DIVERGED = "diverged"  # among the values of a cell: when, or how


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of a study.

    `function` is `module:name`; it is called with `settings`, `places` and the folder of the study, and gives
    an `Outcome`. `settings` decide the numbers and so the key; `places` say where on this machine data lies.
    """

    study: str
    version: int
    function: str
    settings: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its numbers."""
        return {"study": self.study, "version": self.version, "settings": self.settings}

    @property
    def key(self) -> str:
        """A name that depends on study, version and settings alone, in whatever order they were given.

        >>> cell = Cell(study="s", version=1, function="m:f", settings={"a": 1, "b": [2, 0.5]})
        >>> cell.key
        '7c3dfb180e5d994a2b54'
        """
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_json(self) -> str:
        """Return everything about the cell as text, for another process."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a cell found, all of it fit for JSON.

    `values` are the same whoever runs the cell, whenever and beside what; `measured` are seconds and bytes.
    """

    values: dict[str, Any]
    measured: dict[str, Any] = field(default_factory=dict)


def went_well(outcome: Outcome | None) -> TypeGuard[Outcome]:
    """Say whether a cell gave numbers: it did not fail, and its training did not diverge."""
    return outcome is not None and DIVERGED not in outcome.values


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell gave nothing: one sentence, and where in the code."""

    reason: str
    traceback: str = ""


Results = Iterator[tuple[int, Outcome | Failure]]  # each with the place of its cell in a list


class Engine(Protocol):
    """Runs cells somewhere; gives each one's place in the list with what came of it, in any order."""

    def run(self, cells: Sequence[Cell], folder: Path, *, alone: bool) -> Results:
        """Run all cells; `alone` means that no two at the same time, because they measure seconds."""


class Grid:
    """The cells of one study's folder: what is done is read, the rest is run and kept."""

    def __init__(self, folder: Path, engine: Engine, progress: Callable[[int], None]) -> None:
        self.folder, self.engine, self.progress = folder, engine, progress
        self.failures: dict[str, Failure] = {}
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
        remove_partial(folder / CELLS)

    def run(self, cells: Sequence[Cell], *, alone: bool = False) -> list[Outcome | None]:
        """Return the outcomes in the order of the cells, None where one failed or was not run.

        A cell that is listed twice is run once. A cell that failed in an earlier try is tried again.
        """
        known: dict[str, Outcome | None] = {}
        missing: dict[str, Cell] = {}
        for cell in cells:
            if cell.key not in known and cell.key not in missing:
                kept = self._read(cell)
                if kept is None:
                    missing[cell.key] = cell
                else:
                    known[cell.key] = kept
        self.progress(len(cells) - len(missing))
        waiting = list(missing.values())
        for place, result in self.engine.run(waiting, self.folder, alone=alone):
            known[waiting[place].key] = self._keep(waiting[place], result)
            self.progress(1)
        return [known.get(cell.key) for cell in cells]

    def _path(self, cell: Cell, ending: str = "json") -> Path:
        return self.folder / CELLS / f"{cell.key}.{ending}"

    def _read(self, cell: Cell) -> Outcome | None:
        path = self._path(cell)
        try:
            document = json.loads(path.read_text("utf-8"))
            return Outcome(values=document["values"], measured=document["measured"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} cannot be read: {error}. Delete it, and it will be computed again."
            ) from error

    def _keep(self, cell: Cell, result: Outcome | Failure) -> Outcome | None:
        document = {**cell.identity, **asdict(result)}
        if isinstance(result, Failure):
            self.failures[cell.key] = result
            _write_json(self._path(cell, "failed.json"), document)
            return None
        _write_json(self._path(cell), document)
        self._path(cell, "failed.json").unlink(missing_ok=True)
        return result


@dataclass(frozen=True)
class Stage:
    """Cells that can run side by side, or one at a time where they measure seconds."""

    cells: Sequence[Cell]
    alone: bool = False


Found = TypeVar("Found")
Stages = Generator[Stage, list[Outcome | None], Found]


def run_stages(stages: Stages[Found], grid: Grid) -> Found:
    """Run one stage after the other, each sent back its outcomes, and give what the study found."""
    try:
        stage = next(stages)
        while True:
            stage = stages.send(grid.run(stage.cells, alone=stage.alone))
    except StopIteration as end:
        found: Found = end.value
        return found


def _write_json(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path, lambda partial: partial.write_text(text, "utf-8"))
