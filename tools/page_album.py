"""Draws views of the dashboard in their states and has axe read each; an index shows all beside each other."""

from __future__ import annotations

import base64
import html
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

from accessibility import violations_seen
from page_states import DOCUMENTS, PICTURES, View, held, refused

DEADLINE_S = 20.0
_LOADS = "#first-answer [role=status]"
READS_S = 240.0
"""In which axe reads a long page, on a machine with other work, too."""
SETTLES_S = 20.0
"""After which a page is drawn as it is: there the loading of a part is what is seen."""
NOWHERE = "nowhere"
"""An address without a view: the next one begins anew."""


@dataclass(frozen=True)
class Look:
    """How the page is looked at."""

    width: int
    height: int
    dark: bool

    @property
    def name(self) -> str:
        return f"{'dark' if self.dark else 'light'}-{self.width}"


SIZES = ((1440, 900), (1920, 1080), (390, 844))
PHONE = 390
LOOKS = tuple(Look(width, height, dark) for dark in (False, True) for width, height in SIZES)


@dataclass(frozen=True)
class Place:
    """A service to look at: its address without a slash, a token, and what of it the views that need one show."""

    url: str
    token: str
    trainer: str
    plan: int

    def address(self, view: View) -> str:
        return view.address.format(trainer=self.trainer, plan=self.plan)


class Album:
    """The pictures drawn so far, and what is wrong in them."""

    def __init__(self, driver: WebDriver, folder: Path, cut: Mapping[str, str] = MappingProxyType({})) -> None:
        """`cut`: picture -> selector of what its upper part ends with, of which another, `top-...`, is taken."""
        self._driver = driver
        self._folder = folder
        self._cut = cut
        self._taken: dict[tuple[str, str], list[str]] = {}
        self.faults: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def draw_states(self, place: Place, view: View) -> None:
        """The view with all that is there, while it loads, and where nothing answers; of the overview also its
        parts, which come one after the other."""
        self.draw_full(place, view)
        with held(self._driver, *DOCUMENTS):
            for look in LOOKS:
                self._look(look, look.height)
                self._begin(place, view)
                self._draw_loading(view.name, look)
        with refused(self._driver, *DOCUMENTS):
            self._begin(place, view)
            self._wait(lambda: self._shows("#first-answer [role=alert]"), f"{view.name}: why it does not come")
            self._draw_all(view.name, "failed")
        if view.address == "":
            self._draw_parts(place, view)

    def draw_full(self, place: Place, view: View) -> None:
        """The view with all that is there."""
        self._enter(place)
        self._begin(place, view)
        self._wait(lambda: self._shows(view.shown), view.shown)
        self._draw_all(view.name, "full")

    def draw_empty(self, place: Place, view: View) -> None:
        """The view where nothing is."""
        self._enter(place)
        self._begin(place, view)
        self._wait(lambda: self._shows("main .empty"), f"{view.name}: why it is empty")
        self._draw_all(view.name, "empty")

    def draw_sign_in(self, place: Place) -> None:
        """The form for a token: as it is, while the service is asked, after a refusal, and without a service."""
        self._leave()
        self._driver.get(place.url)
        self._wait(lambda: self._shows("#sign-in"), "the form")
        self._draw_all("sign-in", "full")
        self._driver.get("about:blank")
        self._driver.get(f"{place.url}/#token=made-up")
        self._wait(lambda: self._shows("#token[aria-invalid=true]"), "a refusal")
        self._draw_all("sign-in", "refused")
        self._leave()
        with held(self._driver, *DOCUMENTS):
            for look in LOOKS:
                self._look(look, look.height)
                self._open(place.url)
                self._draw_loading("sign-in", look)
        self._leave()
        with refused(self._driver, *DOCUMENTS):
            self._driver.get(place.url)
            self._wait(lambda: self._shows("#first-answer [role=alert]"), "that nothing answers")
            self._draw_all("sign-in", "failed")

    def write_index(self) -> None:
        """A page with all pictures: a row for each view and state, a column for each look."""
        heads = "".join(f"<th>{look.name}</th>" for look in LOOKS)
        rows = "".join(
            f"<tr><th>{view}<br>{state}</th>{''.join(_cell(name) for name in names)}</tr>"
            for (view, state), names in sorted(self._taken.items())
        )
        wrong = "".join(f"<li>{html.escape(line)}</li>" for line in self.faults)
        style = "img { width: 300px } td, th { vertical-align: top; padding: 4px; font: 14px sans-serif }"
        title = "Views of the dashboard"
        (self._folder / "index.html").write_text(
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{style}</style>"
            f"<h1>{title}</h1><ul>{wrong or '<li>Nothing is wrong for axe.</li>'}</ul>"
            f"<table><tr><th></th>{heads}</tr>{rows}</table></html>\n",
            encoding="utf-8",
        )

    def _draw_parts(self, place: Place, view: View) -> None:
        with held(self._driver, *PICTURES):
            for look in LOOKS:
                self._open(place.url)
                self._wait(lambda: self._shows("#summary .figure"), "the numbers")
                self._draw(view.name, "loading parts", look)
        with refused(self._driver, *PICTURES):
            self._open(place.url)
            self._wait(lambda: self._shows(".lack.fault"), "why rows do not come")
            self._draw_all(view.name, "failed parts")
        self.draw_full(place, view)
        with refused(self._driver, *DOCUMENTS):
            self._wait(lambda: self._shows("#banner"), "that nothing answers any more")
            self._draw_all(view.name, "outage")

    def _enter(self, place: Place) -> None:
        self._leave()
        self._look(LOOKS[0], LOOKS[0].height)  # a phone has no room for who is signed in
        self._driver.get(f"{place.url}/#token={place.token}")
        self._wait(lambda: self._shows("#account .who"), "the account")

    def _leave(self) -> None:
        self._driver.delete_all_cookies()
        self._driver.get("about:blank")

    def _open(self, url: str) -> None:
        self._driver.get("about:blank")
        self._driver.get(url)

    def _begin(self, place: Place, view: View) -> None:
        """Come to the view from another one, so that it begins anew."""
        for address in (NOWHERE, place.address(view)):
            self._driver.execute_script("location.hash = arguments[0]", f"#/{address}")
            self._wait(lambda: self._driver.execute_script("return new Promise(requestAnimationFrame)"), "a frame")

    def _draw_loading(self, view: str, look: Look) -> None:
        """Take the view's picture as soon as it says that it loads: some seconds later the page gives up."""
        self._wait(lambda: self._shows(_LOADS), f"{view}: that it loads")
        self._draw(view, "loading", look)

    def _draw_all(self, view: str, state: str) -> None:
        for look in LOOKS:
            self._draw(view, state, look)

    def _draw(self, view: str, state: str, look: Look) -> None:
        """Write the whole page as a picture, and what axe has against it."""
        self._look(look, look.height)
        settle(self._driver, is_waited_for="loading" not in state)
        # As high as the page: charts are drawn when they come into sight.
        height = int(self._driver.execute_script("return document.documentElement.scrollHeight"))
        if height > look.height:
            self._look(look, height)
            settle(self._driver, is_waited_for="loading" not in state)
        name = f"{view}-{state}-{look.name}.png".replace(" ", "-")
        self._take(name)
        if state == "loading" and not self._shows(_LOADS):
            self.faults.append(f"{name}: it no longer loads")
        if (last := self._cut.get(name)) is not None:
            width, top_px = self._driver.execute_script(_UPPER, last)
            self._take(f"top-{name}", clip={"x": 0, "y": 0, "width": width, "height": top_px, "scale": 1})
        self._taken.setdefault((view, state), []).append(name)
        wide = self._driver.execute_script(_BESIDE)
        found = violations_seen(self._driver) + ([f"it scrolls sideways: {wide}"] if wide else [])
        self.faults += [f"{name}: {line}" for line in found]
        print("\n  ".join((name, *found)), flush=True)

    def _take(self, name: str, **options: Any) -> None:
        shot: Any = self._command("Page.captureScreenshot", {"captureBeyondViewport": True, **options})
        (self._folder / name).write_bytes(base64.b64decode(shot["data"]))

    def _look(self, look: Look, height: int) -> None:
        is_phone = look.width == PHONE
        device = {"width": look.width, "height": height, "deviceScaleFactor": 2 if is_phone else 1}
        self._command("Emulation.setDeviceMetricsOverride", device | {"mobile": is_phone})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def _command(self, name: str, arguments: dict[str, Any]) -> Any:
        return self._driver.execute_cdp_cmd(name, arguments)

    def _shows(self, selector: str) -> bool:
        script = (
            "return document.querySelector(arguments[0])?.checkVisibility({ visibilityProperty: true }) ?? false"
        )
        return bool(self._driver.execute_script(script, selector))

    def _wait(self, seen: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not seen():
            if time.monotonic() > deadline_s:
                shown = self._driver.execute_script("return document.body.innerText")
                raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}; the page shows: {shown[:1000]}")
            time.sleep(0.05)


_UPPER = """
    const { bottom } = document.querySelector(arguments[0]).getBoundingClientRect();
    return [document.documentElement.clientWidth, Math.round(bottom + scrollY) + 6];
"""
"""Width of the page, and the height down to the end of an element and its shadow."""
_BESIDE = """
    const { scrollWidth, clientWidth } = document.documentElement;
    return scrollWidth > clientWidth ? `${scrollWidth} px in ${clientWidth}` : "";
"""
_STATE = """
    const notes = [...document.querySelectorAll(".chart-note, .lack, #strip span, .empty, p.buttons")];
    const loads = notes.some((note) => note.checkVisibility() && note.textContent.startsWith("Loading"));
    return [document.documentElement.scrollHeight, loads];
"""
_AT_REST = "const [done] = arguments; requestIdleCallback(() => requestIdleCallback(done), { timeout: 5000 });"
"""Charts are drawn anew in other colours, which takes no height."""


def settle(driver: WebDriver, *, is_waited_for: bool) -> None:
    """Return once the page's height stays as it is, and, if that is waited for, no part of it loads any more."""
    heights: list[int] = []
    deadline_s = time.monotonic() + SETTLES_S
    while time.monotonic() < deadline_s:
        height, loads = driver.execute_script(_STATE)
        heights.append(height)
        if len(heights) >= 4 and len(set(heights[-4:])) == 1 and not (loads and is_waited_for):
            driver.execute_async_script(_AT_REST)
            return
        time.sleep(0.1)


def _cell(name: str) -> str:
    return f'<td><a href="{name}"><img loading="lazy" alt="{name}" src="{name}"></a></td>'


@contextmanager
def browser() -> Iterator[WebDriver]:
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    driver.set_script_timeout(READS_S)
    try:
        yield driver
    finally:
        driver.quit()
