"""What a run was made with: machine, versions and command, without the name of host or user."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from budgetrec._version import __version__
from budgetrec.files import write_whole
from budgetrec.runs.layout import ENVIRONMENT

_LIBRARIES = ("torch", "numpy", "polars")


def describe_environment(arguments: Sequence[str] | None = None) -> dict[str, object]:
    """Return machine, versions, time and command line; `arguments` are those of this process if not given."""
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": clean_command(sys.argv if arguments is None else arguments),
        "budgetrec": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_environment(folder: Path, arguments: Sequence[str] | None = None) -> None:
    """Write `environment.json` into the folder of a run or a study, whole or not at all."""
    text = json.dumps(describe_environment(arguments), indent=2) + "\n"
    write_whole(folder / ENVIRONMENT, lambda path: path.write_text(text, "utf-8"))


def clean_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the program's bare name and `~` for the user's home.

    >>> clean_command(["/opt/venv/bin/budgetrec", "train", f"{Path.home()}/films", "--output=run"])
    ['budgetrec', 'train', '~/films', '--output=run']
    """
    if not arguments:
        return []
    name = Path(arguments[0]).name
    home = str(Path.home())
    cleaned = arguments[1:] if home in ("/", "") else [text.replace(home, "~") for text in arguments[1:]]
    return ["budgetrec" if name == "__main__.py" else name, *cleaned]


def command_text(environment: Mapping[str, object] | None) -> str:
    """Return the command as one would type it; nothing where it was not kept."""
    command = (environment or {}).get("command")
    return shlex.join(str(part) for part in command) if isinstance(command, list) else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _cores() -> int | None:
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))  # those that this process may use
    return os.cpu_count()


def _memory_bytes() -> int | None:
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
