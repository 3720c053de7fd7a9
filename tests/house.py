"""Reading the source of budgetrec: its modules, and where they branch on an objective or a sampler."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import budgetrec
from budgetrec.objectives.registry import OBJECTIVES
from budgetrec.samplers.registry import SAMPLERS

ROOT = Path(budgetrec.__file__).parent
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__main__.py"  # to import it is to run it
}
NAMES = frozenset(OBJECTIVES) | frozenset(SAMPLERS)
_WHOLE = (frozenset(OBJECTIVES), frozenset(SAMPLERS), NAMES)  # to check that a name is known is no branch
_OWN = ("budgetrec.objectives", "budgetrec.samplers")
_LOOKUPS = {"get", "pop", "setdefault", "index", "count", "startswith", "endswith", "eq", "ne", "is_in"}


@cache
def tree_of(file: str) -> ast.Module:
    """Parse a file of the package once."""
    return ast.parse(SOURCES[file])


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of a kind in the package, with its file."""
    for file in SOURCES:
        yield from ((file, node) for node in ast.walk(tree_of(file)) if isinstance(node, kind))


@cache
def namespace(file: str) -> dict[str, object]:
    """Return what names mean in a file, those imported inside functions or for types alone too."""
    module = ".".join(("budgetrec", *Path(file).with_suffix("").parts)).removesuffix(".__init__")
    found: dict[str, object] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("budgetrec"):
            origin = importlib.import_module(node.module or "")
            for each in node.names:
                found[each.asname or each.name] = getattr(origin, each.name, None)
    return found | vars(importlib.import_module(module))


def branches(tree: ast.AST, names: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield line and source where a tree decides by the name or class of an objective or sampler.

    Decisions are comparisons, patterns, lookups by a name, dictionaries from names, and questions for a
    class. A name as a default, an argument or a value in a list or dictionary decides nothing.
    """
    local = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id not in names
    }
    reader = _Reader(names, local)
    for node in ast.walk(tree):
        if reader.decides(node):
            yield node.lineno, ast.unparse(node)


class _Reader:
    """Knows what expressions stand for."""

    def __init__(self, names: Mapping[str, object], local: Mapping[str, ast.expr]) -> None:
        self.names, self.local = names, local

    def decides(self, node: ast.AST) -> bool:
        match node:
            case ast.Compare():
                sides = (node.left, *node.comparators)
                return any(self.names_one(side) or self.is_own_class(side) for side in sides)
            case ast.MatchValue(value=value):
                return self.names_one(value)
            case ast.MatchMapping(keys=keys):
                return any(map(self.names_one, keys))
            case ast.MatchClass(cls=kind):
                return self.is_own_class(kind)
            case ast.Subscript(value=ast.Name(id="Literal")):
                return False
            case ast.Subscript(slice=key):
                return self.names_one(key)
            case ast.Dict(keys=keys):
                return any(key is not None and self.names_one(key) for key in keys)
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                return any(each.arg in NAMES for each in keywords)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                return self.is_own_class(kind)
            case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in _LOOKUPS:
                return self.names_one(first)
        return False

    def names_one(self, node: ast.expr) -> bool:
        """Whether an expression is the name of one, or a collection that holds some names but not all."""
        return _is_name(self.value(node))

    def value(self, node: ast.expr) -> object:
        """Return what an expression stands for if that can be read off, else None."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return tuple(map(self.value, parts))
            case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list"), args=[inner]):
                return self.value(inner)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name) if isinstance(
                self.local.get(name), ast.Constant | ast.Tuple | ast.List | ast.Set
            ):
                return self.value(self.local[name])
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in self.names:
                return getattr(self.names[name], attr, None)
        return None

    def is_own_class(self, node: ast.expr) -> bool:
        """Whether an expression is a class from objectives or samplers, or a choice among such."""
        match node:
            case ast.BinOp(left=left, right=right):
                return self.is_own_class(left) or self.is_own_class(right)
            case ast.Tuple(elts=parts):
                return any(map(self.is_own_class, parts))
        value = self.value(node)
        return isinstance(value, type) and value.__module__.startswith(_OWN)


def _is_name(value: object) -> bool:
    if isinstance(value, str):
        return value in NAMES
    if isinstance(value, tuple | list | set | frozenset | dict):
        held = {each for each in value if isinstance(each, str)}
        return bool(held & NAMES) and held not in _WHOLE
    return False
