import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.display.tables import StudyTable, Text
from budgetrec.study.engine.paired import compare_pairs
from budgetrec.study.table.comparisons import compare, tell
from budgetrec.study.table.firsts import find_firsts, firsts_table, tell_firsts
from budgetrec.theory.paper.published import ALLOCATIONS, DATASETS, LEARNING_RATES, OPTIMIZERS, printed


def test_a_table_is_markdown_and_latex():
    """Bars and per cents are escaped, the best is bold, and a line parts the groups."""
    rows = [(Text("a|b"), Text("1 ± 2", bold=True)), (Text("c_d"), Text("50%"))]
    table = StudyTable(("name", "value"), rows, pl.DataFrame())
    assert table.to_markdown() == "| name | value |\n|---|---:|\n| a\\|b | **1 ± 2** |\n| c_d | 50% |\n"
    latex = table.to_latex()
    assert "a|b & \\textbf{1 $\\pm$ 2} \\\\\n\\midrule\nc\\_d & 50\\% \\\\" in latex
    assert latex.startswith("\\begin{tabular}{lr}\n\\toprule")


_WORDS = st.text(st.sampled_from("ab|\\ ±,0"), max_size=6).map(str.strip)


@given(
    rows=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.tuples(*[st.builds(Text, _WORDS, st.booleans())] * width), min_size=1, max_size=4
        )
    )
)
def test_a_table_reads_back_as_it_was_written(rows):
    """Bars, backslashes and empty places come back; of an empty place nobody can see that it was bold."""
    columns = tuple(f"c{place}" for place in range(len(rows[0])))
    table = StudyTable(columns, rows, pl.DataFrame(), num_words=len(columns) - 1)
    read = StudyTable.from_markdown(table.to_markdown())
    assert (read.columns, read.num_words) == (columns, len(columns) - 1)
    assert list(read.rows) == [
        tuple(Text(text.words, text.bold and text.words != "") for text in row) for row in rows
    ]


@pytest.mark.parametrize("text", ["", "words", "| a |\n|---|\n| b | c |\n", "| a |\n|---|\n\nwords\n"])
def test_other_text_is_no_table(text):
    """What is not a table, or not all of it, is refused."""
    with pytest.raises(ValueError, match=r"table|row"):
        StudyTable.from_markdown(text)


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


def _runs(*, second: float, seeds=(0, 1, 2)):
    """Return runs of two allocations with either loss; corrected ones score `second` more in NDCG."""
    return pl.DataFrame(
        [
            {
                "dataset": "d",
                "optimizer": "adam",
                "loss": loss,
                "sharing": "batch",
                "batch_size": n,
                "num_negatives": 64 // n,
                "seed": seed,
                "test_ndcg": 0.1 * n
                + 0.01 * seed
                + (second * (1 + 0.1 * seed) if loss == "corrected" else 0),
                "val": -float(n),
            }
            for loss in ("vanilla", "corrected")
            for n in (1, 2)
            for seed in seeds
        ]
    )


def test_two_values_of_a_setting_are_compared_in_each_configuration_and_together():
    """Differences of 0.02, 0.022 and 0.024 have mean 0.022 in both allocations and on average."""
    metrics = {"test_ndcg": "NDCG", "val": "loss"}
    table = compare(_runs(second=0.02), by="loss", first="vanilla", second="corrected", metrics=metrics)
    ndcg = table.frame.filter(metric="test_ndcg")
    assert ndcg["difference"].to_list() == pytest.approx([0.022] * 3)
    assert ndcg["batch_size"].to_list() == [1, 2, None]
    assert ndcg["first"].to_list() == pytest.approx([0.11, 0.21, 0.16])
    assert table.frame.filter(metric="val")["p_value"].to_list() == [1.0] * 3
    assert [text.words for text in table.rows[2][:5]] == ["d", "adam", "all together", "", "NDCG"]
    told = tell(
        table.frame, second="Corrected", metrics={"test_ndcg": ("NDCG", True), "val": ("loss", False)}
    )
    assert told.startswith("Corrected is better in 2 of 2 by NDCG and in 0 of 2 by loss.")
    assert "in 3 of 6 comparisons after" in told


def test_one_seed_or_one_value_alone_is_not_compared():
    """Without two pairs there is no test, and without a second value nothing to compare."""
    metrics = {"test_ndcg": "NDCG"}
    alone = _runs(second=0.1, seeds=(0,))
    assert compare(alone, by="loss", first="vanilla", second="corrected", metrics=metrics) is None
    assert compare(_runs(second=0.1), by="sharing", first="batch", second="sequence", metrics=metrics) is None


def test_a_measure_puts_first_what_is_best_by_it():
    """More NDCG and less loss is better; the plan is named where it is better than the paper's best."""
    results = pl.DataFrame(
        {
            "dataset": ["d"] * 3,
            "optimizer": ["adam"] * 3,
            "loss": ["vanilla"] * 3,
            "sharing": ["batch"] * 3,
            "source": ["paper", "paper", "budgetrec plan"],
            "batch_size": [32, 128, 20],
            "num_negatives": [512, 128, 900],
            "ndcg": [0.3, 0.1, 0.2],
            "aul": [4.0, 3.0, 2.0],
            "printed_aul": [1.0, 2.0, None],
        }
    )
    group, titles = ["dataset", "optimizer", "loss", "sharing"], {"ndcg": "NDCG", "aul": "AUL"}
    firsts = find_firsts(
        results, group=group, measures={"ndcg": True, "aul": False}, printed={"aul": "printed_aul"}
    )
    assert firsts["first"].to_list() == ["(32, 512)", "(128, 128)"]
    assert firsts["plan_ahead"].to_list() == [False, True]
    table = firsts_table(firsts, group=group, titles=titles, words={"batch": "shared"})
    assert table.columns[3:] == ("negatives", "NDCG", "AUL", "AUL, printed")
    assert [text.words for text in table.rows[0][3:]] == [
        "shared",
        "(32, 512)",
        "plan, (128, 128)",
        "(32, 512)",
    ]
    assert tell_firsts(firsts, titles) == [
        "Of the paper's allocations these come first in 1 settings: by NDCG (32, 512) in 1; "
        "by AUL (128, 128) in 1.",
        "The planner's row is better than all of them by NDCG in 0; by AUL in 1 of 1.",
    ]


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
