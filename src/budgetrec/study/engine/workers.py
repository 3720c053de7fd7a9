"""Who runs the cells: this process, processes of this machine, or a Ray cluster. The numbers are the same.

A cell sees one thread, so that no sum depends on how many cores there are, and sends its outcome back as
JSON. A process that dies is a failure of the cell that it ran, and another takes its place.
"""

import importlib
import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from budgetrec.errors import ArgumentError, BudgetrecError, InterruptedRunError
from budgetrec.study.engine.grid import Cell, Engine, Failure, Outcome, Results
from budgetrec.study.engine.scale import EngineName

_GRACE_SECONDS = 30.0  # for a cell to save its checkpoint when the study is interrupted


def run_cell(cell: str, folder: str) -> str:
    """Run one cell, given as JSON, on one thread; give its outcome, or how it failed, as JSON."""
    with _one_thread():
        try:
            asked = Cell.from_json(cell)
            module, _, name = asked.function.partition(":")
            outcome: Outcome = getattr(importlib.import_module(module), name)(
                asked.settings, asked.places, Path(folder)
            )
            return json.dumps(asdict(outcome), allow_nan=False)
        except InterruptedRunError:
            raise KeyboardInterrupt from None
        except Exception as error:  # whatever it is, the other cells go on
            told = str(error) if isinstance(error, BudgetrecError) else f"{type(error).__name__}: {error}"
            reason = " ".join(told.split()) or type(error).__name__
            return json.dumps({"reason": reason, "traceback": traceback.format_exc()})


def _read(answer: str) -> Outcome | Failure:
    document = json.loads(answer)
    return Failure(**document) if "reason" in document else Outcome(**document)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Serial:
    """Runs cells one after another in this process."""

    def run(self, cells: Sequence[Cell], folder: Path, *, alone: bool) -> Results:
        """Run all cells in their order."""
        for place, cell in enumerate(cells):
            yield place, _read(run_cell(cell.to_json(), str(folder)))


class Idle:
    """Runs nothing, for a look at what is done so far."""

    def run(self, cells: Sequence[Cell], folder: Path, *, alone: bool) -> Results:
        """Leave every cell as it is."""
        return iter(())


class Local:
    """Runs cells in `num_workers` processes of this machine, which are kept from cell to cell."""

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ArgumentError(f"workers is {num_workers}; pass at least 1.")
        self.num_workers = num_workers
        self._idle: list[_Worker] = []

    def run(self, cells: Sequence[Cell], folder: Path, *, alone: bool) -> Results:
        """Run all cells, as many at once as there are workers."""
        waiting = deque(enumerate(cells))
        busy: dict[Connection, tuple[_Worker, int]] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < (1 if alone else self.num_workers):
                    place, cell = waiting.popleft()
                    worker = self._idle.pop() if self._idle else _Worker()
                    busy[worker.connection] = (worker, place)  # before it is sent, so that it is ended too
                    worker.send(cell, folder)
                ready = wait(list(busy))
                for connection in [each for each in busy if each in ready]:
                    worker, place = busy.pop(connection)
                    answer = worker.receive()
                    if worker.process.is_alive():
                        self._idle.append(worker)
                    yield place, answer
        finally:
            for worker, _ in busy.values():
                worker.process.terminate()
            for worker, _ in busy.values():
                worker.end()

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().end()


class _Worker:
    """A process that runs the cells it is sent until nobody is left to send one."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads and locks
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        with _environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"):  # of numpy; Ray does the same
            self.process.start()
        other.close()

    def send(self, cell: Cell, folder: Path) -> None:
        with suppress(OSError):  # it died; receive() says so
            self.connection.send_bytes(json.dumps([cell.to_json(), str(folder)]).encode())

    def receive(self) -> Outcome | Failure:
        try:
            return _read(self.connection.recv_bytes().decode())
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            return Failure(reason=f"the process of the cell ended with code {code}; memory may have run out.")

    def end(self) -> None:
        self.connection.close()
        self.process.join(_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _environment(**changed: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            cell, folder = json.loads(connection.recv_bytes())
            connection.send_bytes(run_cell(cell, folder).encode())
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _end_with_parent() -> None:
    """Do not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class RayCluster:
    """Runs cells on a Ray cluster, a core each, or on an instance of this machine that it starts.

    Machines of a cluster need budgetrec, and the folders of the study and its data under the same names.
    """

    def __init__(self, address: str | None, num_workers: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise ArgumentError(
                "Ray is not installed. Install budgetrec[ray], or pass --engine local."
            ) from None
        if num_workers is not None and (address is not None or num_workers < 1):
            raise ArgumentError(
                f"workers is {num_workers}; pass at least 1, and leave it out with --ray-address, whose "
                "cluster has as many as it has cores."
            )
        self._ray: Any = ray
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if address is None:
            quiet |= {"num_cpus": num_workers, "include_dashboard": False}
        try:
            # Ray's workers are nice by default, and next to other work their cells would starve.
            with _environment(RAY_worker_niceness="0"):
                ray.init(address=address or "local", **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            told = str(error).splitlines()[0].rstrip(".")
            raise ArgumentError(f"no Ray cluster at {address or 'this machine'}: {told}.") from error
        self._run = ray.remote(num_cpus=1, max_retries=0)(run_cell)

    def run(self, cells: Sequence[Cell], folder: Path, *, alone: bool) -> Results:
        """Hand all cells to the cluster, or one at a time."""
        waiting = deque(enumerate(cells))
        pending: dict[Any, int] = {}
        try:
            while waiting or pending:
                while waiting and not (alone and pending):
                    place, cell = waiting.popleft()
                    pending[self._run.remote(cell.to_json(), str(folder.resolve()))] = place
                for reference in self._ray.wait(list(pending), num_returns=1)[0]:
                    place = pending.pop(reference)
                    yield place, self._answer(reference)
        finally:
            for reference in pending:
                self._ray.cancel(reference, force=True)

    def _answer(self, reference: Any) -> Outcome | Failure:
        try:
            return _read(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return Failure(reason=f"Ray lost the cell: {str(error).splitlines()[0]}")

    def close(self) -> None:
        """Leave the cluster, and end the instance if it was started here."""
        self._ray.shutdown()


@contextmanager
def running(
    name: EngineName | None = None, *, workers: int | None = None, ray_address: str | None = None
) -> Iterator[Engine]:
    """Open an engine; without a name it is local if workers are asked for, else serial."""
    name = name or (EngineName.RAY if ray_address else EngineName.LOCAL if workers else EngineName.SERIAL)
    if ray_address is not None and name is not EngineName.RAY:
        raise ArgumentError(
            f"the engine {name} has no address. Pass --engine ray, or leave --ray-address out."
        )
    if name is EngineName.SERIAL:
        if workers not in (None, 1):
            raise ArgumentError(f"the engine serial has one worker, not {workers}. Pass --engine local.")
        yield Serial()
        return
    engine: Local | RayCluster
    engine = Local(workers or 1) if name is EngineName.LOCAL else RayCluster(ray_address, workers)
    try:
        yield engine
    finally:
        engine.close()
