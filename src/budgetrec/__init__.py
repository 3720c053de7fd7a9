"""Train sequential recommenders inside a memory budget."""

from budgetrec._version import __version__

__all__ = ["__version__"]
