"""A page as a browser's parser sees it: its elements, its text and the charts in it."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Parsed(HTMLParser):
    """Collects elements with their attributes, the text outside of scripts, and each script's text."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    inside: str = ""

    def __post_init__(self) -> None:
        """Start the parser."""
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        self.inside = ""

    def handle_data(self, data: str) -> None:
        """Note text."""
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text.append(data)

    def handle_comment(self, data: str) -> None:
        """Note a comment, of which a page has none."""
        self.comments.append(data)

    @property
    def tags(self) -> list[str]:
        """The names of all elements in order."""
        return [tag for tag, _ in self.elements]

    @property
    def words(self) -> str:
        """All text that is shown."""
        return " ".join(self.text)

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The chart specifications of the page."""
        return [chart["spec"] for chart in json.loads(self.scripts[0])] if len(self.scripts) > 1 else []


def parse(page: str) -> Parsed:
    """Parse a whole page."""
    parsed = Parsed()
    parsed.feed(page)
    parsed.close()
    return parsed
