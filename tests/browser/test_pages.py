"""The pages in a real browser: drawn without an error, sorted, switched, in every light and width."""

import base64
import json

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from budgetrec.report import write_report
from tests.browser.conftest import SHOTS
from tests.report.folders import make_study

KINDS = ("run", "runs", "studies", "paper")


@pytest.fixture
def opened(driver, pages):
    """Open a page in a colour scheme and a width, once its charts are drawn."""

    def opens(kind, *, scheme="light", width=1200):
        _emulate(driver, scheme)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get_log("browser")
        driver.get(pages[kind].as_uri())
        _wait_until_drawn(driver)
        return driver

    return opens


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_drawn_without_an_error_and_fits_its_width(opened, kind, scheme, width):
    """No word in the console, every chart with marks and a size, nothing wider than the window."""
    driver = opened(kind, scheme=scheme, width=width)
    assert driver.get_log("browser") == []
    charts = driver.find_elements(By.CSS_SELECTOR, "[data-chart]")
    assert len(charts) == 2
    for chart in charts:
        drawing = chart.find_element(By.TAG_NAME, "svg")
        assert drawing.size["width"] > 200
        assert drawing.size["height"] > 150
        lines = chart.find_elements(By.CSS_SELECTOR, ".mark-line path")
        assert lines
        assert all(line.size["width"] > 50 for line in lines if line.get_attribute("d"))
    across = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert driver.execute_script(across) == 0
    _shoot(driver, f"{kind}-{scheme}-{width}")


@pytest.mark.parametrize(
    ("scheme", "paper", "line"), [("light", "#ffffff", "#0072b2"), ("dark", "#15181c", "#58aee6")]
)
def test_charts_follow_the_colour_scheme(opened, scheme, paper, line):
    """The page's colours reach into the chart, also when the scheme changes under an open page."""
    driver = opened("run", scheme="dark" if scheme == "light" else "light")
    _emulate(driver, scheme)
    assert driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color") == _rgb(paper)
    stroke = driver.execute_script(
        "return getComputedStyle(document.querySelector('.mark-line path')).stroke"
    )
    assert stroke == _rgb(line).replace("rgba", "rgb").replace(", 1)", ")")


def test_a_table_sorts_by_its_headings_with_mouse_and_keys(opened):
    """Numbers by size, up and then down; the heading says which."""
    driver = opened("run")
    table = driver.find_element(By.CSS_SELECTOR, "#plan table.sortable")
    heads = table.find_elements(By.TAG_NAME, "th")
    sizes = next(head for head in heads if head.text == "num negatives")
    button = sizes.find_element(By.TAG_NAME, "button")
    assert _column(table, 1) == ["128", "1,024", "32"]
    button.click()
    assert _column(table, 1) == ["32", "128", "1,024"]
    assert sizes.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert _column(table, 1) == ["1,024", "128", "32"]
    assert sizes.get_attribute("aria-sort") == "descending"


def test_the_axis_of_all_curves_can_be_switched(opened):
    """Examples and seconds take the place of steps, with the numbers of that axis."""
    driver = opened("run")
    assert _axis_titles(driver) == ["steps", "steps"]
    driver.find_element(By.CSS_SELECTOR, "[data-axis=seconds]").click()
    WebDriverWait(driver, 30).until(lambda _: _axis_titles(driver) == ["training seconds"] * 2)
    labels = driver.find_elements(By.CSS_SELECTOR, "[data-chart='0'] .role-axis-label text")
    assert {"0", "4", "8", "12"} <= {label.text for label in labels}
    assert driver.get_log("browser") == []


def test_a_curve_can_be_switched_off_and_on(opened):
    """The button takes its line away and brings it back."""
    driver = opened("run")
    button = driver.find_element(By.CSS_SELECTOR, "[data-curve='training loss']")
    assert _lines(driver) == 2
    button.click()
    WebDriverWait(driver, 30).until(lambda _: _lines(driver) == 1)
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    WebDriverWait(driver, 30).until(lambda _: _lines(driver) == 2)


@pytest.mark.parametrize(("kind", "curves"), [("studies", 2), ("paper", 8)])
def test_a_click_in_a_legend_leaves_its_curve(opened, kind, curves):
    """The other curves fade, in every panel."""
    driver = opened(kind)
    strengths = """
        const lines = document.querySelectorAll("[data-chart='0'] g.mark-line path");
        return [...lines].map((line) => getComputedStyle(line).opacity);
    """
    assert driver.execute_script(strengths) == ["1"] * curves
    driver.find_element(By.CSS_SELECTOR, "[data-chart='0'] .role-legend-symbol path").click()
    WebDriverWait(driver, 30).until(lambda _: "0.08" in driver.execute_script(strengths))
    assert driver.get_log("browser") == []


def test_hovering_tells_the_value(opened):
    """A tip with curve, value and place stands by the point under the pointer."""
    driver = opened("run")
    _mouse(driver, "mouseMoved", *_point(driver))
    tip = WebDriverWait(driver, 30).until(
        lambda _: driver.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    assert tip[0].text.splitlines() == [
        "curve validation loss", "Loss 5.9818", "step 96", "sequences 6,144", "seconds 6.7"
    ]  # fmt: skip


def test_a_line_of_a_study_tells_the_value_under_the_pointer(opened):
    """Not the first of the line: the last point of the first curve has k = 32."""
    driver = opened("studies")
    _mouse(driver, "mouseMoved", *_point(driver, 1))
    (tip,) = WebDriverWait(driver, 30).until(
        lambda _: driver.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    assert tip.text.splitlines() == ["sharing shared", "k 32", "noise 2"]


def test_ctrl_and_the_wheel_zoom_while_the_wheel_alone_scrolls(opened):
    """The axis narrows only with the key held."""
    driver = opened("run")
    before = _axis_numbers(driver)
    place = _point(driver)
    top = driver.execute_script("return scrollY")
    _mouse(driver, "mouseWheel", *place, deltaX=0, deltaY=-300)
    WebDriverWait(driver, 30).until(lambda _: driver.execute_script("return scrollY") < top)
    assert _axis_numbers(driver) == before
    _mouse(driver, "mouseWheel", *_point(driver), deltaX=0, deltaY=-300, modifiers=2)
    WebDriverWait(driver, 30).until(lambda _: _axis_numbers(driver) != before)
    assert _spread(_axis_numbers(driver)) < _spread(before)


def test_nothing_of_the_data_is_run(opened):
    """An item that is a script, in a page and in a chart, opens no dialog and stays text."""
    driver = opened("studies")
    assert "</script><img src=x onerror=alert(1)>" in driver.find_element(By.TAG_NAME, "body").text
    assert driver.find_elements(By.CSS_SELECTOR, "img, svg image") == []


def test_a_chart_that_asks_for_an_address_gets_nothing(driver, tmp_path):
    """The page's policy holds: the data is not fetched, and the next chart is drawn all the same."""
    folder = make_study(tmp_path / "study")
    spec = {"data": {"url": "http://localhost:9/data.csv"}, "mark": "bar", "encoding": {}}
    (folder / "asking.vl.json").write_text(json.dumps(spec), "utf-8")
    driver.get_log("browser")
    driver.get(write_report(folder).as_uri())
    _wait_until_drawn(driver)
    told = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert "Content Security Policy" in told
    assert driver.find_elements(By.CSS_SELECTOR, "[data-chart='1'] g.mark-line path")


def test_paper_is_white_and_shows_what_is_folded(opened):
    """Print from a dark screen: light colours, settings open, no controls."""
    driver = opened("run", scheme="dark")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / "run.pdf").write_bytes(base64.b64decode(printed["data"]))
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color") == _rgb(
        "#ffffff"
    )
    assert "learning rate" in driver.find_element(By.ID, "settings").text
    assert not driver.find_element(By.CSS_SELECTOR, "[data-axis]").is_displayed()
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert "learning rate" not in driver.find_element(By.ID, "settings").text


def _wait_until_drawn(driver):
    script = "return document.documentElement.dataset.drawn"
    WebDriverWait(driver, 60).until(lambda _: driver.execute_script(script))


def _emulate(driver, scheme):
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce", "hover": "hover"}
    listed = [{"name": name, "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})


def _shoot(driver, name):
    """Keep a picture of the whole page, for people to look at."""
    height = driver.execute_script("return document.documentElement.scrollHeight")
    width = driver.execute_script("return document.documentElement.clientWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = base64.b64decode(taken["data"])
    assert len(picture) > 20_000  # an empty page takes a few thousand bytes
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / f"{name}.png").write_bytes(picture)


def _column(table, place):
    return [
        row.find_elements(By.TAG_NAME, "td")[place].text
        for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")
    ]


def _axis_titles(driver):
    return [
        title.text for title in driver.find_elements(By.CSS_SELECTOR, "[data-chart] .role-axis-title text")
    ]


def _axis_numbers(driver):
    script = """
        const axes = document.querySelectorAll("[data-chart='0'] .role-axis-label");
        return [...axes].map((axis) => [...axis.querySelectorAll("text")])
            .filter((texts) => new Set(texts.map((text) => text.getBoundingClientRect().top)).size === 1)[0]
            .map((text) => parseFloat(text.textContent));
    """
    return driver.execute_script(script)


def _lines(driver):
    return len(driver.find_elements(By.CSS_SELECTOR, "[data-chart='0'] .mark-line path[d]"))


def _spread(numbers):
    return max(numbers) - min(numbers)


def _point(driver, place=3):
    """Return where a point of the first curve is, once its chart is in the middle of the window."""
    script = """
        const box = document.querySelector("[data-chart='0']");
        box.scrollIntoView({block: "center", behavior: "instant"});
        const groups = [...box.querySelectorAll("g.mark-symbol:not(.role-legend-symbol)")];
        const points = groups.at(-1).querySelectorAll("path");
        const place = points[arguments[0]].getBoundingClientRect();
        return [place.left + place.width / 2, place.top + place.height / 2];
    """
    return driver.execute_script(script, place)


def _mouse(driver, kind, x, y, **more):
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})


def _rgb(colour):
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return f"rgba({', '.join(map(str, parts))}, 1)"
