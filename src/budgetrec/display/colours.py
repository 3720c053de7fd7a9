"""Okabe and Ito's colours: told apart with any kind of colour vision."""

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
AMBER, SKY, YELLOW = "#E69F00", "#56B4E9", "#F0E442"
BLACK, GREY = "#000000", "#999999"
_CURVES = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, BLACK, YELLOW)


def curve_colours(count: int) -> list[str]:
    """Return a colour for each of `count` curves; more curves than colours share them.

    >>> curve_colours(9)[0] == curve_colours(9)[8] == BLUE
    True
    """
    return [_CURVES[place % len(_CURVES)] for place in range(count)]
