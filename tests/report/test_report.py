"""`budgetrec report`: what a page holds, what it never does, and what is refused."""

import json
import re

import polars as pl
import pytest

from budgetrec.report import write_report
from tests.report.folders import PLAN, make_paper_study, make_run, make_study
from tests.report.parsing import parse


@pytest.fixture
def page(tmp_path):
    """Return the page of a folder, parsed."""

    def make(folder):
        return parse(write_report(folder).read_text("utf-8"))

    return make


def test_a_run_shows_its_plan_reasons_curves_tables_and_environment(tmp_path, page):
    """Everything that the folder holds is on the page."""
    parsed = page(make_run(tmp_path / "first"))
    shown = " ".join(parsed.words.split())
    for text in (
        "SASRec on item-1",
        "Planned for 640 MiB, of which 10% stays free. Goal: time. A step should take 66 ms.",
        "Examples give most of the noise.",
        "logits 200 MiB 67%",
        "predicted in total 300 MiB",
        "training adds 462 MiB",
        "negatives that targets share 0.015 30%",
        "more noise",
        "40 items",
        "constants inner rho 7",
        "0.1630 to 0.1903",
        "72% of 640 MiB",
        "12,288 sequences",
        "budgetrec train item-1",
        "learning rate 0.003",
    ):
        assert text in shown, text
    assert [chart["height"] for chart in parsed.charts] == [230, 230]
    curves = {row["curve"] for chart in parsed.charts for row in _rows(chart)}
    assert curves == {"validation loss", "training loss", "validation NDCG@10"}


def test_the_bars_are_as_long_as_their_share_of_the_budget(tmp_path, page):
    """Of 640 MiB, 100 take 15.625% of the bar, 200 take 31.25%, the peak of 462 72.188%; 10% are margin."""
    parsed = page(make_run(tmp_path / "first"))
    styles = " ".join(attributes.get("style") or "" for _, attributes in parsed.elements)
    assert re.findall(r"width:([\d.]+)%", styles)[:3] == ["15.625", "31.250", "72.188"]
    assert re.findall(r"left:([\d.]+)%", styles) == ["90.000", "100.000"]


def test_a_page_without_plan_evaluation_or_rows_is_whole(tmp_path, page):
    """A run that has only begun has a page that says so."""
    folder = make_run(tmp_path / "begun", plan=None, evaluated=False)
    for name in ("metrics.parquet", "environment.json"):
        (folder / name).unlink()
    parsed = page(folder)
    assert "No evaluation has been recorded yet." in parsed.words
    assert "The machine was not recorded." in parsed.words
    assert parsed.charts == []
    assert (folder / "report.html").stat().st_size < 50_000  # no charts, so no chart library


@pytest.mark.parametrize("key", PLAN)
def test_every_key_of_a_plan_may_be_missing(tmp_path, page, key):
    """The page shows what is there."""
    parsed = page(
        make_run(tmp_path / "run", plan={name: value for name, value in PLAN.items() if name != key})
    )
    assert "The plan and its reasons" in parsed.words


def test_a_page_loads_nothing_and_stays_small(tmp_path, page):
    """No address but data: and anchors is in any attribute, and the chart library is there once."""
    for folder in (make_run(tmp_path / "run"), make_study(tmp_path / "study")):
        parsed = page(folder)
        for _, attributes in parsed.elements:
            for name in ("src", "href", "action", "poster", "srcset", "data"):
                assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes
            assert "url(" not in (attributes.get("style") or "")
        policy = next(
            a["content"] for t, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none';")
        assert len(parsed.scripts) == 3
        assert (folder / "report.html").stat().st_size < 2**20


def test_where_the_dataset_lay_is_not_told(tmp_path, page):
    """A page goes to others: of paths it keeps the last name."""
    make_run(tmp_path / "run")
    write_report(tmp_path / "run")
    assert "somebody" not in (tmp_path / "run/report.html").read_text("utf-8")


def test_runs_side_by_side_share_their_curves(tmp_path, page):
    """A folder of runs gives one row per run, what they differ in, overlaid curves and paired differences."""
    for seed, negatives in ((0, 64), (1, 128)):
        make_run(tmp_path / f"grid/k{negatives}", seed=seed, num_negatives=negatives)
    parsed = page(tmp_path / "grid")
    shown = " ".join(parsed.words.split())
    assert "2 runs on item-1" in shown
    assert "Differences to k128" in shown
    assert {row["curve"] for chart in parsed.charts for row in _rows(chart)} == {"k64", "k128"}
    found = pl.read_parquet(tmp_path / "grid/k64/evaluation-test.parquet")
    base = pl.read_parquet(tmp_path / "grid/k128/evaluation-test.parquet")
    assert f"{(found['ndcg@10'] - base['ndcg@10']).mean():+.4f}" in shown


def test_a_run_that_went_astray_is_compared_without_a_mean_loss(tmp_path, page):
    """A loss that is no number leaves its cells empty and the page whole."""
    make_run(tmp_path / "grid/good")
    bad = make_run(tmp_path / "grid/bad")
    rows = pl.read_parquet(bad / "metrics.parquet").with_columns(val_loss=float("nan"))
    rows.write_parquet(bad / "metrics.parquet")
    assert "2 runs" in page(tmp_path / "grid").words


def test_a_curve_of_very_many_evaluations_is_thinned_to_its_last(tmp_path, page):
    """Of 2,500 rows every third is drawn, counted from the last."""
    folder = make_run(tmp_path / "run")
    rows = pl.DataFrame({"step": range(2500)}).with_columns(
        examples=pl.col("step") * 8, seconds=pl.col("step") / 10, val_loss=1 / (pl.col("step") + 1)
    )
    rows.write_parquet(folder / "metrics.parquet")
    steps = [row["step"] for row in _rows(page(folder).charts[0])]
    assert steps == list(range(0, 2500, 3))


def test_studies_of_a_folder_are_one_page_with_contents(tmp_path, page):
    """Each study has its settings, its chart and its table, and a place in the contents."""
    make_study(tmp_path / "all/a", name="variance")
    make_study(tmp_path / "all/b", name="lognormal")
    parsed = page(tmp_path / "all")
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert links == ["#study-1", "#study-2"]
    assert len(parsed.charts) == 2
    assert parsed.words.count("noise.csv") == 2


def test_a_study_says_what_it_found_and_what_its_charts_and_tables_are(tmp_path, page):
    """Its paragraphs, one caption per chart, its own table with the best in bold, sorted by its numbers."""
    folder = make_study(tmp_path / "study", text="**Found** `k <= n`", captioned=True)
    parsed = page(folder)
    assert [tag for tag in parsed.tags if tag in ("strong", "code", "figcaption")] == [
        *["strong", "code"] * 2,
        "figcaption",
        "strong",
    ]
    assert "Found" in parsed.text
    assert "k <= n" in parsed.text
    assert [a.get("data-key") for tag, a in parsed.elements if tag == "td"][1::2] == ["1024.5", "3.0"]
    assert "noise.csv" not in parsed.words
    assert "shown" not in parsed.words


def test_the_study_of_all_leads_through_the_others(tmp_path, page):
    """Its title and words come first, then the studies in its order, under their questions."""
    for name in ("a", "b"):
        make_study(tmp_path / f"study/{name}", name=name, text=f"title of {name}", captioned=True)
    shown = {"title": "All of it", "text": ["The lead."], "studies": {"b": "Why b?", "a": "Why a?"}}
    marker = {"study": "all", "scale": "smoke", "seed": 0, "shown": shown}
    (tmp_path / "study/study.json").write_text(json.dumps(marker), "utf-8")
    words = page(tmp_path / "study").words
    places = [words.index(text) for text in ("All of it", "The lead.", "Why b?", "Why a?")]
    assert places == sorted(places)
    assert "2 studies" in words


@pytest.mark.parametrize(
    "shown", [3, {"title": 3}, {"text": "words"}, {"charts": {"a": 1}}, {"charts": ["a"]}, {"unknown": "a"}]
)
def test_a_study_that_says_something_else_than_texts_is_refused(tmp_path, refused, shown):
    """The sentence names the file, and no page is written."""
    folder = make_study(tmp_path / "study")
    marker = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**marker, "shown": shown}), "utf-8")
    assert "study.json has something other than text under 'shown'" in refused("report", folder)


def test_a_damaged_table_of_a_study_is_refused(tmp_path, refused):
    """A row that lost its end is told, with the file."""
    folder = make_study(tmp_path / "study", captioned=True)
    (folder / "noise.md").write_text("| a | b |\n|---|---:|\n| c", "utf-8")
    assert "noise.md cannot be read as a table" in refused("report", folder)


def test_the_chart_of_a_study_zooms_and_its_legend_switches_curves(tmp_path, page):
    """The specification gets parameters for both, and the page's colours."""
    (chart,) = page(make_study(tmp_path / "study")).charts
    assert [param["name"] for param in chart["params"]] == ["zoom", "legend"]
    assert chart["params"][0]["select"]["encodings"] == ["x", "y"]
    line, points = chart["layer"]
    assert line["encoding"]["opacity"]["condition"]["param"] == "legend"
    assert line["encoding"]["color"]["scale"]["range"] == ["var(--curve-1)", "var(--curve-2)"]
    assert [each["field"] for each in points["encoding"]["tooltip"]] == ["sharing", "k", "noise"]


def test_every_panel_of_a_chart_zooms_and_toggles(tmp_path, page):
    """Panels of layers have a named view each, facets one for all."""
    densities, noise = page(make_paper_study(tmp_path / "study")).charts
    assert densities["params"][0]["views"] == ["top_0", "top_1", "top_2", "top_3"]
    assert densities["params"][1]["views"] == ["curves_0", "curves_1", "curves_2", "curves_3"]
    assert noise["params"][0]["views"] == ["top_0"]
    assert [param["select"].get("fields") for param in noise["params"]] == [None, ["sharing"]]


def test_a_study_is_repeated_over_its_own_report(tmp_path, budgetrec):
    """The page in a study's folder is the study's own, so --overwrite replaces both."""
    command = ("reproduce", "lognormal", "--scale", "smoke", "-o", tmp_path / "study")
    assert budgetrec(*command).code == 0
    assert budgetrec("report", tmp_path / "study").code == 0
    assert budgetrec(*command, "--overwrite").code == 0
    assert not (tmp_path / "study/report.html").exists()


@pytest.mark.parametrize("spec", ["{}", '{"mark": 3}', '{"mark": "bar", "encoding": []}', '{"layer": [1]}'])
def test_a_specification_of_another_kind_is_left_to_the_browser(tmp_path, page, spec):
    """What is no chart gets no parameters; the page is whole and says so where the chart would be."""
    folder = make_study(tmp_path / "study")
    (folder / "noise.vl.json").write_text(spec, "utf-8")
    assert page(folder).charts == [json.loads(spec)]


def test_a_chart_without_its_specification_is_a_picture(tmp_path, page):
    """Studies of earlier versions kept the PNG alone."""
    folder = make_study(tmp_path / "study")
    (folder / "noise.vl.json").unlink()
    parsed = page(folder)
    (picture,) = [attributes for tag, attributes in parsed.elements if tag == "img"]
    assert picture["src"].startswith("data:image/png;base64,iVBOR")
    assert parsed.charts == []


def test_a_long_table_is_a_sample_that_says_where_the_rest_is(tmp_path, page):
    """Of 960 rows the first 20 are shown."""
    folder = make_study(tmp_path / "study")
    pl.DataFrame({"row": range(960)}).write_csv(folder / "long.csv")
    parsed = page(folder)
    assert "The first 20 of 960 rows; all are in long.csv." in parsed.words
    assert parsed.tags.count("td") == 20 + 4 * 3


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("plan.toml", "batch_size = = 3", "cannot be read as TOML"),
        ("plan.toml", "noise = 3", "noise is 3, not a table"),
        ("plan.toml", "budget_bytes = 'much'", "budget_bytes is 'much', which is not a number"),
        ("plan.toml", "[noise]\nbias = -1.0", "bias is -1.0, below 0"),
        ("plan.toml", "candidates = [1, 2]", "candidates that are not tables"),
        ("evaluation-test.json", "{", "cannot be read as JSON"),
        ("evaluation-test.json", "[]", "holds no JSON object"),
        ("evaluation-test.json", '{"ndcg@10": NaN}', "NaN is not a number"),
        ("evaluation-test.json", '{"ndcg@10": "good"}', "'good', which is not a number"),
        ("evaluation-test.json", '{"cutoffs": 10}', "cutoffs is 10, not a list"),
        ("metrics.parquet", "PAR1", "cannot be read as Parquet"),
        ("recommendations.parquet", "", "cannot be read as Parquet"),
        ("environment.json", "nothing", "cannot be read as JSON"),
        ("run.toml", "model = 3", "has no [dataset]"),
    ],
)
def test_a_damaged_file_is_told_in_one_sentence(tmp_path, refused, file, content, sentence):
    """The sentence names the file, and no page is written."""
    folder = make_run(tmp_path / "run")
    (folder / file).write_text(content, "utf-8")
    told = refused("report", folder)
    assert sentence in told
    assert file in told


def test_other_folders_are_refused_with_what_to_pass(tmp_path, refused):
    """Nothing, a file, an empty folder and a folder of one run."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    make_run(tmp_path / "one/run")
    assert "is not a folder. Pass a run" in refused("report", tmp_path / "missing")
    assert "is not a folder. Pass a run" in refused("report", tmp_path / "file")
    assert "holds no run.toml and no study.json" in refused("report", tmp_path / "empty")
    assert f"Pass {tmp_path / 'one/run'}." in refused("report", tmp_path / "one")


def test_only_a_report_is_ever_replaced(tmp_path, budgetrec, refused):
    """The default place may be written again; another takes --overwrite, and other files stay."""
    folder = make_run(tmp_path / "run", plan=None, evaluated=False)
    (folder / "metrics.parquet").unlink()
    assert budgetrec("report", folder).code == 0
    assert budgetrec("report", folder).code == 0
    page, letter = tmp_path / "page.html", tmp_path / "letter.html"
    letter.write_text("<p>Dear reader</p>")
    assert budgetrec("report", folder, "-o", page).code == 0
    assert "exists already. Pass --overwrite" in refused("report", folder, "-o", page)
    assert budgetrec("report", folder, "-o", page, "--overwrite").code == 0
    assert "is not a budgetrec report" in refused("report", folder, "-o", letter, "--overwrite")
    assert letter.read_text() == "<p>Dear reader</p>"
    assert "is not a folder" in refused("report", folder, "-o", tmp_path / "none/page.html")


def test_a_failure_while_writing_leaves_the_old_page(tmp_path, monkeypatch):
    """The page is written under another name and renamed, so it is the old one or the new one."""
    folder = make_run(tmp_path / "run", plan=None, evaluated=False)
    (folder / "metrics.parquet").unlink()
    before = write_report(folder).read_bytes()
    (folder / "environment.json").unlink()

    def fail(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_a_folder_may_be_called_like_a_pattern(tmp_path, page):
    """Brackets and stars in a name are only a name."""
    make_run(tmp_path / "runs[1]/run*")
    make_run(tmp_path / "runs[1]/[b]")
    make_study(tmp_path / "study[?]")
    assert "run*" in page(tmp_path / "runs[1]").words
    assert "noise.csv" in page(tmp_path / "study[?]").words


def test_json_names_the_page(tmp_path, budgetrec):
    """One object on stdout: what was shown, where the page is and how large."""
    folder = make_run(tmp_path / "run")
    answer = json.loads(budgetrec("report", folder, "--json").out)
    size = (folder / "report.html").stat().st_size
    assert answer == {"folder": str(folder), "output": str(folder / "report.html"), "bytes": size}


def _rows(chart):
    return chart["datasets"][chart["data"]["name"]]
