"""The dashboard's views, and how a browser brings them into a state: it holds or refuses what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from selenium.webdriver.remote.webdriver import WebDriver


@dataclass(frozen=True)
class View:
    """A view of the page, as whoever is signed in comes to it."""

    name: str
    address: str
    """After `#/`; `{trainer}` and `{plan}` stand for one that is there."""
    shown: str
    """Selector of what is there once it has been read."""
    empty: str | None = None
    """How the sentence begins that says why nothing is there; None: the view cannot be empty."""


VIEWS = (
    View("trainers", "trainers", "#view tbody tr", "No trainers yet."),
    View("trainer", "trainers/{trainer}", "#view .trainer .facts"),
    View("compare", "compare?trainers={trainer}", "#view tbody th a", "No trainers yet."),
    View("plans", "plans", "#view table", "No plan yet"),
    View("plan", "plans/{plan}", "#view table"),
    View("nodes", "nodes", "#view tbody tr", "The scheduler has shown no node yet."),
    View("users", "users", "#view tbody tr", "No user has had"),
    View("delays", "delays", ".trend tbody tr", "No foreground job has started"),
    View("tokens", "tokens", "#view tbody tr"),
    View("audit", "audit", "#view tbody tr"),
    View("submit", "submit", "#field-name"),
    View("overview", "", "#overview .trainer", "No trainers yet."),
)
"""The overview is last: its address is where a page begins, and a view is shown anew only after another one."""

DOCUMENTS = ("*/v1/*", "*/openapi.json")
"""All that views read. The page is signed in before they are kept from it."""
PICTURES = ("*/v1/timeline/*", "*/series*", "*/plotly.min.js", "*/v1/events/recent*")
"""What the overview's numbers do not wait for."""


@contextmanager
def held(driver: WebDriver, *urls: str) -> Iterator[None]:
    """Requests of these addresses have no answer meanwhile, as from a slow service."""
    command: Any = driver.execute_cdp_cmd
    command("Fetch.enable", {"patterns": [{"urlPattern": url} for url in urls]})
    try:
        yield
    finally:
        command("Fetch.disable", {})


@contextmanager
def refused(driver: WebDriver, *urls: str) -> Iterator[None]:
    """Requests of these addresses fail meanwhile, as where no service is."""
    command: Any = driver.execute_cdp_cmd
    command("Network.enable", {})
    command("Network.setBlockedURLs", {"urls": [*urls]})
    try:
        yield
    finally:
        command("Network.setBlockedURLs", {"urls": []})


@contextmanager
def on_a_phone(driver: WebDriver) -> Iterator[None]:
    """The page is shown 390 pixels wide meanwhile, and touched instead of clicked."""
    command: Any = driver.execute_cdp_cmd
    size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    command("Emulation.setDeviceMetricsOverride", size)
    command("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        yield
    finally:
        command("Emulation.setTouchEmulationEnabled", {"enabled": False})
        command("Emulation.clearDeviceMetricsOverride", {})
