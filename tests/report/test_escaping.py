"""Whatever users, items, runs and sentences are called, they stay text."""

import json

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budgetrec.report import write_report
from budgetrec.report.page import script_json
from tests.report.folders import make_run, make_study, worded_plan
from tests.report.parsing import parse

NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]></style></title>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "&lt;b&gt; &amp; Søren's café 東京 🎬",
    "{{ 7 * 7 }} {% raw %} ${alert(1)}",
    "javascript:alert(1)",
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the elements of pages whose texts are harmless."""
    root = tmp_path_factory.mktemp("plain")
    run = make_run(root / "run", plan=worded_plan("word"), text="word")
    study = make_study(root / "study", name="word", text="word", captioned=True)
    return {"run": _parsed(run), "study": _parsed(study)}


@pytest.mark.parametrize("text", NASTY)
def test_names_stay_text_in_a_run(tmp_path, plain, text):
    """The page has the elements of a harmless one, and shows the name as it is."""
    parsed = _parsed(make_run(tmp_path / "run", plan=worded_plan(text), text=text))
    assert parsed.tags == plain["run"].tags
    assert parsed.comments == []
    assert parsed.words.count(text) >= 10
    assert _attributes(parsed) == _attributes(plain["run"])


@pytest.mark.parametrize("text", NASTY)
def test_names_stay_text_in_a_study_and_its_chart(tmp_path, plain, text):
    """The chart's specification holds the name, title, text and captions show it, no element changes."""
    parsed = _parsed(make_study(tmp_path / "study", name=text, text=text, captioned=True))
    assert parsed.tags == plain["study"].tags
    assert parsed.words.count(text) >= plain["study"].words.count("word") == 8
    line = parsed.charts[0]["layer"][0]
    assert line["encoding"]["color"]["scale"]["domain"] == [text, "other"]
    assert parsed.charts[0]["title"] == text


@pytest.mark.parametrize("text", [name for name in NASTY if "/" not in name])
def test_names_of_runs_stay_text_in_buttons_and_curves(tmp_path, text):
    """Folders name the curves of a comparison."""
    for name in (text, "plain"):
        make_run(tmp_path / "grid" / name)
    parsed = _parsed(tmp_path / "grid")
    assert [a["data-curve"] for _, a in parsed.elements if "data-curve" in a] == sorted([text, "plain"])
    assert parsed.tags.count("script") == 3
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)


@given(text=st.text(min_size=1, max_size=60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_adds_an_element(tmp_path_factory, plain, text):
    """For any text: the same elements and attributes as with a harmless one."""
    root = tmp_path_factory.mktemp("any")
    parsed = _parsed(make_run(root / "run", plan=worded_plan(text), text=text))
    assert len(parsed.tags) <= len(plain["run"].tags)
    assert set(parsed.tags) <= set(plain["run"].tags)
    assert set(_attributes(parsed)) <= set(_attributes(plain["run"]))
    assert parsed.comments == []


@given(value=st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_json_in_a_script_reads_back_and_never_ends_it(value):
    """The text holds no `<`, `>` or `&`, and means the same."""
    text = str(script_json(value))
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_a_folder_whose_name_is_no_unicode_has_a_page(tmp_path):
    """Names that cannot be written as UTF-8 lose the bytes in question, nothing else."""
    folder = make_run(tmp_path / "run")
    odd = folder.rename(folder.with_name(b"odd-\xff".decode("utf-8", "surrogateescape")))
    assert "odd-?" in _parsed(odd).words


def test_an_item_that_is_a_number_is_shown_as_it_is_written(tmp_path):
    """Ids are names: 1193 is not 1,193."""
    folder = make_run(tmp_path / "run")
    pl.DataFrame({"user": [1], "rank": [1], "item": [1193], "score": [0.5]}).write_parquet(
        folder / "recommendations.parquet"
    )
    words = _parsed(folder).words
    assert "1193" in words
    assert "1,193" not in words


def _parsed(folder):
    return parse(write_report(folder).read_text("utf-8"))


def _attributes(parsed):
    """Return the names of attributes of each element that carries data."""
    return [(tag, *sorted(attributes.keys() - {"class"})) for tag, attributes in parsed.elements]
