"""One name for one thing, in the shell and on the page."""

import re
from pathlib import Path

from budgetrec.display.colours import curve_colours
from budgetrec.display.words import MEMORY_NAMES, NOISE_NAMES, SHARING_NAMES
from budgetrec.planner.plan import NOISE, PARTS


def test_every_part_of_memory_and_source_of_noise_has_its_name():
    """Names stand in the plan's own order, and no two parts share one."""
    assert tuple(MEMORY_NAMES) == PARTS
    assert tuple(NOISE_NAMES) == NOISE
    names = [*MEMORY_NAMES.values(), *NOISE_NAMES.values()]
    assert len(set(names)) == len(names)


def test_the_docs_use_the_same_words():
    """The table in docs/notation.md has every key with its words, in the plan's own order."""
    page = (Path(__file__).parents[2] / "docs" / "notation.md").read_text("utf-8")
    section = page.partition("## Parts of memory and sources of noise")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)) == MEMORY_NAMES | NOISE_NAMES
    for words in SHARING_NAMES.values():
        assert f"*{words}*" in section


def test_eight_curves_have_colours_of_their_own():
    """The ninth begins again."""
    colours = curve_colours(9)
    assert len(set(colours[:8])) == 8
    assert colours[8] == colours[0]
