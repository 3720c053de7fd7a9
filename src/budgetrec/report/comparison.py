"""What a comparison writes into its folder: numbers, tables and figures."""

import json
from pathlib import Path

from budgetrec.display.curves_chart import draw_curves
from budgetrec.display.evaluation_text import comparison_tables, how_measured
from budgetrec.evaluation.compare import Comparison

MARKER = "comparison.json"
FILES = (MARKER, "*.csv", "*.md", "*.svg", "*.html")  # what a comparison writes, and may replace


def write_comparison(folder: Path, comparison: Comparison) -> list[str]:
    """Write JSON, CSV, Markdown, and the curves as SVG and as an offline page; return the files' names."""
    document = json.dumps(comparison.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
    texts = {MARKER: document + "\n", "curves.csv": comparison.curves.write_csv()}
    for name in ("runs", "users", "seeds"):
        frame = getattr(comparison, name)
        if not frame.is_empty():
            texts[f"{name}.csv"] = frame.write_csv()
    measured = how_measured(comparison.part, keep_seen=comparison.keep_seen)
    parts = [table.to_markdown() for table in comparison_tables(comparison)]
    texts["comparison.md"] = "\n".join(["# Comparison\n", f"{measured}\n", *parts])
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    chart = draw_curves(comparison.curves, comparison.horizons)
    chart.save(str(folder / "curves.svg"))
    chart.save(str(folder / "curves.html"), inline=True, json_kwds={"cls": _InsideScript})
    return [*texts, "curves.svg", "curves.html"]


class _InsideScript(json.JSONEncoder):
    """Writes JSON that cannot end the script it stands in, whatever a run is called."""

    def encode(self, o: object) -> str:
        """Encode, with a backslash before the slash of every closing tag; JSON reads that the same."""
        return super().encode(o).replace("</", "<\\/")
