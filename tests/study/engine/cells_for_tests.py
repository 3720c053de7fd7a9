"""Cells that tests run in other processes, which import them by name."""

import os
import signal
from pathlib import Path
from typing import Any

import torch

from budgetrec.study.engine.grid import Outcome


def square(settings: dict[str, Any], places: dict[str, str], folder: Path) -> Outcome:
    """Square a number, and note in the folder that it was done."""
    number = settings["number"]
    with (folder / "calls.txt").open("a") as calls:
        calls.write(f"{number}\n")
    if number == settings.get("wrong"):
        raise ValueError(f"{number} is wrong")
    if number == settings.get("deadly") and not (folder / "spared").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(number)).exp().sum()
    return Outcome(values={"square": number**2, "noise": float(noise)}, measured={"pid": os.getpid()})
