"""Pages point at what is there: files, headings, modules and names."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "budgetrec"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES = {
    path.name for folder in (SOURCE, ROOT / "tests", ROOT / "benchmarks") for path in folder.rglob("*.py")
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@each_page
def test_every_link_leads_somewhere(page):
    """A relative link names a file or folder that exists, and a heading that its page has."""
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_every_file_of_ours_that_is_named_exists(page):
    """`objectives/registry.py` is a file of the project, or of the package; `noise.py` is one somewhere."""
    for name in re.findall(r"`([\w/.]+\.py)\b[^`]*`", page.read_text("utf-8")):
        if re.search("[A-Z]", name):  # a placeholder such as study/NAME.py
            continue
        found = name in FILES if "/" not in name else any((top / name).exists() for top in (ROOT, SOURCE))
        assert found, name


def test_every_test_that_the_theory_names_exists():
    """Each result names the tests that show it, and they are there."""
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "theory.md").read_text("utf-8")))
    assert len(named) > 30
    assert not named - set(re.findall(r"def (test_\w+)", tests))


@each_page
def test_every_name_of_the_package_can_be_imported(page):
    """`budgetrec.probe.measure_noise` is a module, or a name that one has."""
    for name in re.findall(r"\bbudgetrec(?:\.[A-Za-z_]\w*)+", page.read_text("utf-8")):
        assert is_there(name), name


def is_there(name: str) -> bool:
    """Say whether a dotted name leads to something, by way of modules and then attributes."""
    place = importlib.import_module("budgetrec")
    for depth, part in enumerate(name.split(".")[1:], start=2):
        if not hasattr(place, part):
            try:
                importlib.import_module(".".join(name.split(".")[:depth]))
            except ModuleNotFoundError:
                return False
        place = getattr(place, part)
    return True


def test_the_readme_is_short_and_comes_to_the_point():
    """At most 150 lines, with Python among the first 60."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert "```python" in lines[:60]
