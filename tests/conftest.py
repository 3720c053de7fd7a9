"""Shared helpers: run a command in this process, and see what it said and left behind."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from budgetrec.cli import run
from budgetrec.data.store import Dataset

PROGRESS_LINE = re.compile(r"\d+:\d\d:\d\d \w")


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str


@pytest.fixture
def budgetrec(capsys) -> Callable[..., Answer]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Answer:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def refused(budgetrec, tmp_path) -> Callable[..., str]:
    """Run a command that must be refused in one sentence, and leave nothing behind; give the sentence."""

    def call(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        answer = budgetrec(*arguments)
        assert answer.code == 2
        assert answer.out == ""
        *stages, told = answer.err.splitlines(keepends=True)
        assert all(PROGRESS_LINE.match(line) for line in stages), stages  # written after two seconds
        assert told.startswith("budgetrec: ")
        assert told.endswith("\n")
        assert "Traceback" not in told
        assert sorted(tmp_path.rglob("*")) == before
        return told

    return call


def sequences(dataset: Dataset) -> dict[object, list[object]]:
    """Return each user's items in order, by the names that the source has for them."""
    users, items = dataset.user_labels.to_list(), dataset.item_labels.to_list()
    bounds = dataset.offsets.tolist()
    return {
        user: [items[i] for i in dataset.items[bounds[u] : bounds[u + 1]]] for u, user in enumerate(users)
    }


def write_csv(path: Path, rows: list[tuple[object, ...]], header: str = "user,item,timestamp") -> Path:
    """Write rows as CSV."""
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def frame_of(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    """Return rows as a frame of user, item, timestamp."""
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
