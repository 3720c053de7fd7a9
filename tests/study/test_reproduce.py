import json

import polars as pl

from budgetrec.cli import run


def _json(capsys, *arguments):
    assert run(["reproduce", *arguments, "--scale", "smoke", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_variance_at_smoke_scale_measures_the_law_and_writes_everything(tmp_path, capsys):
    """The law is within 5% of 150 steps in every cell where A2 holds; the files are there, as told."""
    result = _json(capsys, "variance", "-o", str(tmp_path / "noise"))
    assert result["max_relative_error"] < 0.05
    assert {row["sharing"] for row in result["rows"]} == {"shared", "grouped", "per target"}
    frame = pl.read_csv(tmp_path / "noise" / "noise.csv")
    assert len(frame) == len(result["rows"]) == 48
    assert sorted(path.name for path in (tmp_path / "noise").iterdir()) == sorted(result["files"])
    assert (tmp_path / "noise" / "noise.png").read_bytes().startswith(b"\x89PNG")
    held = [abs(row["law_error"]) for row in result["rows"] if row["a2_holds"] and row["num_negatives"] >= 8]
    assert result["max_relative_error"] == max(held)


def test_lognormal_at_smoke_scale_prints_a_table_and_repeats_with_its_seed(tmp_path, capsys):
    """Fenton-Wilkinson is nearer than the central limit, and the same seed gives the same numbers."""
    first = _json(capsys, "lognormal", "-o", str(tmp_path / "a"))
    second = _json(capsys, "lognormal", "-o", str(tmp_path / "b"))
    assert first["rows"] == second["rows"]
    nearer, farther = first["rows"][::2], first["rows"][1::2]
    assert all(a["ks_distance"] < b["ks_distance"] for a, b in zip(nearer, farther, strict=True))
    assert run(["reproduce", "lognormal", "-o", str(tmp_path / "a"), "--scale", "smoke", "--overwrite"]) == 0
    assert "Fenton-Wilkinson" in capsys.readouterr().out


def test_an_existing_folder_is_kept_without_overwrite(tmp_path, capsys):
    """A taken folder is refused at once with exit 2 and one sentence, and nothing is left beside it."""
    (tmp_path / "taken").mkdir()
    assert run(["reproduce", "variance", "-o", str(tmp_path / "taken"), "--scale", "smoke"]) == 2
    assert "exists already. Pass --overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
