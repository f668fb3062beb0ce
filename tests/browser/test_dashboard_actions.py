"""What one does on the dashboard, on a real service: signing in, looking closely, changing things by role, and
research."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from accessibility import violations
from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import TrainerState
from running_service import RunningService, small_spec, state_of, wait_for_size
from service_page import Address, ServicePage
from waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.needs("browser")

CODE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = RunningService(tmp_path_factory.mktemp("service"), OAKUM_TRUST_USERS="1")
    client = running.start()
    client.submit(small_spec("long", epochs=100_000, max_nodes=2))
    wait_for_size(client, "long", 2)
    yield running
    running.end()


@pytest.fixture(scope="module")
def client(service: RunningService) -> OakumClient:
    return service.client()


@pytest.fixture(scope="module")
def tokens(service: RunningService) -> dict[str, str]:
    """Tokens of an administrator, a user without trainers, and a viewer."""
    found = json.loads((service.data_dir / "client.json").read_text(encoding="utf-8"))
    made = {"admin": str(found["token"])}
    for name, role in (("ulla", "user"), ("vera", "viewer")):
        answer = httpx.post(
            f"{found['url']}/v1/tokens",
            json={"name": name, "role": role},
            headers={"Authorization": f"Bearer {found['token']}"},
            timeout=DEADLINE_S,
        )
        made[role] = str(answer.raise_for_status().json()["token"])
    return made


def page_of(driver: WebDriver, client: OakumClient) -> ServicePage:
    """The service's page, which is not opened yet."""
    return ServicePage(driver, Address(client.address.url))  # type: ignore[arg-type]


@pytest.fixture(scope="class")
def administrator(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> ServicePage:
    opened = page_of(driver, client)
    opened.enter(tokens["admin"])
    return opened


def afresh(tab: str) -> Any:
    """A fixture: the page of the fixture `tab`, which is signed in once, in the state in which a test begins."""

    @pytest.fixture
    def page(self: object, request: pytest.FixtureRequest) -> ServicePage:
        opened: ServicePage = request.getfixturevalue(tab)
        opened.afresh()
        return opened

    return page


class TestAdministrator:
    """What an administrator sees and does in one tab, signed in once."""

    page = afresh("administrator")

    def test_a_trainers_page_tells_all_and_back_leads_back(self, page: ServicePage, client: OakumClient) -> None:
        page.wait(lambda: "long" in page.texts("#overview .trainer h3 a"), "the card")
        page.click(f"#overview [data-trainer='{client.trainer('long').id}'] h3 a")
        page.wait(lambda: page.texts(".view-head h2") == ["long"], "the trainer's page")
        assert not page.shows("#overview")
        page.wait(lambda: len(page.texts("#view .chart .main-svg")) >= 3, "the charts")
        page.wait(lambda: "Checkpoints" in page.texts("#view .part h3"), "the panels")
        page.wait(lambda: any("oakum export long" in text for text in page.texts("#view code")), "the export line")
        link = page.driver.current_url
        page.back()
        page.wait(lambda: page.shows("#overview"), "the overview")
        page.driver.get("about:blank")
        page.driver.get(link)
        page.wait(lambda: page.texts(".view-head h2") == ["long"], "the page by its link")
        page.wait(lambda: page.driver.title == "long – Oakum", "the title")
        assert page.errors() == []

    def test_a_range_chosen_in_one_chart_holds_for_all(self, page: ServicePage) -> None:
        page.go("trainers/long")
        page.wait(lambda: len(page.texts("#view .chart .main-svg")) >= 3, "the charts")
        zoom = (
            "const [first] = document.querySelectorAll('#view .chart');"
            "const [from, to] = first.layout.xaxis.range;"
            "const middle = new Date((+new Date(from) + +new Date(to)) / 2).toISOString().slice(0, -1);"
            "Plotly.relayout(first, {'xaxis.range[0]': from, 'xaxis.range[1]': middle})"
        )
        every = "[...document.querySelectorAll('#view .chart')]"
        ranges = f"return {every}.map((one) => JSON.stringify(one.layout.xaxis.range))"
        page.driver.execute_script(zoom)
        page.wait(lambda: page.shows("#view .whole-time"), "the button that shows all")
        page.wait(lambda: len(set(page.driver.execute_script(ranges))) == 1, "one range in all charts")
        page.press("Whole time", "#view")
        page.wait(lambda: not page.shows("#view .whole-time"), "the whole time again")

    def test_pause_scale_and_cancel_ask_first_and_then_act(self, page: ServicePage, client: OakumClient) -> None:
        client.submit(small_spec("short", epochs=100_000, max_nodes=1))
        page.go("trainers/short")
        page.press("Pause", "#actions")
        page.wait(lambda: page.texts("dialog h2") == ["Pause short?"], "the question")
        page.press("Leave it", "dialog")
        page.wait(lambda: not page.shows("dialog"), "its end")
        page.press("Pause", "#actions")
        page.fill("reason", CODE)
        page.press("Pause", "dialog")
        wait_until("it is paused", lambda: client.trainer("short").status == "paused")
        page.wait(
            lambda: any(CODE in text for text in page.texts(".reason, .why, .message")), "the reason, as text"
        )
        page.press("End pause", "#actions")
        page.press("End pause", "dialog")
        wait_until("it is no longer paused", lambda: client.trainer("short").status != "paused")
        page.press("Scale", "#actions")
        page.fill("min_nodes", "3")
        page.fill("max_nodes", "2")
        page.press("Change", "dialog")
        page.wait(lambda: "min_nodes" in "".join(page.texts("dialog .wrong")), "what is wrong")
        page.fill("min_nodes", "1")
        page.press("Change", "dialog")
        wait_until("it may have two", lambda: client.trainer("short").spec.max_nodes == 2)
        page.wait(lambda: not page.shows("dialog"), "its end")
        page.press("Scale", "#actions")
        page.fill("sizes", "1, 2, 4")
        page.press("Change", "dialog")
        wait_until("it has sizes", lambda: client.trainer("short").spec.allowed_sizes == (1, 2, 4))
        page.press("Cancel", "#actions")
        page.press("Cancel the trainer", "dialog")
        wait_until("it is cancelled", lambda: state_of(client, "short") is TrainerState.CANCELLED)
        page.wait(lambda: page.buttons("#actions") == ["Retry"], "the only button")
        assert page.attributes("body img", "src") == {"static/icon.svg"}
        assert "owned" not in page.driver.title

    def test_a_hold_needs_a_reason_which_everybody_sees(self, page: ServicePage, client: OakumClient) -> None:
        page.press("Hold…", "#account")
        page.press("Hold", "dialog")
        missing = "return document.querySelector('dialog [name=reason]').validity.valueMissing"
        assert page.driver.execute_script(missing)
        assert not client.cluster().held
        page.fill("reason", "maintenance at 8" + Keys.ENTER)
        page.wait(lambda: any("maintenance at 8" in text for text in page.texts("#mode")), "the hold")
        assert client.cluster().held
        page.wait(lambda: page.driver.title.startswith("HELD: "), "the tab's title")
        page.press("Resume", "#account")
        page.press("Resume", "dialog")
        wait_until("the hold has ended", lambda: not client.cluster().held)

    def test_the_log_is_searched_as_one_types(
        self, page: ServicePage, client: OakumClient, tmp_path: Path
    ) -> None:
        page.go("trainers/long")
        page.wait(lambda: page.shows("#log summary"), "the log")
        page.click("#log summary")
        page.wait(lambda: "lines" in "".join(page.texts("#log .found")), "lines")
        page.write("#log-search", "no line has these words")
        page.wait(lambda: page.texts("#log .found")[0].startswith("0 of the newest"), "none of them")
        assert page.texts("#log .log") == [""]
        wanted = client.logs("long").lines[-1].strip()[-24:]
        page.write("#log-search", Keys.CONTROL + "a" + Keys.NULL + wanted)

        def only_those() -> bool:
            shown = page.texts("#log .log")[0].splitlines()
            return bool(shown) and all(wanted.lower() in line.lower() for line in shown)

        page.wait(only_those, "the lines with the words")

    def test_a_plan_is_shown_as_the_difference_to_the_one_before(
        self, page: ServicePage, client: OakumClient
    ) -> None:
        for size in (1, 2):
            client.change("long", TrainerChange(max_nodes=size))
            wait_until("long trains on them", lambda size=size: len(client.trainer("long").nodes) == size)  # type: ignore[misc]
        plan = next(one for one in client.plans().plans if one.parent and one.allocations)
        page.go(f"plans/{plan.id}")
        page.wait(lambda: page.texts(".view-head h2") == [f"Plan {plan.id}"], "the plan")
        page.wait(lambda: f"Compared with plan {plan.parent}" in "".join(page.texts("#view p")), "its parent")
        shown = dict(zip(page.texts("#view tbody th"), page.texts("#view tbody tr"), strict=True))
        assert "long" in shown
        page.click(f"#view p a[href='#/plans/{plan.parent}']")
        page.wait(lambda: page.texts(".view-head h2") == [f"Plan {plan.parent}"], "the parent")

    def test_free_nodes_are_said_to_be_unused_and_why(self, page: ServicePage, client: OakumClient) -> None:
        page.wait(lambda: page.texts("#summary dt")[:2] == ["Nodes that train", "Unused nodes"], "the figures")
        page.wait(lambda: "every trainer has its maximum" in page.texts("#summary .note")[1], "why")
        client.hold("maintenance")
        page.wait(lambda: "the service is held" in page.texts("#summary .note")[1], "why, now")
        client.resume()
        wait_for_size(client, "long", 2)

    def test_what_is_not_there_is_told_and_is_no_outage(self, page: ServicePage) -> None:
        for view in ("trainers/nobody", "plans/123456"):
            page.go(view)
            name = view.rpartition("/")[2]
            page.wait(lambda name=name: any(name in told for told in page.texts("#first-answer p")), view)  # type: ignore[misc]
            page.wait(lambda: page.buttons("#first-answer") == ["Try again"], "what one may do")
            assert (page.texts("#liveness"), page.shows("#banner")) != (["Offline"], True)
            page.go()
            page.wait(lambda: page.shows("#overview") and not page.shows("#first-answer"), "the overview")
        page.errors()  # the browser's own words about 404

    def test_the_longest_window_moves_into_the_past(self, page: ServicePage) -> None:
        page.go("?span=2592000")
        page.wait(lambda: any("30" in text for text in page.texts("#window")), "thirty days")
        page.click("#earlier")
        page.wait(lambda: "from=" in page.driver.current_url, "the window in the address")
        page.wait(lambda: not page.shows("#banner"), "no refusal")
        assert page.errors() == []

    def test_a_trainer_that_never_started_has_a_log(self, page: ServicePage, client: OakumClient) -> None:
        client.submit(small_spec("late", min_nodes=2, max_nodes=2).model_copy(update={"priority": -5}))
        page.go("trainers/late")
        page.wait(lambda: page.shows("#log"), "the log's panel")
        client.cancel("late")

    def test_its_files_can_be_taken_away(self, page: ServicePage) -> None:
        page.go("trainers/long")
        saved = "window.saved = []; URL.createObjectURL = (blob) => (window.saved.push(blob), 'about:blank#');"
        page.wait(lambda: "Files" in page.texts("#view .part h3"), "the panel")
        page.driver.execute_script(saved + "HTMLAnchorElement.prototype.click = () => {};")
        for text in ("Spec (JSON)", "Points (CSV)", "Log"):
            page.press(text, "#view .more")
        page.wait(lambda: page.driver.execute_script("return window.saved.length") == 3, "three files")
        read = "const done = arguments[0]; Promise.all(window.saved.map((each) => each.text())).then(done)"
        spec, *others = sorted(page.driver.execute_async_script(read), key=lambda text: not text.startswith("{"))
        assert json.loads(spec)["name"] == "long"
        assert any(text.startswith("at,step,") and text.count("\n") > 2 for text in others)

    def test_a_change_that_changes_nothing_says_so(self, page: ServicePage) -> None:
        page.go("trainers/long")
        page.press("Scale", "#actions")
        page.press("Change", "dialog")
        page.wait(lambda: "Nothing is different" in "".join(page.texts("dialog .wrong")), "the hint")
        page.press("Leave it", "dialog")

    def test_it_fits_a_phone(self, page: ServicePage) -> None:
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        try:
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)  # type: ignore[attr-defined]
            page.driver.refresh()
            for view, shown in (("", "#overview"), ("trainers/long", "#view .trainer"), ("plans", "#view table")):
                page.go(view)
                page.wait(lambda shown=shown: page.shows(shown), shown)  # type: ignore[misc]
                width = "return [document.documentElement.scrollWidth, innerWidth]"
                needed, there = page.driver.execute_script(width)
                assert (needed, there) == (390, 390), view
        finally:
            page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]

    def test_one_signs_in_by_a_cookie_that_scripts_cannot_read_and_out_again(self, page: ServicePage) -> None:
        """The last on this page, which it leaves signed out."""
        page.wait(lambda: "long" in page.texts(".trainer h3"), "the card")
        kept = "return [document.cookie, JSON.stringify({...sessionStorage, ...localStorage})]"
        assert page.driver.execute_script(kept) == ["", "{}"]
        page.driver.refresh()
        page.wait(lambda: "long" in page.texts(".trainer h3"), "the card after a reload")
        page.press("Sign out")
        page.wait(lambda: page.shows("#sign-in"), "the form")
        page.driver.refresh()
        page.wait(lambda: page.shows("#sign-in"), "the form after a reload")


@pytest.fixture(scope="class")
def viewer(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> ServicePage:
    opened = page_of(driver, client)
    opened.enter(tokens["viewer"])
    return opened


class TestViewer:
    """What a viewer sees and does, and what a user sees of another's trainer."""

    def test_plans_are_listed_compared_and_supposed(self, viewer: ServicePage, client: OakumClient) -> None:
        viewer.go("plans")
        viewer.wait(lambda: any(text.startswith("Plan ") for text in viewer.texts("#view tbody th a")), "plans")
        viewer.fill("drain_count", "1000")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "0 nodes to give" in "".join(viewer.texts("#outcome")), "the plan without nodes")
        assert viewer.texts("#outcome tbody th") == ["long"]
        viewer.fill("objective", "nonsense *")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "objective" in "".join(viewer.texts("#outcome .wrong")), "what is wrong")
        viewer.press("Clear", "#view")
        assert viewer.texts("#outcome") == [""]
        viewer.fill("changed", "long")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "or neither" in "".join(viewer.texts("#outcome .wrong")), "what is missing")
        viewer.fill("max_nodes", "1")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: viewer.texts("#outcome tbody td")[1:2] == ["1"], "the smaller trainer")
        viewer.press("Clear", "#view")
        viewer.fill("remove", "long")
        viewer.press("Preview", "#view")
        viewer.wait(
            lambda: "long" not in "".join(viewer.texts("#outcome tbody")) and viewer.texts("#outcome p"),
            "without it",
        )
        assert client.trainer("long").nodes

    def test_buttons_that_one_may_not_press_are_not_there(
        self, viewer: ServicePage, tokens: dict[str, str]
    ) -> None:
        """The last on this viewer, on which the user signs in after the viewer."""
        for role in ("viewer", "user"):
            if role == "user":
                viewer.enter(tokens[role])
            viewer.go("trainers/long")
            viewer.wait(lambda: viewer.texts(".view-head h2") == ["long"], "the trainer's viewer")
            viewer.wait(lambda: viewer.shows("#view .trainer"), "the card")
            assert viewer.buttons("#actions") == [], role
            assert viewer.buttons("#account") == ["Sign out"], role
            # Another user's losses, log and files are not shown to users; viewers read everything.
            assert viewer.shows("#view .trainer .charts") == (role == "viewer")
            assert viewer.shows("#log") == (role == "viewer")


def test_a_tab_shows_as_whom_it_acts(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> None:
    page = page_of(driver, client)
    page.enter(tokens["user"])
    page.wait(lambda: page.texts("#account .who") == ["ulla, user"], "the user")
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    page.open(tokens["admin"])
    page.wait(lambda: page.texts("#account .who")[:1] not in ([], ["ulla, user"]), "the administrator")
    [admin] = page.texts("#account .who")
    driver.close()
    driver.switch_to.window(first)
    page.wait(lambda: page.texts("#account .who") == [admin], "the first tab as the administrator, too")


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
            lambda: any("left out: batch" in text for text in page.texts("#view .wrong")), "what is no field"
        )
        value = "return document.querySelector(`[name=${arguments[0]}]`).value"
        assert page.driver.execute_script(value, "name") == "delta"
        assert page.driver.execute_script(value, "precision") == "bfloat16"
        assert json.loads(page.driver.execute_script(value, "checkpoint")) == {"every_s": 9}
        page.wait(lambda: "global_batch" in verdict(page), "the field that is missing")
        page.press("Clear", "#view")
        page.wait(lambda: page.texts("#spec-yaml") == ["Nothing is filled in yet."], "an empty form")

    def test_a_trainer_of_a_link_that_is_not_there_is_named(self, page: ServicePage) -> None:
        page.go("compare?trainers=alpha,nobody")
        page.wait(lambda: rows(page) == ["alpha"], "the one that is there")
        page.wait(
            lambda: any("Not among the newest trainers: nobody." in text for text in page.texts("#view .hint")),
            "who is not",
        )

    def test_views_of_research_fit_a_phone(self, page: ServicePage) -> None:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)  # type: ignore[attr-defined]
        try:
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
        finally:
            page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]

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
