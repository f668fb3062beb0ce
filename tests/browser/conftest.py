"""A headless Chromium and a served simulated cluster, shared by the tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

from dashboard_page import Page, Server
from served_documents import serve_documents
from simulated_cluster import SimulatedCluster
from waiting import DEADLINE_S

Seen = TypeVar("Seen")

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
    "--window-size=1280,900",
)
"""With less motion the picture of nodes moves with each answer alone, and not up to 30 times a second."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the page to one worker of pytest-xdist, since each further worker would start a browser
    of its own."""
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
    for option in _OPTIONS:
        options.add_argument(option)
    profile: Path = tmp_path_factory.mktemp("chromium")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver") or "/usr/bin/chromedriver")
    started = webdriver.Chrome(options=options, service=service)
    started.set_script_timeout(DEADLINE_S)
    yield started
    started.quit()


@pytest.fixture(scope="class")
def driver(browser: WebDriver) -> Iterator[WebDriver]:
    """The browser with a tab of its own for each class, or for a test that is in none: a tab's history has room
    for 50 entries, and drops first those that no key or mouse button has made.

    Opening a page takes seconds of processor time, so tests that look at one page are a class with one tab, whose
    `page` is opened once.
    """
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    yield browser
    browser.close()
    browser.switch_to.window(first)


@pytest.fixture(scope="class")
def cluster() -> SimulatedCluster:
    return SimulatedCluster()


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    """One for all tests: the browser keeps what it has compiled of the scripts of an address."""
    served = Server()
    yield served
    served.stop()


@pytest.fixture(scope="class")
def server(_server: Server, cluster: SimulatedCluster) -> Server:
    """A server of the cluster's documents, which knows nobody yet."""
    _server.app = serve_documents(cluster)
    if not _server.runs:
        _server.start()
    return _server


@pytest.fixture(scope="class")
def page(driver: WebDriver, server: Server) -> Iterator[Page]:
    opened = Page(driver, server)
    opened.errors()
    yield opened
    driver.get("about:blank")
