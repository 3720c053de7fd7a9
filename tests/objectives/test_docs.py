"""The page on objectives runs."""

import doctest
from pathlib import Path


def test_the_ten_line_example_trains():
    """Every example of docs/objectives.md gives the output printed there."""
    page = Path(__file__).parents[2] / "docs" / "objectives.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert tried >= 8
