"""Name the machine, the versions and the commit that a result comes from."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """Give one Markdown paragraph."""
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
    names = ("numpy", "polars", "pandas", "torch")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"Machine: {model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}; "
        f"Python {platform.python_version()}, {versions}; commit {commit}."
    )
