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
    "--window-size=1280,900",
)


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


@pytest.fixture
def driver(browser: WebDriver) -> Iterator[WebDriver]:
    """The browser with a tab of its own: a tab's history has room for 50 entries, and drops first those that no
    key or mouse button has made."""
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    yield browser
    browser.close()
    browser.switch_to.window(first)


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster()


@pytest.fixture
def server(cluster: SimulatedCluster) -> Iterator[Server]:
    served = Server(serve_documents(cluster))
    yield served
    served.stop()


@pytest.fixture
def page(driver: WebDriver, server: Server) -> Iterator[Page]:
    opened = Page(driver, server)
    opened.errors()
    yield opened
    driver.get("about:blank")
