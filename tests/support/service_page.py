"""The dashboard of a real service, as a browser shows it."""

from __future__ import annotations

from selenium.webdriver.remote.webelement import WebElement

from dashboard_page import Page


class Address:
    """The service's address, as `Page` opens it."""

    def __init__(self, url: str) -> None:
        self.url = url + "/"


class ServicePage(Page):
    """The dashboard of a real service."""

    def enter(self, token: str, view: str = "") -> None:
        """Sign in with the token and open a view."""
        self.open(token)
        self.wait(lambda: self.shows("#account"), "the account")
        self.go(view)

    def afresh(self) -> None:
        """Begin a further test on the open page: at the overview, and without what the last one may have left."""
        if self.shows("dialog"):
            self.driver.refresh()
        self.go()
        self.wait(lambda: self.shows("#overview"), "the overview")
        self.errors()

    def press(self, text: str, within: str = "body") -> None:
        """Press the button with this text, once it can be pressed."""
        script = (
            "const found = [...document.querySelectorAll(arguments[0] + ' button')]"
            ".find((one) => one.textContent === arguments[1] && one.checkVisibility() && !one.disabled);"
            "found?.click(); return Boolean(found)"
        )
        self.wait(lambda: self.driver.execute_script(script, within, text), f"the button {text!r} in {within}")

    def buttons(self, within: str) -> list[str]:
        """The texts of the buttons in an element."""
        return self.texts(f"{within} button")

    def fill(self, name: str, value: str) -> None:
        """Write into a field of the open dialog or form, instead of what is in it."""

        def rewrite(field: WebElement) -> None:
            field.clear()
            field.send_keys(value)

        self.on(f"[name={name}]", rewrite)
