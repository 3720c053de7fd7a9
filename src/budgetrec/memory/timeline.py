"""Every allocation of a piece of work, in order, with the part of a step that it belongs to.

torch's profiler notes each allocation and release of the allocators, those inside kernels included, with its
address. Ranges that the work opens with `stage` say what an allocation is for.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch._C._profiler import _EventType
from torch.autograd import profiler

_PREFIX = "budgetrec.memory."
_STAGE = f"{_PREFIX}stage:"
_TURN = f"{_PREFIX}turn:"
_BEGIN = f"{_PREFIX}begin"


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say that what is allocated inside belongs to `name`, unless an inner stage says otherwise."""
    with profiler.record_function(_STAGE + name):
        yield


def turn(before: str, after: str) -> None:
    """Say that from now on what would belong to the stage `before` belongs to `after`."""
    with profiler.record_function(f"{_TURN}{before}:{after}"):
        pass


def begin() -> None:
    """Say that the work begins here, and that what came before was in preparation for it."""
    with profiler.record_function(_BEGIN):
        pass


@dataclass(frozen=True)
class Timeline:
    """Bytes in use after each allocation or release, (events, stages), counted from where the work begins.

    A row says how many bytes that were allocated in each of `stages` are in use; `during` says in which stage
    the event itself fell, as an index of `stages`.
    """

    stages: tuple[str, ...]
    live: NDArray[np.int64]
    during: NDArray[np.int64]

    @property
    def peak(self) -> int:
        """The most bytes in use at once."""
        return int(self.live.sum(1).max(initial=0))


def record(work: Callable[[], object], stages: tuple[str, ...]) -> Timeline:
    """Run `work` and follow its allocations; what is outside of any stage belongs to the first of `stages`.

    >>> import torch
    >>> def work():
    ...     kept = torch.zeros(100)  # 400 bytes
    ...     with stage("second"):
    ...         torch.zeros(50)  # 200, at once released
    ...     return kept
    >>> line = record(work, ("first", "second"))
    >>> line.live.tolist(), line.during.tolist(), line.peak
    ([[400, 0], [400, 200], [400, 0], [0, 0]], [0, 1, 1, 0], 600)
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler talks on stderr
    with profiler.profile(use_kineto=False, profile_memory=True) as profile:
        work()
    assert profile.kineto_results is not None  # noqa: S101 - set at the end of every profile
    events = _events(profile.kineto_results.experimental_event_tree(), stages[0])
    places = {name: place for place, name in enumerate(stages)}
    changes: list[tuple[int, int, int]] = []  # where the event falls, whose bytes change, by how many
    homes: dict[int, int] = {}
    first = 0
    for _, stage_name, pointer, size, marker in events:
        if not marker:
            now = places[stage_name]
            if size > 0:
                homes[pointer] = home = now
            else:
                home = homes.pop(pointer, 0)  # 0: it was allocated before the work began
            changes.append((now, home, size))
        elif marker == _BEGIN:
            first, places = len(changes), {name: place for place, name in enumerate(stages)}
        else:
            before, after = marker.removeprefix(_TURN).split(":")
            places[before] = places[after]
    changes = changes[first:]
    live = np.zeros((len(changes), len(stages)), np.int64)
    for row, (_, home, size) in enumerate(changes):
        live[row, home] = size
    return Timeline(stages, live.cumsum(0), np.array([change[0] for change in changes], np.int64))


# When it was, the stage around it, the address, bytes (below 0: released), and a marker's name or "".
_Event = tuple[int, str, int, int, str]


def _events(tree: list[Any], stage_name: str) -> list[_Event]:
    """Return allocations, releases and markers in the order of time."""
    found: list[_Event] = []
    waiting = [(tree, stage_name)]
    allocation, operator = _EventType.Allocation, _EventType.TorchOp
    while waiting:
        events, own = waiting.pop()
        for event in events:
            tag = event.tag
            if tag == allocation:
                fields = event.extra_fields
                found.append((event.start_time_ns, own, fields.ptr, fields.alloc_size, ""))
                continue
            inner = own
            if tag == operator:
                name = event.name
                if name.startswith(_PREFIX):
                    if not name.startswith(_STAGE):
                        found.append((event.start_time_ns, own, 0, 0, name))
                        continue
                    inner = name.removeprefix(_STAGE)
            children = event.children
            if children:
                waiting.append((children, inner))
    found.sort(key=lambda event: event[0])
    return found
