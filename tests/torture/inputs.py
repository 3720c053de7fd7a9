"""The files that are mutated: where each lives, what is in it, and the commands that read it."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

_ROWS = [
    (f"u{u}", f"i{(u * 7 + 3 * t) % 12}", 1_600_000_000 + 60 * t + u) for u in range(8) for t in range(5)
]
_CSV = "user,item,timestamp,rating\n" + "".join(f"{u},{i},{t},{t % 5 + 1}\n" for u, i, t in _ROWS)
_NUMBERS = [(int(u[1:]), int(i[1:]), t) for u, i, t in _ROWS]


@dataclass(frozen=True)
class Target:
    """A file in a scene; commands that must read it, or refuse it in a sentence, and never write `out` then.

    `shape` says how its mutants are made; `content` is what it holds, unless the scene has the file.
    """

    name: str
    scene: str
    file: str
    shape: str
    commands: tuple[str, ...]
    content: Callable[[], bytes] | None = None
    weight: float = 1.0  # of the mutants that are tried

    @property
    def slow(self) -> bool:
        """Whether its scene or its commands take seconds."""
        return self.scene in ("planned", "followed", "evaluated") or _REPORT in self.commands


def _parquet() -> bytes:
    import polars as pl

    buffer = io.BytesIO()
    frame = pl.DataFrame(_ROWS, schema=["user", "item", "timestamp"], orient="row")
    frame.write_parquet(buffer)
    return buffer.getvalue()


def _zstd() -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(_CSV.encode())


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/README", "words")
        archive.writestr("a/ratings.csv", _CSV)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("a/ratings.csv")
        member.size = len(_CSV)
        archive.addfile(member, io.BytesIO(_CSV.encode()))
    return buffer.getvalue()


def _json_lines() -> bytes:
    return "".join(f'{{"user": "{u}", "item": "{i}", "timestamp": {t}}}\n' for u, i, t in _ROWS).encode()


def _lines(layout: str) -> Callable[[], bytes]:
    return lambda: "".join(layout.format(u=u, i=i, t=t) for u, i, t in _NUMBERS).encode()


def _netflix() -> bytes:
    return "".join(
        f"{item}:\n" + "".join(f"{u},3,2005-09-{t % 28 + 1:02}\n" for u, i, t in _NUMBERS if i == item)
        for item in range(12)
    ).encode()


def _features_csv() -> bytes:
    return ("item," + ",".join(f"f{n}" for n in range(8)) + "\n").encode() + b"".join(
        f"new-{n},{','.join(str(n / (k + 1)) for k in range(8))}\n".encode() for n in range(5)
    )


def _reader(name: str, file: str, shape: str, content: Callable[[], bytes]) -> Target:
    return Target(
        name, "nothing", f"in/{file}", shape, (f"prepare {{here}}/in/{file} -o {{here}}/out",), content
    )


_RECOMMEND = "recommend {here}/run --users user-0,user-1 --top 3"
_RESUME = "train --resume {here}/run --steps 32"
_REPORT = "report {here}/run"
_EVALUATE = "evaluate {here}/run"
_SHOW = "data show {here}/dataset"
_LAST, _BEST = "run/checkpoint/last.safetensors", "run/checkpoint/best.safetensors"

TARGETS = {
    target.name: target
    for target in (
        _reader("csv", "e.csv", "table", lambda: _CSV.encode()),
        _reader("tsv", "e.tsv", "table", lambda: _CSV.replace(",", "\t").encode()),
        _reader("json lines", "e.jsonl", "json lines", _json_lines),
        _reader("parquet", "e.parquet", "parquet", _parquet),
        _reader("gzip", "e.csv.gz", "bytes", lambda: gzip.compress(_CSV.encode(), mtime=0)),
        _reader("zstd", "e.csv.zst", "bytes", _zstd),
        _reader("zip", "e.zip", "zip", _zip),
        _reader("tar", "e.tar", "bytes", _tar),
        _reader("ml-1m", "ratings.dat", "table", _lines("{u}::{i}::4::{t}\n")),
        _reader("ml-100k", "u.data", "table", _lines("{u}\t{i}\t4\t{t}\n")),
        _reader("gowalla", "e.txt", "table", _lines("{u}\t2010-10-17T01:48:53Z\t39.7\t-104.9\t{i}\n")),
        _reader("netflix", "e.txt", "table", _netflix),
        _reader("sasrec", "e.txt", "table", _lines("{u} {i}\n")),
        Target(
            "features.csv",
            "featured",
            "in/new.csv",
            "table",
            (f"{_RECOMMEND} --new-items {{here}}/in/new.csv",),
            _features_csv,
        ),
        *(
            Target(f"dataset: {file}", "trained", f"dataset/{file}", shape, (_SHOW, _EVALUATE))
            for file, shape in (
                ("dataset.json", "json"),
                ("items.npy", "npy"),
                ("offsets.npy", "npy"),
                ("train_stops.npy", "npy"),
                ("validation_targets.npy", "npy"),
                ("test_targets.npy", "npy"),
                ("users.parquet", "parquet"),
                ("items.parquet", "parquet"),
            )
        ),
        Target(
            "plan.toml",
            "planned",
            "plan/plan.toml",
            "toml",
            ("train {here}/dataset -o {here}/out --plan {here}/plan/plan.toml --steps 1 --threads 1",),
            weight=3,
        ),
        Target("run.toml", "trained", "run/run.toml", "toml", (_RECOMMEND, _RESUME), weight=3),
        Target("best checkpoint", "trained", _BEST, "safetensors", (_RECOMMEND,), weight=2),
        Target("last checkpoint", "trained", _LAST, "safetensors", (_RESUME,), weight=3),
        Target(
            "metrics.parquet", "trained", "run/metrics.parquet", "parquet", (_EVALUATE, _RESUME), weight=2
        ),
        Target("run's items", "trained", "run/items.parquet", "parquet", (_RECOMMEND, _EVALUATE)),
        Target(
            "run's features", "featured", "run/features.safetensors", "safetensors", (_RECOMMEND, _RESUME)
        ),
        Target("metrics on the page", "trained", "run/metrics.parquet", "parquet", (_REPORT,), weight=0.2),
        Target("plan on the page", "followed", "run/plan.toml", "toml", (_REPORT,), weight=0.2),
        *(
            Target(f"page: {file}", "evaluated", f"run/{file}", shape, (_REPORT,), weight=0.2)
            for file, shape in (
                ("environment.json", "json"),
                ("evaluation-test.json", "json"),
                ("evaluation-test.parquet", "parquet"),
                ("recommendations.parquet", "parquet"),
            )
        ),
    )
}
