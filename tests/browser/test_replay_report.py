"""The page that a replay writes, opened as a file: it draws all charts and makes no request."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from fabricated_replay import large_result
from oakum_solver.replay.report import as_html
from waiting import DEADLINE_S

pytestmark = pytest.mark.needs("browser")

CODE = "<img src=x onerror=document.title='owned'>"
CHARTS = {"nodes": "scatterlayer", "used": "barlayer", "losses": "barlayer", "solve-times": "barlayer"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a fortnight of a large machine with 40 trainers."""
    made = large_result()
    named = dataclasses.replace(made.trainers[0], name=CODE)
    path = tmp_path_factory.mktemp("report") / "report.html"
    html = as_html(dataclasses.replace(made, trainers=(named, *made.trainers[1:]), notes=(CODE, *made.notes)))
    path.write_text(html, encoding="utf-8", newline="")
    return path


def told(driver: WebDriver, command: str, **parameters: Any) -> Any:
    """A command to Chromium itself."""
    return driver.execute_cdp_cmd(command, parameters)  # type: ignore[attr-defined]


def drawn(driver: WebDriver) -> None:
    """Wait until the charts are there."""
    ready = "return document.documentElement.hasAttribute('data-drawn')"
    WebDriverWait(driver, DEADLINE_S, poll_frequency=0.1).until(lambda _: driver.execute_script(ready))


def colour(driver: WebDriver, selector: str, of: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
    return str(driver.execute_script(script, selector, of))


@pytest.fixture(scope="class")
def opened(driver: WebDriver, page: Path) -> WebDriver:
    driver.get_log("browser")  # type: ignore[attr-defined]  # of Chromium alone
    driver.get(page.as_uri())
    drawn(driver)
    return driver


class TestReport:
    """The report in a browser tab; loaded once for all tests, since it contains all of Plotly."""

    def test_every_chart_is_drawn(self, opened: WebDriver) -> None:
        for name, layer in CHARTS.items():
            script = "return document.querySelectorAll(`#${arguments[0]} .${arguments[1]} path`).length"
            assert opened.execute_script(script, name, layer) > 0, name
        assert opened.execute_script(
            "return document.querySelector('#sizes .heatmaplayer image').href.baseVal.length"
        )

    def test_nothing_is_complained_about_and_nobody_is_asked(self, opened: WebDriver) -> None:
        # What the page's policy forbids is a complaint, too.
        assert opened.get_log("browser") == []  # type: ignore[attr-defined]  # of Chromium alone
        assert (
            opened.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
        )

    def test_names_are_shown_and_never_run(self, opened: WebDriver) -> None:
        assert opened.title != "owned"
        assert opened.find_element("css selector", ".notes li").text == CODE
        assert opened.find_element("css selector", "tbody th").text == CODE
        labels = [label.text for label in opened.find_elements("css selector", "#sizes .ytick text")]
        assert CODE[:27] + "…" in labels

    @pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(244, 246, 248)"), ("dark", "rgb(14, 19, 25)")])
    def test_charts_and_page_follow_the_colour_scheme(self, opened: WebDriver, scheme: str, ground: str) -> None:
        before = colour(opened, "#used .barlayer path", "fill")
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        told(opened, "Emulation.setEmulatedMedia", features=features)
        try:
            assert colour(opened, "body", "background-color") == ground
            wanted = {"light": "rgb(0, 114, 178)", "dark": "rgb(47, 151, 214)"}[scheme]
            waiting = WebDriverWait(opened, DEADLINE_S, poll_frequency=0.1)
            waiting.until(lambda _: colour(opened, "#used .barlayer path", "fill") == wanted, before)
        finally:
            told(opened, "Emulation.setEmulatedMedia", features=[])

    def test_it_prints_on_light_paper_and_returns_to_the_screen(self, opened: WebDriver) -> None:
        script = "addEventListener('beforeprint', () => { window.printed = document.documentElement.className; })"
        opened.execute_script(script)
        printed = told(opened, "Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        assert base64.b64decode(printed["data"]).startswith(b"%PDF")
        assert opened.execute_script("return window.printed") == "paper"
        assert opened.execute_script("return document.documentElement.className") == ""

    def test_the_page_fits_a_narrow_screen(self, opened: WebDriver) -> None:
        size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        told(opened, "Emulation.setDeviceMetricsOverride", **size)
        try:
            opened.refresh()
            drawn(opened)
            script = "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
            needed, given = opened.execute_script(script)
            assert needed == given <= 420
        finally:
            told(opened, "Emulation.clearDeviceMetricsOverride")
