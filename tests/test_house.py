"""The rules of the house that neither ruff, mypy nor import-linter can hold."""

import ast
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import budgetrec
from budgetrec.objectives.modules import SampledSoftmax
from tests.house import ROOT, SOURCES, branches, namespace, nodes, tree_of

# Where a word is an objective's or a sampler's name by chance: the file, the source, and what it is instead.
OTHER_MEANINGS: dict[tuple[str, str], str] = {}
LONGEST_FILE = 450
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MOST_PARAMETERS = 14
# Names that say which part of a pair of packages a file is; the pairs are built alike on purpose.
SHARED_NAMES = {"__init__.py", "contract.py", "registry.py", "specification.py"}


def test_nobody_but_their_packages_decides_by_an_objective_or_sampler():
    """A new objective or sampler needs its file and its line in a registry, and no other change."""
    found = [
        f"{file}:{line}: {source}"
        for file in SOURCES
        if not file.startswith(("objectives/", "samplers/"))
        for line, source in branches(tree_of(file), namespace(file))
        if (file, source) not in OTHER_MEANINGS
    ]
    assert not found, "\n".join(found)


def test_every_other_meaning_is_still_there():
    """An exception that nothing needs any more is taken out."""
    seen = {
        (file, source) for file, _ in OTHER_MEANINGS for _, source in branches(tree_of(file), namespace(file))
    }
    assert set(OTHER_MEANINGS) == seen & set(OTHER_MEANINGS)


@pytest.mark.parametrize(
    "source",
    [
        "config.objective == 'bce'",
        "'full-softmax' != name",
        "name in ('sce', 'rece')",
        "name in frozenset({'sce', 'rece'})",
        "name not in DRAWN",
        "name == ONE",
        "name == constants.ONE",
        "drawn = ['bce', 'gbce']\nif name in drawn: pass",
        "match name:\n    case 'kernel' | 'mixed': pass",
        "match options:\n    case {'bce': x}: pass",
        "match objective:\n    case SampledSoftmax(): pass",
        "table['in-batch']",
        "table[ONE]",
        "table.get('in-batch', 0)",
        "name.startswith('log-uniform')",
        "column.is_in(['bce', 'gbce'])",
        "labels = {'gbce': 'gBCE'}",
        "labels = dict(bce='BCE')",
        "isinstance(objective, SampledSoftmax)",
        "isinstance(objective, int | SampledSoftmax)",
        "issubclass(kind, (int, SampledSoftmax))",
        "type(objective) is SampledSoftmax",
        "type(objective) in (int, SampledSoftmax)",
    ],
)
def test_a_decision_by_name_or_class_is_seen(source):
    """Each way to decide by an objective or sampler is found."""
    constants = types.SimpleNamespace(ONE="bce")
    names = {"DRAWN": ("bce", "gbce"), "ONE": "bce", "constants": constants, "SampledSoftmax": SampledSoftmax}
    assert list(branches(ast.parse(source), names))


@pytest.mark.parametrize(
    "source",
    [
        "def f(objective: str = 'sampled-softmax', sampler='uniform'): pass",
        "train(data, objective='full-softmax')",
        "preset = {'objective': 'gbce', 'sampler': 'popularity'}",
        "settings = ['bce', 'gbce']\nfor name in settings: run(name)",
        "kind: Literal['bce', 'gbce']",
        "OBJECTIVES[name].build(parts)",
        "name in EVERY",
        "isinstance(value, str)",
        "name == 'adam'",
    ],
)
def test_naming_one_is_no_decision(source):
    """Defaults, arguments, presets, studies' settings and lookups in a registry are allowed."""
    from budgetrec.objectives.registry import OBJECTIVES

    names = {"OBJECTIVES": OBJECTIVES, "EVERY": tuple(OBJECTIVES)}
    assert not list(branches(ast.parse(source), names))


def test_public_signatures_are_typed():
    """No public name takes or returns `Any`, leaves an annotation out, or takes `**kwargs`."""
    found = [f"{owner}: {fault}" for owner, member in _public_callables() for fault in _faults(member)]
    assert not found, "\n".join(found)


def test_an_untyped_signature_is_seen():
    """Each fault is named."""

    def bad(a, b: dict[str, typing.Any], **rest: int): ...

    assert list(_faults(bad)) == ["a has no type", "b is Any", "**rest", "no type is returned"]


@pytest.mark.parametrize("name", ["Allocation", "Cell"])
def test_a_record_has_one_home(name):
    """There is one record for an allocation, and one thing that is called a cell."""
    homes = [file for file, node in nodes(ast.ClassDef) if node.name == name]
    assert len(homes) == 1, "\n".join(homes)


def test_a_file_name_says_which_file_it_is():
    """No two packages have files of one name; commands are named as what they run, so they do not count."""
    homes: dict[str, dict[str, str]] = {}
    for file in SOURCES:
        if not file.startswith("cli/") and Path(file).name not in SHARED_NAMES:
            homes.setdefault(Path(file).name, {})[file.split("/")[0]] = file
    found = [", ".join(files.values()) for files in homes.values() if len(files) > 1]
    assert not found, "\n".join(found)


def test_docstrings_do_not_give():
    """A docstring says that something returns."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [
        f"{file}:{node.lineno}"
        for file, node in nodes(kinds)
        if (ast.get_docstring(node) or "").startswith("Give ")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("words", ["a set a ", "to the same bits", "so many (?!of )"])
def test_english_is_idiomatic(words):
    """Say one set per sequence, bit for bit, and numbers by their names."""
    found = [
        f"{file}:{number}: {line.strip()}"
        for file, text in SOURCES.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"\b{words}", line, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_files_are_short():
    """A file holds one idea."""
    lengths = {file: len(text.splitlines()) for file, text in SOURCES.items()}
    found = [f"{file} has {length} lines" for file, length in lengths.items() if length > LONGEST_FILE]
    assert not found, "\n".join(found)


def test_functions_take_few_arguments():
    """More than that is a record; commands are excepted, as each flag is a parameter."""
    found = [
        f"{file}:{node.lineno}: {node.name} takes {count}"
        for file, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef))
        if not file.startswith("cli/") and (count := _count_parameters(node.args)) > MOST_PARAMETERS
    ]
    assert not found, "\n".join(found)


def _count_parameters(arguments: ast.arguments) -> int:
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield every public function, method, property and record of the package, with its name."""
    values = {name: getattr(budgetrec, name) for name in budgetrec.__all__}
    for name, value in list(values.items()):
        if inspect.ismodule(value):
            values |= {f"{name}.{each}": getattr(value, each) for each in value.__all__}
    for name, value in values.items():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            yield from ((f"{name}.{part}", member) for part, member in _members(value))


def _members(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for owner in kind.__mro__:
        if not owner.__module__.startswith("budgetrec"):
            continue
        for name, member in vars(owner).items():
            if isinstance(member, property):
                member = member.fget
            elif isinstance(member, classmethod | staticmethod):
                member = member.__func__
            own = inspect.isfunction(member) and member.__module__.startswith("budgetrec")
            if own and (name == "__init__" or not name.startswith("_")):
                yield name, member


def _faults(function: Callable[..., object]) -> Iterator[str]:
    """Name what is wrong with a signature."""
    file = Path(inspect.getfile(function))
    known = namespace(file.relative_to(ROOT).as_posix()) if file.is_relative_to(ROOT) else None
    hints = typing.get_type_hints(function, known)
    for place, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if parameter.kind is parameter.VAR_KEYWORD:
            yield f"**{name}"
        elif name in hints:
            yield from (f"{name} is Any",) if _holds_any(hints[name]) else ()
        elif place or name not in ("self", "cls"):
            yield f"{name} has no type"
    if "return" not in hints:
        yield "no type is returned"
    elif _holds_any(hints["return"]):
        yield "Any is returned"


def _holds_any(hint: object) -> bool:
    origin = typing.get_origin(hint)
    if getattr(origin, "__module__", "").startswith("numpy"):
        return False  # numpy's own arrays say Any for their shape
    return hint is typing.Any or any(map(_holds_any, typing.get_args(hint)))


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_names_that_exist(script):
    """Benchmarks run seldom, so a name that has moved is found here and not by whoever needs a figure."""
    missing = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("budgetrec"):
            if importlib.util.find_spec(node.module) is None:
                missing.append(node.module)
                continue
            module = importlib.import_module(node.module)
            missing += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not hasattr(module, alias.name)
                and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
            ]
    assert not missing
