"""Names that a package imports when they are first used, so that `--help` does not wait for torch."""

from collections.abc import Callable, Mapping
from importlib import import_module


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package whose names live in the modules that `homes` names."""

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
