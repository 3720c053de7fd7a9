"""One name for one thing, in the shell and on the page."""

from budgetrec.display.colours import curve_colours
from budgetrec.display.words import MEMORY_NAMES, NOISE_NAMES
from budgetrec.planner.plan import NOISE, PARTS


def test_every_part_of_memory_and_source_of_noise_has_its_name():
    """Names stand in the plan's own order, and no two parts share one."""
    assert tuple(MEMORY_NAMES) == PARTS
    assert tuple(NOISE_NAMES) == NOISE
    names = [*MEMORY_NAMES.values(), *NOISE_NAMES.values()]
    assert len(set(names)) == len(names)


def test_eight_curves_have_colours_of_their_own():
    """The ninth begins again."""
    colours = curve_colours(9)
    assert len(set(colours[:8])) == 8
    assert colours[8] == colours[0]
