"""A headless Chromium and a served simulated cluster, shared by the tests of the page."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import uvicorn
from fastapi import FastAPI
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from browser.simulated_cluster import TOKEN, SimulatedCluster, serve_documents
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


class Server:
    """An app on a port of its own that can go away and come back."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self._app, port=self.port, log_level="critical", timeout_graceful_shutdown=0, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not self._server.started:
            assert time.monotonic() < deadline, "the test server did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class Page:
    """The dashboard in a browser tab."""

    def __init__(self, driver: WebDriver, server: Server) -> None:
        self.driver = driver
        self.server = server

    def open(self, token: str | None = TOKEN) -> None:
        """Open a fresh tab's page, as the address that `serve` prints does."""
        self.driver.get("about:blank")
        self.driver.get(self.server.url + (f"#token={token}" if token else ""))

    def wait(self, seen: Callable[[], Seen], what: str, within_s: float = DEADLINE_S) -> Seen:
        """What `seen` returns, once that is true."""
        waiting = WebDriverWait(self.driver, within_s, poll_frequency=0.1)
        return waiting.until(lambda _: seen(), f"not seen within {within_s:g} s: {what}")

    def texts(self, selector: str) -> list[str]:
        """Text of every element, read at once so that a refresh cannot come between."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.driver.execute_script(script, selector))

    def attributes(self, selector: str, name: str) -> set[str]:
        """Values of an attribute of every element."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getAttribute(arguments[1]))"
        return set(self.driver.execute_script(script, selector, name))

    def shows(self, selector: str) -> bool:
        """Whether there is such an element and it can be seen."""
        script = "return document.querySelector(arguments[0])?.checkVisibility() ?? false"
        return bool(self.driver.execute_script(script, selector))

    def errors(self) -> list[str]:
        """What the browser's console has complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
    for option in _OPTIONS:
        options.add_argument(option)
    profile: Path = tmp_path_factory.mktemp("chromium")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver") or "/usr/bin/chromedriver")
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


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
