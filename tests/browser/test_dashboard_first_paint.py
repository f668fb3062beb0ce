"""What the overview asks for before it shows its numbers, and what is said in place of charts that do not come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.remote.webdriver import WebDriver
from starlette.middleware.gzip import GZipMiddleware

from dashboard_page import Page, Server
from first_paint import WATCH

pytestmark = pytest.mark.needs("browser")

_MOST_BYTES = 300_000
"""0.6 s at 4 Mbit/s."""


@pytest.fixture
def first(page: Page, server: Server, driver: WebDriver) -> Iterator[Page]:
    """The page, opened by a browser that has none of its files, compressed as the service sends them."""
    server.app = GZipMiddleware(server.app, minimum_size=2000, compresslevel=4)  # type: ignore[assignment]
    command = driver.execute_cdp_cmd  # type: ignore[attr-defined]
    command("Network.clearBrowserCache", {})
    watch = command("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    page.open()
    yield page
    command("Page.removeScriptToEvaluateOnNewDocument", watch)


def test_the_numbers_are_shown_before_pictures_and_their_library_are_asked_for(first: Page) -> None:
    first.wait(lambda: first.driver.execute_script("return window.numbersAt"), "the numbers")
    first.wait(lambda: first.shows(".chart .main-svg"), "the charts")
    shown_at = first.driver.execute_script("return window.numbersAt")
    files = first.driver.execute_script("return window.files")
    library = [one["startTime"] for one in files if one["name"].endswith("/plotly.min.js")]
    picture = [
        one["startTime"] for one in files if "/v1/timeline/" in one["name"] or one["name"].endswith("/v1/nodes")
    ]
    assert len(library) == 1
    assert min(picture + library) >= shown_at
    needed = sum(one["transferSize"] for one in files if one["responseEnd"] <= shown_at)
    assert 0 < needed < _MOST_BYTES


def test_charts_that_do_not_come_say_so_and_are_drawn_once_they_can_be(page: Page, driver: WebDriver) -> None:
    command = driver.execute_cdp_cmd  # type: ignore[attr-defined]
    command("Network.enable", {})
    command("Network.setBlockedURLs", {"urls": ["*/plotly.min.js"]})
    try:
        page.open()
        page.wait(
            lambda: any("Not loaded" in text for text in page.texts(".chart-note [role=alert]")), "the reason"
        )
    finally:
        command("Network.setBlockedURLs", {"urls": []})
    retry = "[...document.querySelectorAll('.chart-note button')].find((one) => one.checkVisibility())?.click()"
    page.wait(lambda: driver.execute_script(f"{retry}; return true") and page.shows(".chart .main-svg"), "charts")
    page.wait(lambda: not page.shows(".chart-note [role=alert]"), "nothing over them")
    page.errors()  # the browser's own words about what was kept away
