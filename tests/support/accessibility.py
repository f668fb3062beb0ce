"""What axe-core, the engine of most accessibility tests, has against a page."""

from __future__ import annotations

import hashlib
from pathlib import Path

from selenium.webdriver.remote.webdriver import WebDriver

from dashboard_page import Page

_ENGINE = Path(__file__).resolve().parent.parent / "browser" / "vendor" / "axe.min.js"
_SHA256 = "84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc"
"""Of axe-core 4.12.1 as its npm package has it (Mozilla Public License 2.0)."""
_RUN = """
    const done = arguments[arguments.length - 1];
    axe.run(arguments[0], { resultTypes: ["violations"] }).then(({ violations }) =>
        done(violations.flatMap((found) => found.nodes.map((node) =>
            `${found.id}: ${node.target.join(" ")}: ${node.failureSummary}`))));
"""


def violations_seen(driver: WebDriver, within: str = "html") -> list[str]:
    """The same, in the colours that the browser shows at present."""
    engine = _ENGINE.read_bytes()
    assert hashlib.sha256(engine).hexdigest() == _SHA256
    driver.execute_script(engine.decode("utf-8"))
    return list(driver.execute_async_script(_RUN, within))


def violations(page: Page, *, dark: bool = False, within: str = "html") -> list[str]:
    """A line for each element that breaks a rule, in the whole page or in the element of a selector."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    try:
        return violations_seen(page.driver, within)
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
