"""What a researcher does on the dashboard, on a real service: submits a trainer, compares two that have ended."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from accessibility import violations
from dashboard_service import afresh, page_of
from dashboard_service import client as client
from dashboard_service import service as service
from dashboard_service import tokens as tokens
from oakum_client.rest.client import OakumClient
from page_states import on_a_phone
from running_service import small_spec, state_of
from service_page import ServicePage
from waiting import wait_until

pytestmark = pytest.mark.needs("browser")


_SAVED = """
    window.saved = {};
    const made = {};
    const make = URL.createObjectURL.bind(URL);
    URL.createObjectURL = (blob) => {
        const address = make(blob);
        made[address] = blob;
        return address;
    };
    HTMLAnchorElement.prototype.click = function () { window.saved[this.download] = made[this.href]; };
"""
"""Keeps files that the page saves, by their names, instead of asking where to put them."""


def verdict(page: ServicePage) -> str:
    return " ".join(page.texts("#verdict p")).replace("\u202f", " ")


def rows(page: ServicePage) -> list[str]:
    return page.texts("#view tbody th a")


def lines(page: ServicePage) -> list[list[float]]:
    script = """
        const data = document.querySelector(".compare-chart").data ?? [];
        return data.map((line) => [line.x.length, Math.max(...line.x)]);
    """
    return list(page.driver.execute_script(script))


def scheme(page: ServicePage, name: str) -> None:
    """Show the page in the colour scheme `light` or `dark`."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})  # type: ignore[attr-defined]


@pytest.fixture(scope="class")
def researcher(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> ServicePage:
    for name, epochs in (("alpha", 30), ("beta", 60)):
        client.submit(small_spec(name, epochs=epochs, max_nodes=2))
    for name in ("alpha", "beta"):
        wait_until(f"{name} ends", lambda name=name: state_of(client, name).ended)  # type: ignore[misc]
    opened = page_of(driver, client)
    opened.enter(tokens["admin"])
    return opened


class TestResearch:
    """What a researcher does in one tab, signed in once: submits a trainer, and compares two that have ended."""

    page = afresh("researcher")

    def test_trainers_are_compared_by_choosing_them_and_the_link_shows_the_same(self, page: ServicePage) -> None:
        page.go("compare")
        page.wait(lambda: any("Choose two or more" in text for text in page.texts("#view .empty")), "a hint")
        page.wait(lambda: any(text.startswith("alpha") for text in page.texts(".choices label")), "trainers")
        for name in ("alpha", "beta"):
            found = (
                f"[...document.querySelectorAll('.choices label')].find((e) => e.textContent.startsWith('{name}'))"
            )
            page.driver.execute_script(f"{found}.click()")
        page.wait(lambda: rows(page) == ["alpha", "beta"], "both in the table")
        page.wait(lambda: len(lines(page)) == 2, "two lines")
        assert all(number > 1 and most > 0 for number, most in lines(page))
        over_steps = lines(page)
        layers = (
            "return [...document.querySelectorAll('#view .main-svg')].map((e) => e.getBoundingClientRect().top)"
        )
        assert len(set(page.driver.execute_script(layers))) == 1, "legend and hover text lie over the lines"
        page.wait(lambda: page.texts("#view .legendtext") == ["alpha", "beta"], "the legend")
        page.on("#field-by", lambda field: Select(field).select_by_visible_text("Node-hours"))
        page.wait(lambda: len(lines(page)) == 2 and lines(page) != over_steps, "another axis")
        assert all(most < 1 for _, most in lines(page))
        page.press("Steps", "#view th")
        page.wait(lambda: "sort=Steps" in page.driver.current_url, "the address")
        page.press("Steps", "#view th")
        page.wait(lambda: rows(page) == ["beta", "alpha"], "the most steps first")
        page.back()
        page.wait(lambda: rows(page) == ["alpha", "beta"], "the fewest steps first, one step back")
        page.forward()
        page.wait(lambda: rows(page) == ["beta", "alpha"], "the most steps first again")
        link = page.driver.current_url
        page.driver.get("about:blank")
        page.driver.get(link)
        page.wait(lambda: rows(page) == ["beta", "alpha"], "what the link shows")
        page.wait(lambda: len(lines(page)) == 2, "its lines")
        page.click("#view tbody th a")
        page.wait(lambda: page.texts(".view-head h2") == ["beta"], "a trainer's page")
        page.back()
        page.wait(lambda: rows(page) == ["beta", "alpha"], "the comparison again")
        assert page.errors() == []

    def test_lines_take_the_colours_of_a_page_that_turns_dark(self, page: ServicePage) -> None:
        page.go("compare?trainers=alpha,beta")
        page.wait(lambda: len(lines(page)) == 2, "two lines")
        colours = "return document.querySelector('.compare-chart').data.map(({ line }) => line.color)"
        light = page.driver.execute_script(colours)
        try:
            scheme(page, "dark")
            page.wait(lambda: page.driver.execute_script(colours) != light, "other colours")
        finally:
            scheme(page, "light")
        page.wait(lambda: page.driver.execute_script(colours) == light, "the colours from before")

    def test_what_is_compared_is_saved_as_lines_and_as_pictures_and_nothing_as_no_file(
        self, page: ServicePage
    ) -> None:
        page.go("compare")
        page.wait(lambda: page.shows("#view .empty"), "a hint")
        able = "return [...document.querySelectorAll('#view .what-if button')].map((one) => !one.disabled)"
        assert page.driver.execute_script(able) == [False, False, False]
        page.go("compare?trainers=alpha,beta")
        page.wait(lambda: len(lines(page)) == 2, "two lines")
        page.driver.execute_script(_SAVED)
        names = ["loss-by-step.csv", "loss-by-step.png", "loss-by-step.svg"]
        for text in ("Lines (CSV)", "Picture (PNG)", "Picture (SVG)"):
            page.press(text, "#view")
        page.wait(lambda: sorted(page.driver.execute_script("return Object.keys(saved)")) == names, "three files")
        read = (
            "const [name, done] = arguments;"
            "saved[name].arrayBuffer().then((all) => done([...new Uint8Array(all)]))"
        )
        csv, png, svg = (bytes(page.driver.execute_async_script(read, name)) for name in names)
        assert csv.startswith(b"trainer,step,loss\nalpha,")
        assert png.startswith(b"\x89PNG")
        assert svg.startswith(b"<svg")
        assert b">alpha<" in svg
        assert page.errors() == []
        page.driver.refresh()

    def test_a_trainer_is_submitted_with_an_error_first(self, page: ServicePage, client: OakumClient) -> None:
        page.go("submit")
        page.wait(lambda: page.shows("#field-name"), "the form")
        spec = small_spec("gamma", epochs=100_000, max_nodes=1)
        page.fill("name", "gamma")
        page.fill("entrypoint", spec.entrypoint)
        page.fill("workdir", str(spec.workdir))
        page.fill("global_batch", "96")
        page.fill("epochs", "0")
        page.wait(lambda: page.shows("#wrong-epochs"), "the error at its field")
        assert page.attributes("#field-epochs", "aria-invalid") == {"true"}
        assert "epochs" in page.texts("#wrong-epochs")[0]
        page.press("Submit", "#view")
        page.wait(lambda: "It was not submitted" in verdict(page), "the refusal")
        assert page.driver.execute_script("return document.querySelector('#field-name').value") == "gamma"
        page.fill("epochs", "100000")
        page.wait(lambda: "This service would take it." in verdict(page), "the check")
        page.wait(lambda: "It would get" in verdict(page), "what the plan would be")
        assert "epochs: 100000\n" in page.texts("#spec-yaml")[0]
        assert page.texts("#spec-line") == ["oakum submit gamma.yaml"]
        page.press("Submit", "#view")
        page.wait(lambda: page.texts(".view-head h2") == ["gamma"], "the trainer's page")
        assert client.trainer("gamma").spec.epochs == 100_000
        client.cancel("gamma")
        wait_until("it has ended", lambda: state_of(client, "gamma").ended)

    def test_a_pasted_spec_fills_the_form_and_what_is_wrong_in_it_is_told(self, page: ServicePage) -> None:
        page.go("submit")
        page.wait(lambda: page.shows("#field-name"), "the form")
        page.click("#view details summary")
        page.write("#spec-text", "name: [1\n")
        page.press("Fill the fields from it")
        page.wait(lambda: any("neither YAML nor JSON" in text for text in page.texts("#view .wrong")), "the error")
        page.on("#spec-text", WebElement.clear)
        page.write(
            "#spec-text", "name: delta\nepochs: 3\nbatch: 7\ncheckpoint: {every_s: 9}\nprecision: bfloat16\n"
        )
        page.press("Fill the fields from it")
        page.wait(
            lambda: any("did you mean “global_batch”?" in text for text in page.texts("#wrong-spec-text p")),
            "what was meant",
        )
        assert page.texts("#wrong-spec-text .place") == ["Line 3"]
        assert page.attributes("#spec-text", "aria-invalid") == {"true"}
        chosen = "const e = document.activeElement; return [e.id, e.value.slice(e.selectionStart, e.selectionEnd)]"
        page.wait(lambda: page.driver.execute_script(chosen) == ["spec-text", "batch: 7"], "the line, chosen")
        value = "return document.querySelector(`[name=${arguments[0]}]`).value"
        assert page.driver.execute_script(value, "name") == "delta"
        assert page.driver.execute_script(value, "precision") == "bfloat16"
        assert json.loads(page.driver.execute_script(value, "checkpoint")) == {"every_s": 9}
        page.wait(lambda: "global_batch" in verdict(page), "the field that is missing")
        command = page.driver.execute_cdp_cmd  # type: ignore[attr-defined]
        command("Network.enable", {})
        command("Network.setBlockedURLs", {"urls": ["*/v1/trainers/read"]})
        try:
            page.press("Fill the fields from it")
            page.wait(lambda: "Cannot reach" in "".join(page.texts("#wrong-spec-text")), "that nothing answers")
            assert page.texts("#wrong-spec-text .place") == [], "an outage is about no line"
        finally:
            command("Network.setBlockedURLs", {"urls": []})
        page.press("Clear", "#view")
        page.wait(lambda: page.texts("#spec-yaml") == ["Nothing is filled in yet."], "an empty form")

    def test_slots_of_a_fragment_are_a_number_or_a_word_and_are_refused_at_their_field(
        self, page: ServicePage
    ) -> None:
        page.go("submit")
        page.wait(lambda: page.shows("#field-name"), "the form")
        assert not page.shows("#field-slots_per_fragment")
        page.click("#spec-form summary")
        page.wait(lambda: page.shows("#field-slots_per_fragment"), "the first of more fields")
        spec = small_spec("slotted", epochs=10, max_nodes=2)
        for name in ("name", "entrypoint", "workdir", "global_batch", "epochs", "max_nodes"):
            page.fill(name, str(getattr(spec, name)))
        for slots, why in (
            ("3", "is a multiple of 3"),
            ("nod", "'nod' should be a valid integer or 'node'"),
            ("2", "nodes are given as a whole here"),
        ):
            page.fill("slots_per_fragment", slots)
            page.wait(lambda why=why: why in page.texts("#wrong-slots_per_fragment")[0], why)  # type: ignore[misc]
            assert page.attributes("#field-slots_per_fragment", "aria-invalid") == {"true"}
        for word, what in (("node", "all slots of a node"), ("auto", "what suits the jobs here")):
            page.fill("slots_per_fragment", word)
            page.wait(lambda: "This service would take it." in verdict(page), what)
            page.wait(lambda word=word: f"slots_per_fragment: {word}\n" in page.texts("#spec-yaml")[0], word)  # type: ignore[misc]
            assert not page.shows("#wrong-slots_per_fragment")
        page.press("Clear", "#view")

    def test_a_trainer_of_a_link_that_is_not_there_is_named(self, page: ServicePage) -> None:
        page.go("compare?trainers=alpha,nobody")
        page.wait(lambda: rows(page) == ["alpha"], "the one that is there")
        page.wait(
            lambda: any("Not among the newest trainers: nobody." in text for text in page.texts("#view .hint")),
            "who is not",
        )

    def test_views_of_research_fit_a_phone(self, page: ServicePage) -> None:
        with on_a_phone(page.driver):
            for view, shown in (
                ("submit", "#field-name"),
                ("compare?trainers=alpha,beta", "#view tbody th a"),
                ("", ".plot .name"),
            ):
                page.go(view)
                page.wait(lambda shown=shown: page.shows(shown), view)  # type: ignore[misc]
                script = "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
                needed, given = page.driver.execute_script(script)
                assert (view, needed) == (view, given)
                beside = (
                    "[...document.querySelectorAll('#view .scroll-x')].map((e) => e.scrollWidth - e.clientWidth)"
                )
                assert set(page.driver.execute_script(f"return {beside}")) <= {0}
                if view.startswith("compare"):
                    assert {"Steps", "Loss", "Nodes"} <= page.attributes("#view tbody td", "data-title")

    @pytest.mark.parametrize(
        "dark", [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]
    )
    def test_views_of_research_break_no_rule_of_accessibility(self, page: ServicePage, dark: bool) -> None:
        shown = {
            "submit": "#field-name",
            "compare?trainers=alpha,beta": ".compare-chart .legendtext",
            "trainers/alpha": "#view .chart .main-svg",
            "plans": "#view table",
        }
        for view, element in shown.items():
            page.go(view)
            page.wait(lambda element=element: page.shows(element), view)  # type: ignore[misc]
            assert (view, violations(page, dark=dark)) == (view, [])
