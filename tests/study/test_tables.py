import polars as pl

from budgetrec.study.paired import compare_pairs
from budgetrec.study.published import ALLOCATIONS, DATASETS, LEARNING_RATES, OPTIMIZERS, printed
from budgetrec.study.tables import StudyTable, Text


def test_a_table_is_markdown_and_latex():
    """Bars and per cents are escaped, the best is bold, and a line parts the groups."""
    rows = [(Text("a|b"), Text("1 ± 2", bold=True)), (Text("c_d"), Text("50%"))]
    table = StudyTable(("name", "value"), rows, pl.DataFrame())
    assert table.to_markdown() == "| name | value |\n|---|---:|\n| a\\|b | **1 ± 2** |\n| c_d | 50% |\n"
    latex = table.to_latex()
    assert "a|b & \\textbf{1 $\\pm$ 2} \\\\\n\\midrule\nc\\_d & 50\\% \\\\" in latex
    assert latex.startswith("\\begin{tabular}{lr}\n\\toprule")


def test_the_printed_numbers_are_complete():
    """Four datasets, two optimisers and three allocations; the AUL of MovieLens-20M falls as 4 : 2 : 1."""
    rows = {
        (name, optimizer, pair): printed(name, optimizer, *pair)
        for name in DATASETS
        for optimizer in OPTIMIZERS
        for pair in ALLOCATIONS
    }
    assert len(rows) == 24
    assert None not in rows.values()
    assert LEARNING_RATES.keys() == {(name, optimizer) for name in DATASETS for optimizer in OPTIMIZERS}
    areas = [rows["MovieLens-20M", "adam", pair].aul for pair in ALLOCATIONS]
    assert areas == [414.1, 218.6, 111.6]
    assert printed("elsewhere", "adam", 32, 512) is None


def test_pairs_are_compared_over_the_seeds_they_share():
    """Differences 1, 2 and 3 have mean 2 and d_z 2; one shared seed is not compared; p is adjusted."""
    first, second = {0: 0.0, 1: 0.0, 2: 0.0}, {0: 1.0, 1: 2.0, 2: 3.0, 9: 100.0}
    rows = compare_pairs(
        [({"name": "a"}, first, second), ({"name": "b"}, first, first), ({"name": "c"}, first, {0: 1.0})]
    )
    assert [row["name"] for row in rows] == ["a", "b"]
    assert rows[0]["difference"] == rows[0]["effect"] == 2.0
    assert rows[0]["p_adjusted"] == 2 * rows[0]["p_value"]
    assert (rows[1]["effect"], rows[1]["p_adjusted"]) == (None, 1.0)
