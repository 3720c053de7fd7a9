"""Name the machine, the versions and the commit that a result comes from."""

import os
import platform
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def describe_machine() -> str:
    """Return one Markdown paragraph."""
    model = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - git is found on the path on purpose
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    names = ("numpy", "pandas", "polars", "torch")
    versions = ", ".join(f"{name} {version(name)}" for name in names if find_spec(name))
    return (
        f"Machine: {model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, "
        f"load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, {versions}; commit {commit}."
    )
