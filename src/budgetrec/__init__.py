"""Train sequential recommenders inside a memory budget."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from budgetrec._version import __version__

if TYPE_CHECKING:
    from budgetrec import samplers
    from budgetrec.objectives import SampledSoftmax

__all__ = ["SampledSoftmax", "__version__", "samplers"]

# Names that need torch are imported when first asked for, so that `import budgetrec` and `--help` stay quick.
_LAZY = {"SampledSoftmax": "budgetrec.objectives", "samplers": "budgetrec.samplers"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'budgetrec' has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
