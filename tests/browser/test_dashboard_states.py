"""What each view says while it loads, where there is nothing, and when no service answers, read by axe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver.remote.webdriver import WebDriver

from accessibility import violations
from api_under_test import ApiUnderTest
from dashboard_page import Page, Server
from empty_databases import empty_database as empty_database
from oakum_service.api.auth import Role
from page_states import DOCUMENTS, PICTURES, VIEWS, View, held, on_a_phone, refused
from service_page import ServicePage

pytestmark = pytest.mark.needs("browser")

_WATCH_LIVENESS = """
    const element = document.querySelector("#liveness");
    window.told = new Set([element.textContent]);
    const watch = new MutationObserver(() => told.add(element.textContent));
    watch.observe(element, { childList: true, characterData: true, subtree: true });
    performance.clearResourceTimings();
"""
_HAS_COME = "return performance.getEntriesByType('resource').some(({ name }) => name.includes(arguments[0]))"

SCHEMES = [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]


@pytest.fixture(scope="class")
def api(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiUnderTest]:
    folder = tmp_path_factory.mktemp("api")
    shutil.copy(empty_database, folder / "oakum.db")
    running = ApiUnderTest(folder)
    yield running
    running.close()


@pytest.fixture(scope="class")
def empty(driver: WebDriver, api: ApiUnderTest) -> Iterator[ServicePage]:
    """The page of a service that has neither trainers nor nodes, signed in."""
    served = Server()
    served.app = api.app
    opened = ServicePage(driver, served)
    opened.enter(api.new_token("anna", Role.ADMIN), "trainers")
    yield opened
    api.news_for_readers.close()
    served.stop()


def go_through(page: ServicePage, check: Callable[[View], None], *, dark: bool) -> None:
    """Show each view anew, check it, and have axe read it."""
    for view in VIEWS:
        page.go("nowhere")
        page.go(view.address.format(trainer="digits", plan=1))
        check(view)
        assert (view.name, violations(page, dark=dark)) == (view.name, [])


class TestStates:
    """All views of a service that is empty."""

    @pytest.mark.parametrize("dark", SCHEMES)
    def test_a_view_that_loads_says_so_and_shows_nothing_of_the_one_before(
        self, empty: ServicePage, dark: bool
    ) -> None:
        titles = set()

        def check(view: View) -> None:
            empty.wait(lambda: empty.shows("#first-answer [role=status]"), f"that {view.name} loads")
            assert empty.texts("#first-answer")[0].startswith("Loading")
            assert not seen(empty, "main h2, main table, main .empty, main .tile"), view.name
            assert empty.texts("#account .who") == ["anna, admin"]
            titles.add(empty.driver.title)

        with held(empty.driver, *DOCUMENTS):
            go_through(empty, check, dark=dark)
        assert len(titles) == len(VIEWS)
        empty.errors()

    @pytest.mark.parametrize("dark", SCHEMES)
    def test_a_view_that_does_not_come_says_why_once_and_lets_one_try_again(
        self, empty: ServicePage, dark: bool
    ) -> None:
        def check(view: View) -> None:
            empty.wait(lambda: empty.shows("#first-answer [role=alert]"), f"why {view.name} does not come")
            said = empty.texts("#first-answer [role=alert]")[0]
            assert said.startswith("Cannot reach the Oakum service at ")
            assert "Shown is" not in said
            assert empty.texts("#first-answer button, #first-answer a") == ["Try again"]
            assert not empty.shows("#banner")
            empty.wait(lambda: empty.texts("#liveness") == ["Offline"], "that nothing answers")

        with refused(empty.driver, *DOCUMENTS):
            go_through(empty, check, dark=dark)
        empty.press("Try again", "#first-answer")
        empty.wait(lambda: not empty.shows("#first-answer"), "the overview")
        empty.errors()  # the browser's own words about what was kept away

    def test_a_view_that_loads_in_an_outage_is_not_offline_yet(self, empty: ServicePage) -> None:
        empty.go("nowhere")
        with refused(empty.driver, *DOCUMENTS):
            empty.go("plans")
            empty.wait(lambda: empty.texts("#liveness") == ["Offline"], "that nothing answers")
        with held(empty.driver, *DOCUMENTS):
            empty.go("users")
            empty.wait(lambda: empty.shows("#first-answer [role=status]"), "that users load")
            assert empty.texts("#liveness") == ["Loading…"]
        empty.errors()  # the browser's own words about what was kept away

    @pytest.mark.parametrize("dark", SCHEMES)
    def test_a_view_without_anything_says_why(self, empty: ServicePage, dark: bool) -> None:
        def check(view: View) -> None:
            if view.empty is None:
                return
            words = view.empty
            empty.wait(lambda: any(text.startswith(words) for text in seen(empty, "main .empty")), words)

        go_through(empty, check, dark=dark)
        for part, words in (
            ("#no-rows", "The scheduler has shown no node yet."),
            ("#strip span", "Nothing is known yet of how the nodes were used."),
            ("#events .empty", "Nothing has happened yet"),
        ):
            empty.wait(lambda part=part, words=words: "".join(seen(empty, part)).startswith(words), words)  # type: ignore[misc]
        empty.errors()  # of what is not there: a trainer, a plan

    def test_another_view_waits_for_no_answer_of_the_one_before(self, empty: ServicePage) -> None:
        empty.go("nowhere")
        with held(empty.driver, "*/v1/quotas*"):
            empty.go("users")
            empty.wait(lambda: empty.shows("#first-answer"), "that users load")
            empty.go("plans")
            empty.wait(lambda: seen(empty, "#view .empty"), "that there is no plan", within_s=4.0)
            assert not empty.shows("#first-answer")

    def test_an_answer_for_the_view_before_does_not_tell_that_this_one_is_live(self, empty: ServicePage) -> None:
        empty.go("nowhere")
        with held(empty.driver, "*/v1/quotas*"):
            empty.go("users")
            empty.wait(lambda: empty.shows("#first-answer"), "that users load")
            with refused(empty.driver, "*/v1/plans*"):
                empty.go("plans")
                empty.wait(lambda: empty.shows("#first-answer [role=alert]"), "why plans do not come")
                empty.driver.execute_script(_WATCH_LIVENESS)
                empty.driver.execute_cdp_cmd("Fetch.disable", {})  # type: ignore[attr-defined]
                empty.wait(lambda: empty.driver.execute_script(_HAS_COME, "v1/quotas"), "what was held")
                empty.driver.execute_async_script("setTimeout(arguments[0], 200)")
                assert empty.driver.execute_script("return [...told]") == ["Offline"]
        empty.errors()  # the browser's own words about what was kept away

    def test_an_answer_for_an_earlier_visit_of_the_overview_is_none_for_this_one(self, empty: ServicePage) -> None:
        empty.go("nowhere")
        with held(empty.driver, "*/v1/trainers*"):
            empty.go("")
            empty.wait(lambda: empty.shows("#first-answer"), "that the overview loads")
            empty.go("plans")
            empty.wait(lambda: seen(empty, "#view .empty"), "that there is no plan")
            with refused(empty.driver, "*/v1/cluster*"):
                empty.go("")
                empty.wait(lambda: empty.shows("#first-answer [role=alert]"), "why the overview does not come")
                empty.driver.execute_script("performance.clearResourceTimings()")
                empty.driver.execute_cdp_cmd("Fetch.disable", {})  # type: ignore[attr-defined]
                empty.wait(lambda: empty.driver.execute_script(_HAS_COME, "v1/trainers"), "what was held")
                empty.driver.execute_async_script("setTimeout(arguments[0], 200)")
                assert empty.shows("#first-answer [role=alert]")
        empty.errors()  # the browser's own words about what was kept away

    def test_what_is_told_of_a_view_on_a_phone_stands_at_the_top(self, empty: ServicePage) -> None:
        with on_a_phone(empty.driver), refused(empty.driver, *DOCUMENTS):
            for view in VIEWS:
                empty.go("nowhere")
                empty.go(view.address.format(trainer="digits", plan=1))
                empty.wait(lambda: empty.shows("#first-answer [role=alert]"), f"why {view.name} does not come")
                heights = "return ['#view', '#overview'].map((one) => document.querySelector(one).offsetHeight)"
                assert (view.name, empty.driver.execute_script(heights)) == (view.name, [0, 0])
        empty.errors()  # the browser's own words about what was kept away


class TestSignIn:
    """A page of which it is not known yet who is signed in."""

    def test_it_says_that_it_loads_then_why_nothing_comes_and_lets_one_try_again(self, page: Page) -> None:
        page.forget()
        with held(page.driver, *DOCUMENTS):
            page.open(token=None)
            page.wait(lambda: seen(page, "main [role=status]") == ["Loading…"], "that it loads")
        with refused(page.driver, *DOCUMENTS):
            page.open(token=None)
            page.wait(lambda: page.shows("#first-answer [role=alert]"), "why nothing comes")
            assert (page.texts("#liveness"), page.shows("#banner")) == (["Offline"], False)
            assert violations(page) == []
        page.click("#first-answer button")
        page.wait(lambda: page.shows("#sign-in"), "the form")
        assert not page.shows("#main")
        page.errors()  # the browser's own words about what was kept away


def seen(page: Page, selector: str) -> list[str]:
    """The texts of those elements that can be seen."""
    script = """
        const isSeen = (element) => element.checkVisibility({ visibilityProperty: true });
        return [...document.querySelectorAll(arguments[0])].filter(isSeen).map((one) => one.textContent);
    """
    return list(page.driver.execute_script(script, selector))


def test_rows_that_load_or_do_not_come_are_not_taken_for_idle_nodes(page: Page) -> None:
    """The overview's numbers are there; what its pictures are made of is held, then refused, then comes."""
    driver = page.driver
    with held(driver, *PICTURES):
        page.open()
        page.wait(lambda: seen(page, ".picture .lack") == ["Loading…"], "that rows load")
        assert page.attributes("#timeline", "aria-busy") == {"true"}
        assert seen(page, "#strip span")[0] == "Loading…"
        assert seen(page, "#events .empty") == ["Loading…"]
        page.click(".node-table summary")
        page.wait(lambda: len(page.texts("#nodes tbody th")) > 1, "the table, which needs nothing more")
    with refused(driver, *PICTURES):
        driver.refresh()
        page.wait(lambda: page.shows(".lack.fault button"), "why rows do not come, with a way to try again")
        said = "Not loaded: nothing answers."
        assert page.texts(".lack")[0].startswith(said)
        page.wait(lambda: page.texts("#events .empty") == [f"{said} Try again"], "why events do not come")
        assert page.texts("#strip span")[0] == f"{said} Try again"
        page.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
        page.wait(lambda: page.texts(".chart-note [role=alert]") == [said, said], "why charts do not come")
        rooms = "return [...document.querySelectorAll('.chart')].map((one) => one.offsetHeight)"
        assert {*page.driver.execute_script(rooms)} == {0}
        assert not page.shows("#banner"), "the numbers are current"
    page.click(".lack button")
    page.wait(lambda: page.texts(".plot .training"), "fragments")
    page.wait(lambda: not page.shows(".lack"), "nothing over them")
    page.wait(lambda: page.texts("#events .event"), "events")
    page.driver.execute_script("[...document.querySelectorAll('.charts')].at(-1).scrollIntoView()")
    page.wait(lambda: min(page.driver.execute_script(rooms)) > 50, "charts of all cards")
    assert page.texts(".chart .main-svg")
    assert page.attributes("#timeline", "aria-busy") == {"false"}
    page.errors()  # the browser's own words about what was kept away
