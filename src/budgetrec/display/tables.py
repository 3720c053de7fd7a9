"""Tables as text: one renderer of Markdown, for the shell's tables and for those of the studies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl

_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
    }
)


@dataclass(frozen=True)
class Text:
    """What a place in a table says."""

    words: str
    bold: bool = False

    def to_markdown(self) -> str:
        """Return it for Markdown."""
        (words,) = _escaped([self.words])
        return f"**{words}**" if self.bold and words else words

    @classmethod
    def from_markdown(cls, text: str) -> Self:
        """Read what `to_markdown` wrote."""
        bold = len(text) > 4 and text.startswith("**") and text.endswith("**")
        return cls((text[2:-2] if bold else text).replace(r"\|", "|"), bold)

    def to_latex(self) -> str:
        """Return it for LaTeX."""
        words = self.words.translate(_LATEX).replace("±", r"$\pm$")
        return rf"\textbf{{{words}}}" if self.bold and words else words


@dataclass(frozen=True)
class TextTable:
    """Column names, rows of text, and what stands above; the first `num_words` columns are words."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    num_words: int = 1

    def to_markdown(self) -> str:
        """Return the table as Markdown with its title as a heading."""
        return f"## {self.title}\n\n" + _markdown(
            _escaped(self.columns), map(_escaped, self.rows), self.num_words
        )


@dataclass(frozen=True)
class StudyTable:
    """Column names and rows of text, with the frame that they were made of.

    The first `num_words` columns are words, the others numbers. Wherever the first column changes, LaTeX
    draws a line.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Text, ...]]
    frame: pl.DataFrame
    num_words: int = 1

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rows = [[each.to_markdown() for each in row] for row in self.rows]
        return _markdown(self.columns, rows, self.num_words)

    @classmethod
    def from_markdown(cls, text: str) -> Self:
        """Read what `to_markdown` wrote; the frame is not in it. Anything else is a ValueError."""
        lines = text.splitlines()
        if len(lines) < 2 or not all(line.startswith("|") and line.endswith("|") for line in lines):
            raise ValueError("it holds something other than a table")
        # An empty place is two spaces, of which a neighbour's bar takes one: no bar is missed.
        columns, *rows = ([*line[2:-2].split(" | ")] for line in (lines[0], *lines[2:]))
        if any(len(row) != len(columns) for row in rows):
            raise ValueError(f"not every row has {len(columns)} columns")
        return cls(
            tuple(columns),
            [tuple(map(Text.from_markdown, row)) for row in rows],
            pl.DataFrame(),
            num_words=lines[1].strip("|").split("|").count("---"),
        )

    def to_latex(self) -> str:
        """Return the table as a `tabular` for the package booktabs."""
        kinds = "l" * self.num_words + "r" * (len(self.columns) - self.num_words)
        head = " & ".join(Text(name).to_latex() for name in self.columns)
        lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        before = self.rows[0][0] if self.rows else None
        for row in self.rows:
            if row[0] != before:
                lines.append(r"\midrule")
                before = row[0]
            lines.append(" & ".join(each.to_latex() for each in row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], num_words: int) -> str:
    rule = ["---"] * num_words + ["---:"] * (len(columns) - num_words)
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, f"|{'|'.join(rule)}|", *body]) + "\n"


def _escaped(cells: Iterable[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in cells]


def spread(mean: float | None, deviation: float | None, digits: int) -> str:
    """Write a mean with its deviation, as far as both are known.

    >>> spread(0.18349, 0.0021, 3), spread(0.18349, None, 3), spread(None, None, 3)
    ('0.183 ± 0.002', '0.183', '')
    """
    if mean is None:
        return ""
    return f"{mean:,.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def best_of(values: Sequence[float | None], *, largest: bool) -> int | None:
    """Return the place of the best value, None if there is none.

    >>> best_of([3.0, None, 1.0], largest=False)
    2
    """
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return None
    return (max(known, key=lambda each: each[0]) if largest else min(known))[1]
