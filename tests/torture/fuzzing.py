"""A process of mutants, from hypothesis or from the coverage-guided fuzzer, and who watches it.

The process writes down each mutant before it is tried, so that one that hangs or crashes it is known.
"""

import contextlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.torture.inputs import TARGETS, Target
from tests.torture.mutants import mutants
from tests.torture.processes import Ended, Fault, fork
from tests.torture.record import Trial
from tests.torture.scene import Scene

CHUNKS = {"hypothesis": 100, "fuzzer": 130}  # mutants in a process, so that 5,000 reach every file
HANGS_AFTER = 60.0
_ROOM = 4 << 30  # that a process of mutants may take: a number that asks for more is refused at once
_KEPT_FAULTS = 20  # of a chunk


@dataclass(frozen=True)
class Place:
    """Where a process of mutants works, and where it writes down what it does."""

    kept: Path  # the scene as it should be
    here: Path  # where it is put for each mutant
    notes: Path  # a folder

    @property
    def count(self) -> Path:
        """How many mutants were tried."""
        return self.notes / "count"

    @property
    def current(self) -> Path:
        """The mutant that is being tried."""
        return self.notes / "current"

    @property
    def faults(self) -> Path:
        """Faults, one a line."""
        return self.notes / "faults.jsonl"


def content_of(target: Target, kept: Path) -> bytes:
    """Return what a target holds before it is mutated."""
    return (kept / target.file).read_bytes() if target.content is None else target.content()


def attempt(target: Target, place: Place, mutant: bytes) -> tuple[Fault, str] | None:
    """Put a mutant in its place and let commands read it."""
    shutil.rmtree(place.here, ignore_errors=True)
    shutil.copytree(place.kept, place.here)
    file = place.here / target.file
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(mutant)
    for line in target.commands:
        arguments = shlex.split(line.format(here=place.here))
        ended = _call(arguments)
        found = ended.fault()
        if found is not None:
            return found[0], f"budgetrec {' '.join(arguments)}: {found[1]}"
        left = [str(path) for path in place.here.rglob("*.partial-*")]
        left += ["out"] if ended.code == 2 and (place.here / "out").exists() else []
        if left:
            return Fault.LEFT, left[0]
    return None


def _call(arguments: list[str]) -> Ended:
    """Run a command line in this process."""
    from budgetrec.cli import run

    # A file, since the fuzzer asks for its handle.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as told:
        try:
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                code = run(arguments)
        except BaseException:  # also the panics of libraries, which are no Exception
            return Ended(1, traceback.format_exc(), 0.0)
        told.seek(0)
        return Ended(code, told.read(), 0.0)


def _notebook(target: Target, place: Place) -> Callable[[bytes], None]:
    """Return what tries a mutant and writes down what happens."""
    os.environ["BUDGETREC_TRACEBACK"] = "1"  # a fault of ours then says where it is
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM, size + _ROOM))
    tried = 0

    def attempt_and_note(mutant: bytes) -> None:
        nonlocal tried
        place.current.write_bytes(mutant)
        found = attempt(target, place, mutant)
        if found is not None:
            with place.faults.open("a") as file:
                file.write(json.dumps([str(found[0]), found[1], mutant.hex()]) + "\n")
        tried += 1
        place.count.write_text(str(tried))

    return attempt_and_note


def from_hypothesis(target: Target, place: Place, seed: int, number: int) -> int:
    """Try mutants from hypothesis."""
    note = _notebook(target, place)
    held = content_of(target, place.kept)

    @seeded(seed)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutants(target.shape, held))
    def attempt_all(mutant: bytes) -> None:
        note(mutant)

    attempt_all()
    return 0


def from_fuzzer(target: Target, place: Place, seed: int, number: int, corpus: Path) -> None:
    """Try mutants from the coverage-guided fuzzer, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["budgetrec"], enable_loader_override=False):
        from tests.torture.processes import import_everything

        import_everything()
    corpus.mkdir(parents=True, exist_ok=True)
    held = content_of(target, place.kept)
    (corpus / "first").write_bytes(held)
    flags = [f"-runs={number}", f"-seed={seed}", f"-max_len={2 * len(held)}", "-rss_limit_mb=0"]
    flags += [
        "-timeout=3600",
        f"-artifact_prefix={place.notes}/",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], _notebook(target, place))
    atheris.Fuzz()


def mutate(scene: Scene, identity: str) -> Trial:
    """Try a chunk of mutants of a file, or one that was kept from an earlier chunk."""
    _, name, how = identity.split("/", 2)
    target = TARGETS[name]
    scene.reset(target.scene)
    notes = scene.work / "notes"
    place = Place(scene.work / "starts" / target.scene, scene.here, notes)
    if Path(how).is_file():
        held = Path(how).read_bytes()
        start = lambda seed, number: _forked(lambda: _once(target, place, held), notes)  # noqa: E731
        number, seed = 1, 0
    else:
        engine, seed, number = how.split("-")[0], *map(int, how.split("-")[1:])
        if engine == "hypothesis":
            start = lambda seed, number: _forked(  # noqa: E731
                lambda: from_hypothesis(target, place, seed, number), notes
            )
        else:
            start = lambda seed, number: _fuzzer(scene, target, seed, number, notes)  # noqa: E731
    return _watched(scene, identity, place, start, seed, number)


def _once(target: Target, place: Place, mutant: bytes) -> int:
    _notebook(target, place)(mutant)
    return 0


def _forked(work: Callable[[], int], notes: Path) -> int:
    return fork(work, notes / "told")


def _fuzzer(scene: Scene, target: Target, seed: int, number: int, notes: Path) -> int:
    with (notes / "told").open("wb") as file:
        line = [sys.executable, "-m", "tests.torture.fuzzing", target.name, str(seed), str(number)]
        process = subprocess.Popen(
            [*line, str(scene.work)],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    process.returncode = 0
    return process.pid


def _watched(
    scene: Scene, identity: str, place: Place, start: Callable[[int, int], int], seed: int, number: int
) -> Trial:
    """Follow processes of mutants until all are tried; one that hangs or crashes ends its process."""
    tried, found = 0, []
    while tried < number and len(found) < _KEPT_FAULTS:
        shutil.rmtree(place.notes, ignore_errors=True)
        place.notes.mkdir()
        code = _follow(start(seed + 1000 * tried, number - tried), place.count)
        done = int(place.count.read_text() or 0) if place.count.exists() else 0
        for line in place.faults.read_text().splitlines() if place.faults.exists() else []:
            fault, told, mutant = json.loads(line)
            found.append(_kept(scene, identity, fault, told, bytes.fromhex(mutant)))
        if code is None or (code != 0 and done < number - tried):
            told = (place.notes / "told").read_text("utf-8", "replace")[-3000:]
            if not place.current.exists():  # it never began
                raise RuntimeError(f"{identity} could not start: {told}")
            fault = Fault.HANG if code is None else Fault.TRACEBACK
            words = f"exit {code}: {told}"
            found.append(_kept(scene, identity, str(fault), words, place.current.read_bytes()))
            done += 1
        elif done == 0:
            break
        tried += done
        if code == 0:
            break  # hypothesis has no more different ones
    return Trial(identity, tried, found[:_KEPT_FAULTS])


def _follow(pid: int, count: Path) -> int | None:
    """Wait for a process that goes on counting; None if it stopped to."""
    seen, since = -1.0, time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        now = count.stat().st_mtime if count.exists() else 0.0
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > HANGS_AFTER:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.05)


def _kept(scene: Scene, identity: str, fault: str, told: str, mutant: bytes) -> tuple[str, str, str]:
    """Keep a mutant; the last of what is returned repeats it."""
    folder = scene.work / "failures"
    folder.mkdir(exist_ok=True)
    campaign, name, _ = identity.split("/", 2)
    path = folder / f"{name.replace(' ', '-').replace(':', '')}-{zlib.crc32(mutant):08x}"
    path.write_bytes(mutant)
    return fault, told, f"{campaign}/{name}/{path}"


if __name__ == "__main__":
    _name, _seed, _number, _work = sys.argv[1:]
    _target = TARGETS[_name]
    _place = Place(Path(_work, "starts", _target.scene), Path(_work, "disk", "here"), Path(_work, "notes"))
    from_fuzzer(_target, _place, int(_seed), int(_number), Path(_work, "corpus", _name))
