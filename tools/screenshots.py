"""Pictures of every view of the dashboard, in light, dark and on a phone: `make screenshots`.

Starts a service of its own with the example trainers, lets history gather, and takes the pictures in Chromium.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

from oakum_client.rest.client import OakumClient
from oakum_service.states import TrainerState

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("digits-classifier", "digits-autoencoder")
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Look:
    """How the page is looked at."""

    name: str
    width: int
    height: int
    scale: float
    dark: bool = False


LOOKS = (Look("light", 1280, 900, 1), Look("dark", 1280, 900, 1, dark=True), Look("phone", 390, 844, 2))


@dataclass(frozen=True)
class View:
    """A view of the page: its address after `#/`, and what has to be there before its picture is taken."""

    name: str
    address: str
    shown: str


def main() -> None:
    """Take the pictures that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "screenshots", help="where the pictures go")
    parser.add_argument("--history-s", type=float, default=120.0, help="seconds of training before the first one")
    parser.add_argument("--docs", action="store_true", help="renew the pictures of the README and the docs, too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with running_service() as client, browser() as driver:
        plan = gather(client, given.history_s)
        taken = []
        for view in views(plan, linked(driver, client)):
            for look in LOOKS:
                taken.append(given.folder / f"{view.name}-{look.name}.png")
                taken[-1].write_bytes(picture(driver, client, view, look))
                print(taken[-1], flush=True)
    if given.docs:
        for name, source in (("dashboard", "overview-light"), ("trainer", "trainer-light")):
            shutil.copyfile(given.folder / f"{source}.png", ROOT / "docs" / "images" / f"{name}.png")


def views(plan: int, names: Sequence[str]) -> tuple[View, ...]:
    """The views: those whose pictures need more than a name, and the others of these `names`. `plan` is the number
    of a plan that differs from the one before."""
    own = (
        View("sign-in", "", "#sign-in"),
        View("overview", "", "#overview .trainer"),
        View("trainer", f"trainers/{EXAMPLES[0]}", "#view .trainer .charts"),
        View("overview-hour", "?span=3600&order=state", "#overview .trainer"),
        View("overview-dense", "?span=3600&show=dense", "canvas.density"),
        View("compare", f"compare?trainers={','.join(EXAMPLES)}", "#view tbody th a"),
        View("submit", "submit", "#field-name"),
        View("delays", "delays", ".trend tbody tr"),
        View("plan", f"plans/{plan}", "#view table"),
    )
    named = {view.name for view in own}
    return (*own, *(View(name, name, "#view :is(tbody tr, .empty)") for name in names if name not in named))


@contextmanager
def running_service() -> Iterator[OakumClient]:
    """A service on four virtual nodes with the example trainers and a foreground load; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="oakum-screenshots-"))
    command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(folder), "--port", "0"]
    for example in EXAMPLES:
        command += ["--submit", f"examples/{example}.yaml"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_for("the service", lambda: (folder / "client.json").exists())
        found = json.loads((folder / "client.json").read_text(encoding="utf-8"))
        client = OakumClient(url=found["url"], token=found["token"])
        wait_for("an answer", lambda: answers(client))
        yield client
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder)


def answers(client: OakumClient) -> bool:
    """Whether the service answers."""
    try:
        client.cluster()
    except Exception:
        return False
    return True


def gather(client: OakumClient, history_s: float) -> int:
    """Wait until the trainers train and some history is there. Returns a plan that differs from the one before."""
    wait_for("a trainer trains", lambda: client.trainer(EXAMPLES[0]).state is TrainerState.RUNNING)
    time.sleep(history_s)
    return next(plan.id for plan in client.plans().plans if plan.parent and plan.allocations)


def wait_for(what: str, probe: Callable[[], object]) -> None:
    """Return once `probe` returns something true. Raises `TimeoutError` after 300 s."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not probe():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.2)


@contextmanager
def browser() -> Iterator[WebDriver]:
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def linked(driver: WebDriver, client: OakumClient) -> list[str]:
    """The names of the views, beside the overview, that the page's navigation has a link to."""
    driver.get(f"{client.address.url}/#token={client.address.token}")
    wait_for("the navigation", lambda: visible(driver, "#views a"))
    script = "return [...document.querySelectorAll('#views a')].map(({ dataset }) => dataset.view).filter(Boolean)"
    return list(driver.execute_script(script))


def picture(driver: WebDriver, client: OakumClient, view: View, look: Look) -> bytes:
    """The whole view as a PNG."""
    device = {"width": look.width, "height": look.height, "deviceScaleFactor": look.scale}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device | {"mobile": look.name == "phone"})
    scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.delete_all_cookies()
    driver.get("about:blank")
    token = "" if view.name == "sign-in" else f"#token={client.address.token}"
    driver.get(f"{client.address.url}/{token}")
    if token:
        wait_for("the account", lambda: visible(driver, "#account"))
        driver.execute_script("location.hash = arguments[0]", f"#/{view.address}")
    wait_for(view.shown, lambda: visible(driver, view.shown))
    settle(driver)
    # As high as the page: charts are drawn when they come into sight.
    height = int(driver.execute_script("return document.documentElement.scrollHeight"))
    whole = device | {"height": max(look.height, height), "mobile": look.name == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", whole)
    settle(driver)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    return base64.b64decode(shot["data"])


def visible(driver: WebDriver, selector: str) -> bool:
    """Whether the page shows such an element."""
    script = "return document.querySelector(arguments[0])?.checkVisibility() ?? false"
    return bool(driver.execute_script(script, selector))


def settle(driver: WebDriver) -> None:
    """Return once the page's height has stayed as it is for two refreshes, since charts come after tables."""
    heights: list[int] = []
    deadline_s = time.monotonic() + 6.0
    while time.monotonic() < deadline_s and (len(heights) < 4 or len(set(heights[-4:])) > 1):
        heights.append(int(driver.execute_script("return document.documentElement.scrollHeight")))
        time.sleep(1.0)


if __name__ == "__main__":
    main()
