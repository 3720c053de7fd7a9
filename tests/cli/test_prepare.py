"""The commands print what they did, for people and for programs."""

import json

from tests.conftest import write_csv

ROWS = [(u, i, 100 * u + i) for u in range(1, 7) for i in range(u)]


def test_prepare_prints_steps_and_statistics(budgetrec, tmp_path):
    """Rows in and out of each step, then users, items, interactions."""
    path = write_csv(tmp_path / "e.csv", ROWS)
    answer = budgetrec("prepare", path, "-o", tmp_path / "d", "--min-user", 3)
    assert answer.code == 0
    assert answer.err == ""
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert "read 21 21" in lines
    assert "users with 3 and items with 1 or more (round 2 found no more) 21 18" in lines
    assert "users 4" in lines
    assert "interactions 18" in lines


def test_prepare_json_is_one_object_with_the_counts_on_top(budgetrec, tmp_path):
    """`--json` prints users, items and interactions, and nothing else on stdout."""
    path = write_csv(tmp_path / "e.csv", ROWS)
    answer = budgetrec("prepare", path, "-o", tmp_path / "d", "--json")
    result = json.loads(answer.out)
    assert (result["users"], result["items"], result["interactions"]) == (6, 6, 21)
    assert result["split"] == {"name": "leave-one-out"}


def test_show_prints_statistics_and_plots(budgetrec, tmp_path):
    """Lengths 1 to 6 fall into bins 1, 2 to 3, 4 to 7."""
    budgetrec("prepare", write_csv(tmp_path / "e.csv", ROWS), "-o", tmp_path / "d")
    shown = budgetrec("data", "show", tmp_path / "d").out
    assert "sequences by length" in shown
    assert "4 to 7  ████████████████████████████████████████ 3" in shown
    result = json.loads(budgetrec("data", "show", tmp_path / "d", "--json").out)
    assert result["summary"]["sequence_lengths"] == [
        {"from": 1, "to": 1, "count": 1},
        {"from": 2, "to": 3, "count": 2},
        {"from": 4, "to": 7, "count": 3},
    ]
    assert result["statistics"]["users"] == 6


def test_show_refuses_what_is_no_dataset(refused, tmp_path):
    """The way to make one is named."""
    assert "budgetrec prepare" in refused("data", "show", tmp_path)


def test_the_temporal_split_has_a_seed(budgetrec, tmp_path):
    """--seed and the shares go into dataset.json."""
    path = write_csv(tmp_path / "e.csv", ROWS)
    options = ("--split", "temporal", "--test-share", 0.2, "--validation-share", 0.2, "--seed", 7)
    result = json.loads(budgetrec("prepare", path, "-o", tmp_path / "d", "--json", *options).out)
    expected = {"name": "temporal", "test_share": 0.2, "validation_share": 0.2, "seed": 7}
    assert result["split"] == expected
