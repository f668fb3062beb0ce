"""The dashboard as a browser shows it, and the server that it comes from."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from served_documents import TOKEN
from waiting import DEADLINE_S

Seen = TypeVar("Seen")
_SHOWN_CHARACTERS = 1000
_NOT_THERE = (
    NoSuchElementException,
    StaleElementReferenceException,
    ElementNotInteractableException,
    ElementClickInterceptedException,  # where the page has moved under the mouse meanwhile
)


class Server:
    """An app on a port of its own that can go away and come back, and be replaced by another."""

    def __init__(self) -> None:
        self.app = FastAPI()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self, port=self.port, log_level="critical", timeout_graceful_shutdown=0, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not self._server.started:
            assert time.monotonic() < deadline, "the test server did not start"
            time.sleep(0.02)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

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
        """Open a fresh tab's page, as the address that `serve` prints does; with a token, in a fresh browser."""
        self.driver.get("about:blank")
        if token:
            self.forget()
        self.driver.get(self.server.url + (f"#token={token}" if token else ""))

    def forget(self) -> None:
        """Let the browser forget what pages of the server have stored."""
        stored = {"origin": self.server.url.rstrip("/"), "storageTypes": "cookies,local_storage"}
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", stored)  # type: ignore[attr-defined]

    def go(self, view: str = "") -> None:
        """Show a view of the open page by its address, which takes the last one's place in the tab's history.

        The view is shown as its address says also where that is there already and is about to change."""
        script = """
            const [address, done] = arguments;
            addEventListener("hashchange", () => done(), { once: true });
            if (location.hash === address) dispatchEvent(new HashChangeEvent("hashchange"));
            else location.replace(address);
        """
        self.driver.execute_async_script(script, f"#/{view}")

    def wait(self, seen: Callable[[], Seen], what: str, within_s: float = DEADLINE_S) -> Seen:
        """Call `seen` until its result is true, and return the result. Fails after `within_s` with what the page
        shows."""
        waiting = WebDriverWait(self.driver, within_s, poll_frequency=0.1)
        try:
            return waiting.until(lambda _: seen())
        except TimeoutException:
            shown = self.driver.execute_script("return location.href + '\\n' + document.body.innerText")
            raise AssertionError(
                f"not seen within {within_s:g} s: {what}; the page shows: {shown[:_SHOWN_CHARACTERS]}"
            ) from None

    def back(self) -> None:
        """One step back in the tab's history."""
        self._wait_for_the_browser()
        self.driver.back()

    def forward(self) -> None:
        """One step forward in the tab's history."""
        self._wait_for_the_browser()
        self.driver.forward()

    def _wait_for_the_browser(self) -> None:
        """A page learns of a step within itself before the browser does, from whose place the next is taken."""
        here = self.driver.execute_script("return location.href")
        self.wait(lambda: self._place_of_the_browser() == here, f"the browser at {here}")

    def _place_of_the_browser(self) -> str:
        history = self.driver.execute_cdp_cmd("Page.getNavigationHistory", {})  # type: ignore[attr-defined]
        return str(history["entries"][history["currentIndex"]]["url"])

    def on(self, selector: str, act: Callable[[WebElement], object]) -> None:
        """Act on the first element of a selector. The page may draw the element anew at any moment, and no element
        outlives that: where it is gone before `act` is through, `act` begins again with its successor."""

        def has_acted() -> bool:
            try:
                act(self.driver.find_element(By.CSS_SELECTOR, selector))
            except _NOT_THERE:
                return False
            return True

        self.wait(has_acted, f"{selector}, to act on it")

    def click(self, selector: str) -> None:
        """Click with the mouse on an element, once it is there."""
        self.on(selector, WebElement.click)

    def write(self, selector: str, keys: str) -> None:
        """Press keys in an element, once it is there."""
        self.on(selector, lambda element: element.send_keys(keys))

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
        """Errors in the browser's console since the last call."""
        log: Any = self.driver.get_log("browser")  # type: ignore[attr-defined]  # of Chromium alone
        return [entry["message"] for entry in log if entry["level"] != "INFO"]
