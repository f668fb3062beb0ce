"""Measures the dashboard in Chromium with a large cluster: first view, frames while moving, and traffic.

    python bench/page.py [--nodes 5000] [--days 1] [--changes-per-s 5]

Fills a SQLite database with a history that ends now (about 200,000 stretches of 5,000 nodes in a day), serves it
over loopback, opens the dashboard with a day in view, and measures: seconds until the overview's numbers are seen
at 4 Mbit/s by a browser that has kept nothing; seconds and bytes until rows are drawn; the time between frames
while the picture is dragged and zoomed and while nodes change; bytes per second while live. The page's own files,
which a browser keeps, are counted apart. Targets: numbers within 1 s, first view under 2 s and 300 KB, p95 of
frames under 50 ms and none over 200 ms, 10 KB/s while live.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from api_under_test import ApiUnderTest
from first_paint import WATCH
from oakum_client.cli import output
from oakum_service.api.auth import Role
from oakum_service.control.observe import newest_observation, write_snapshot
from oakum_service.control.usage import complete_hours
from oakum_service.db.engine import open_engine, upgrade
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from reads import fill

_DEADLINE_S = 15.0
_FRAMES = """
    window.frames_ms = [];
    let last = performance.now();
    const step = (at) => {
        frames_ms.push(at - last);
        last = at;
        if (window.measuring) requestAnimationFrame(step);
    };
    window.measuring = true;
    requestAnimationFrame(step);
"""


def main() -> None:
    """Fill, open, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--changes-per-s", type=float, default=5.0, help="nodes that change meanwhile")
    parser.add_argument("--live-s", type=float, default=60.0, help="seconds for which the live page is watched")
    parser.add_argument("--keep", type=Path, help="keep the database in this folder, or use the one there")
    parser.add_argument("--pictures", type=Path, help="write pictures of what is measured into this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        is_filled = (folder / "oakum.db").exists()
        engine = open_engine(f"sqlite:///{folder}/oakum.db")
        upgrade(engine)
        if not is_filled:
            fill(engine, options.nodes, options.days * 86400.0)
        api = ApiUnderTest(folder)
        with api.sessions.begin() as session:
            session.add_all(complete_hours(session, time.time()))
        with served(api) as url, browser() as driver, changing(api, options.changes_per_s):
            page = Page(driver, url, api.new_token("page", Role.VIEWER))
            table = Table("measured", "value", "target")
            for row in measure(page, options.live_s, options.pictures):
                table.add_row(*row)
            complaints = page.complaints()
    output.console().print(table, *complaints)


class Page:
    """The dashboard in a browser whose traffic is counted."""

    def __init__(self, driver: WebDriver, url: str, token: str) -> None:
        self.driver, self.url, self._token = driver, url, token
        self.data_bytes = self.file_bytes = 0
        self._paths: dict[str, str] = {}

    def open(self, address: str) -> None:
        """Sign in and come to the address."""
        self.driver.get(f"{self.url}#token={self._token}")
        self.wait("return document.querySelector('.plot .name') !== null")
        self.count()
        self.data_bytes = self.file_bytes = 0
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#/{address}")

    def wait(self, script: str) -> float:
        """Wait until the script returns true; seconds since the page was asked for, by the page's own clock."""
        WebDriverWait(self.driver, _DEADLINE_S, poll_frequency=0.02).until(lambda d: d.execute_script(script))
        return float(self.driver.execute_script("return performance.now() / 1000"))

    def count(self) -> None:
        """Add up what has come over the network since the last call."""
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            about = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                self._paths[about["requestId"]] = about["request"]["url"]
            elif message["method"] == "Network.loadingFinished":
                self._add(self._paths.get(about["requestId"], ""), about["encodedDataLength"])
            elif message["method"] == "Network.dataReceived" and self._paths.get(about["requestId"], "").endswith(
                "/v1/events"
            ):
                self.data_bytes += about["dataLength"]

    def complaints(self) -> list[str]:
        """What the browser's console has against the page."""
        log: Any = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] != "INFO"]

    def _add(self, url: str, size: float) -> None:
        if "/v1/" in url:
            self.data_bytes += int(size)
        else:
            self.file_bytes += int(size)

    def frames(self, during: str) -> list[float]:
        """Milliseconds between frames while the asynchronous script runs."""
        self.driver.execute_script(_FRAMES)
        self.driver.execute_async_script(during)
        self.driver.execute_script("window.measuring = false")
        return [float(ms) for ms in self.driver.execute_script("return window.frames_ms")[2:]]


_DRAG = """
    const done = arguments[arguments.length - 1];
    const rows = document.querySelector(".rows").getBoundingClientRect();
    const [x, y] = [rows.left + rows.width / 2, rows.top + 100];
    const send = (kind, dx) => document.querySelector(".rows").dispatchEvent(new PointerEvent(kind,
        { bubbles: true, pointerId: 1, button: 0, clientX: x + dx, clientY: y }));
    document.querySelector(".rows").setPointerCapture = () => {};
    send("pointerdown", 0);
    let moved = 0;
    const step = () => {
        moved += 6;
        send("pointermove", Math.round(400 * Math.sin(moved / 200)));
        if (moved < 1200) requestAnimationFrame(step);
        else { send("pointerup", 0); setTimeout(done, 1500); }
    };
    requestAnimationFrame(step);
"""
_ZOOM = """
    const done = arguments[arguments.length - 1];
    const axis = document.querySelector(".axis-box");
    const box = axis.getBoundingClientRect();
    let turned = 0;
    const step = () => {
        axis.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true,
            deltaY: turned < 60 ? -40 : 40, clientX: box.left + box.width * 0.6, clientY: box.top + 5 }));
        if (++turned < 120) requestAnimationFrame(step);
        else setTimeout(done, 1500);
    };
    requestAnimationFrame(step);
"""
_SCROLL = """
    const done = arguments[arguments.length - 1];
    const rows = document.querySelector(".rows");
    let steps = 0;
    const step = () => {
        rows.scrollTop += 15;
        if (++steps < 150) requestAnimationFrame(step);
        else setTimeout(done, 1500);
    };
    requestAnimationFrame(step);
"""


_SLOW = {"offline": False, "latency": 20, "downloadThroughput": 500_000, "uploadThroughput": 500_000}
"""4 Mbit/s; a round trip takes 20 ms more."""


def first_paint(page: Page) -> Iterator[tuple[str, str, str]]:
    """Rows about a browser that has kept nothing, over a slow network."""
    command = page.driver.execute_cdp_cmd
    page.open("")
    page.driver.get("about:blank")
    command("Network.enable", {})
    command("Network.clearBrowserCache", {})
    command("Network.emulateNetworkConditions", _SLOW)
    watch = command("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    page.count()
    page.data_bytes = page.file_bytes = 0
    page.driver.get(page.url)
    page.wait("return window.numbersAt !== null")
    page.count()
    seen_s = page.driver.execute_script("return window.numbersAt / 1000")
    yield "numbers at 4 Mbit/s seen after", f"{seen_s:.2f} s", "1 s"
    yield (
        "numbers at 4 Mbit/s: files and data",
        f"{page.file_bytes / 1e3:.0f} + {page.data_bytes / 1e3:.0f} KB",
        "",
    )
    command("Page.removeScriptToEvaluateOnNewDocument", watch)
    command(
        "Network.emulateNetworkConditions",
        _SLOW | {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
    )


def measure(page: Page, live_s: float, pictures: Path | None) -> Iterator[tuple[str, str, str]]:
    """Rows of the table: what, how much, and the target."""
    yield from first_paint(page)
    page.open("?span=86400")
    drawn_s = page.wait("return document.querySelector('.plot .foreground') !== null")
    page.wait("return document.querySelector('.strip-window[width]') !== null")
    time.sleep(1.0)
    page.count()
    bars = page.driver.execute_script(
        "return [...document.querySelectorAll('.plot path.many')]"
        ".reduce((sum, path) => sum + path.getAttribute('d').split('M').length - 1, 0)"
    )
    yield "first view of a day: rows drawn after", f"{drawn_s:.2f} s", "2 s"
    yield "first view: data", f"{page.data_bytes / 1e3:.0f} KB", "300 KB"
    yield "the page's own files, kept by browsers", f"{page.file_bytes / 1e3:.0f} KB", ""
    yield "bars drawn", f"{bars:,}", ""
    shoot(page, pictures, "rows")
    for name, script in (("dragged", _DRAG), ("zoomed", _ZOOM), ("scrolled", _SCROLL)):
        yield told(f"frames while {name}", page.frames(script))
    page.driver.execute_script("document.getElementById('to-now').click()")
    time.sleep(3.0)
    page.count()
    page.data_bytes = 0
    begun = time.monotonic()
    watch = f"const done = arguments[arguments.length - 1]; setTimeout(done, {1000 * live_s:.0f});"
    page.driver.set_script_timeout(live_s + _DEADLINE_S)
    yield told("frames while live", page.frames(watch))
    page.count()
    yield "live: data", f"{page.data_bytes / 1e3 / (time.monotonic() - begun):.1f} KB/s", "10 KB/s"
    choose = "const rows = document.getElementById('rows-show'); rows.value = 'dense';"
    page.driver.execute_script(f"{choose} rows.dispatchEvent(new Event('input'))")
    page.wait("return document.querySelector('canvas.density').width !== 300")
    time.sleep(1.0)
    shoot(page, pictures, "dense")


def told(what: str, frames_ms: list[float]) -> tuple[str, str, str]:
    """A row about times between frames."""
    p95 = statistics.quantiles(frames_ms, n=20)[-1]
    measured = f"p95 {p95:.0f} ms, longest {max(frames_ms):.0f} ms of {len(frames_ms)}"
    return what, measured, "p95 50 ms, longest 200 ms"


def shoot(page: Page, folder: Path | None, name: str) -> None:
    """Write a picture of the page."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        page.driver.save_screenshot(str(folder / f"{name}.png"))


@contextmanager
def served(api: ApiUnderTest) -> Iterator[str]:
    """The API and the dashboard on a port of their own."""
    config = uvicorn.Config(api.app, port=0, log_level="critical", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10.0)


@contextmanager
def changing(api: ApiUnderTest, per_s: float) -> Iterator[None]:
    """Nodes that go from foreground jobs to holes and back, meanwhile."""
    ending = threading.Event()
    thread = threading.Thread(target=_change, args=(api, per_s, ending), daemon=True)
    thread.start()
    yield
    ending.set()
    thread.join(10.0)


def _change(api: ApiUnderTest, per_s: float, ending: threading.Event) -> None:
    chance = random.Random(1)
    while not ending.wait(2.0):
        with api.sessions.begin() as session:
            last = newest_observation(session)
            assert last is not None
            nodes = list(last.snapshot.nodes)
            for place in chance.sample(range(len(nodes)), int(2.0 * per_s)):
                node = nodes[place]
                is_hole = node.state == NodeState.HOLE
                state = NodeState.FOREGROUND if is_hole else NodeState.HOLE
                job = str(chance.randrange(10**6)) if is_hole else None
                nodes[place] = Node(node.name, state, node.address, job=job, job_name="simulation" if job else "")
            write_snapshot(session, Snapshot(time.time(), tuple(nodes), ()), last)
        api.news_for_readers.notify()


@contextmanager
def browser() -> Iterator[WebDriver]:
    """A headless Chromium that logs its traffic; closed afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    profile = tempfile.mkdtemp(prefix="oakum-page-")
    for option in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1280,900"):
        options.add_argument(f"--{option}")
    options.add_argument(f"--user-data-dir={profile}")
    for option in ("disable-background-networking", "disable-component-update", "disable-sync", "no-first-run"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


if __name__ == "__main__":
    main()
