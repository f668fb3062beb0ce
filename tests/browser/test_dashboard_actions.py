"""What one sees and does on the dashboard by one's role, on a real service: signing in, looking closely, changing
things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.expected_conditions import alert_is_present

from dashboard_service import afresh, page_of
from dashboard_service import client as client
from dashboard_service import service as service
from dashboard_service import tokens as tokens
from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import TrainerState
from page_states import on_a_phone
from running_service import small_spec, state_of, wait_for_size
from service_page import ServicePage
from waiting import wait_until

pytestmark = pytest.mark.needs("browser")

CODE = "<img src=x onerror=document.title='owned'>"


def focused(page: ServicePage) -> str:
    """Id of the element that has the focus."""
    return str(page.driver.execute_script("return document.activeElement.id"))


def value_of(page: ServicePage, name: str) -> str:
    """What a field holds."""
    return str(page.driver.execute_script("return document.querySelector(`[name=${arguments[0]}]`).value", name))


@pytest.fixture(scope="class")
def administrator(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> ServicePage:
    opened = page_of(driver, client)
    opened.enter(tokens["admin"])
    return opened


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
        every = "[...document.querySelectorAll('#view .chart')].filter((one) => one.layout)"
        ranges = f"return {every}.map((one) => JSON.stringify(one.layout.xaxis.range))"
        page.driver.execute_script(zoom)
        page.wait(lambda: page.shows("#view .whole-time"), "the button that shows all")
        page.wait(lambda: len(set(page.driver.execute_script(ranges))) == 1, "one range in all charts")
        page.press("Whole time", "#view")
        page.wait(lambda: not page.shows("#view .whole-time"), "the whole time again")

    def test_what_a_trainers_nodes_do_is_drawn_of_all_and_of_one(self, page: ServicePage) -> None:
        page.go("trainers/long")
        page.wait(lambda: page.shows(".node-use"), "the part of the page")
        page.driver.execute_script("document.querySelector('.node-use').scrollIntoView()")
        page.wait(lambda: len(page.texts(".node-use .chart .main-svg")) >= 2, "CPU and memory")
        page.wait(lambda: len(page.texts("#node-choice option")) >= 2, "its nodes to choose from")
        of_all = page.texts(".node-use figcaption strong")[0]
        assert "%" in of_all
        page.driver.execute_script(
            "const choice = document.querySelector('#node-choice');"
            "choice.value = choice.options[1].value;"
            "choice.dispatchEvent(new Event('change'))"
        )
        page.wait(lambda: "cores" in page.texts(".node-use figcaption strong")[0], "one node, with what it has")
        whole, own = page.driver.execute_script(
            "return document.querySelector('.node-use .chart').data"
            ".map((line) => line.line.dash).filter((dash, i, all) => all.indexOf(dash) === i)"
        )
        assert (whole, own) == ("solid", "dot")
        assert page.errors() == []

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
        ended = ["Retry", "Tags and notes"]
        page.wait(lambda: page.buttons("#actions") == ended, "the buttons of one that has ended")
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
        reason = "return document.querySelector('#view tbody tr td:nth-child(4)').getBoundingClientRect().right"
        with on_a_phone(page.driver):
            page.driver.refresh()
            page.wait(lambda: page.shows("#view tbody"), "the plan")
            assert page.driver.execute_script(reason) <= 390, "the reason is seen without scrolling"
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
            assert page.texts("#first-answer a") == ["To the overview"]
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
        assert not page.shows("#log pre")
        page.go("trainers/late?log=open")
        page.wait(lambda: page.shows("#log pre"), "the log, to which a failed trainer's card leads")
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

    def test_a_refusal_stands_at_its_field_in_every_dialog(self, page: ServicePage) -> None:
        page.go("trainers/long")
        page.click("#actions button:nth-child(2)")
        page.wait(lambda: page.texts("dialog h2") == ["Scale long"], "the dialog")
        for name, given in (("weight", "0"), ("min_nodes", "")):
            page.fill(name, given)
            page.press("Change", "dialog")
            page.wait(lambda name=name: page.shows(f"#wrong-{name}"), f"the refusal of {name}")  # type: ignore[misc]
            page.wait(lambda name=name: focused(page) == f"field-{name}", f"the focus on {name}")  # type: ignore[misc]
            assert page.shows("dialog")
            assert page.attributes(f"#field-{name}", "aria-invalid") == {"true"}
            assert f"wrong-{name}" in page.attributes(f"#field-{name}", "aria-describedby").pop().split()
            page.fill(name, "1")
            assert not page.shows(f"#wrong-{name}"), "a value that is being changed is not yet wrong"
        page.press("Leave it", "dialog")
        page.wait(lambda: page.texts(":focus") == ["Scale"], "the focus where it was")
        page.press("Hold…", "#account")
        page.fill("reason", "  ")
        page.press("Hold", "dialog")
        page.wait(lambda: page.shows("#wrong-reason"), "the refusal of the reason")
        page.wait(lambda: focused(page) == "field-reason", "the focus on the reason")
        page.press("Leave it", "dialog")

    def test_what_is_half_typed_outlives_a_reload_and_the_end_of_the_session(
        self, page: ServicePage, tokens: dict[str, str]
    ) -> None:
        page.go("submit")
        page.wait(lambda: page.shows("#field-name"), "the form")
        page.fill("name", "half")
        page.driver.refresh()
        page.wait(lambda: page.shows("#field-name"), "the form again")
        assert value_of(page, "name") == "half"
        page.fill("workdir", "/home/hal")
        page.driver.delete_all_cookies()
        page.wait(lambda: page.shows("#sign-in"), "the end of the session")
        page.write("#token", tokens["admin"] + Keys.ENTER)
        page.wait(lambda: page.shows("#field-name"), "the form once more")
        assert (value_of(page, "name"), value_of(page, "workdir")) == ("half", "/home/hal")
        page.wait(lambda: focused(page) == "field-workdir", "the focus where it was")
        page.press("Clear", "#view")
        page.go("trainers/long")
        page.press("Pause", "#actions")
        page.fill("reason", "half a rea")
        page.driver.refresh()
        page.press("Pause", "#actions")
        assert value_of(page, "reason") == "half a rea"
        page.press("Leave it", "dialog")
        kept = "return JSON.stringify({...sessionStorage})"
        page.wait(lambda: page.driver.execute_script(kept) == "{}", "that it is forgotten")

    def test_a_change_that_changes_nothing_says_so(self, page: ServicePage) -> None:
        page.go("trainers/long")
        page.press("Scale", "#actions")
        page.press("Change", "dialog")
        page.wait(lambda: "Nothing is different" in "".join(page.texts("dialog .wrong")), "the hint")
        page.press("Leave it", "dialog")

    def test_it_fits_a_phone(self, page: ServicePage) -> None:
        with on_a_phone(page.driver):
            page.driver.refresh()
            for view, shown in (("", "#overview"), ("trainers/long", "#view .trainer"), ("plans", "#view table")):
                page.go(view)
                page.wait(lambda shown=shown: page.shows(shown), shown)  # type: ignore[misc]
                width = "return [document.documentElement.scrollWidth, innerWidth]"
                needed, there = page.driver.execute_script(width)
                assert (needed, there) == (390, 390), view

    def test_a_link_with_another_s_token_asks_before_it_signs_one_in(
        self, page: ServicePage, tokens: dict[str, str]
    ) -> None:
        page.driver.get("about:blank")
        page.driver.get(f"{page.server.url}#token={tokens['viewer']}")
        asked = page.wait(lambda: alert_is_present()(page.driver), "the question")
        assert asked.text.endswith("(viewer). Do you want that?")
        asked.dismiss()
        page.wait(lambda: page.texts("#account .who") == ["local-admin, admin"], "the page of before")

    def test_one_signs_in_by_a_cookie_that_scripts_cannot_read_and_out_again(self, page: ServicePage) -> None:
        """The last on this page, which it leaves signed out."""
        page.wait(lambda: "long" in page.texts(".trainer h3"), "the card")
        kept = (
            "const {'oakum-tones': tones, 'oakum-session': half, ...rest} = {...sessionStorage, ...localStorage};"
            "return [document.cookie, half.length, rest, JSON.parse(tones).flat().every(Number.isInteger)]"
        )
        assert page.driver.execute_script(kept) == ["", 16, {}, True], "half a session, and colours without names"
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
        viewer.click("#field-changed")
        suggested = "return [...document.querySelector('#field-changed').list.options].map(({ value }) => value)"
        viewer.wait(lambda: "long" in viewer.driver.execute_script(suggested), "the trainers' names")
        viewer.fill("drain_count", "1000")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "0 idle nodes to" in "".join(viewer.texts("#outcome")), "the plan without nodes")
        assert viewer.texts("#outcome tbody th") == ["long"]
        viewer.fill("objective", "nonsense *")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "objective" in "".join(viewer.texts("#wrong-objective")), "what is wrong")
        viewer.press("Clear", "#view")
        assert viewer.texts("#outcome") == [""]
        viewer.fill("changed", "long")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "or neither" in "".join(viewer.texts("#wrong-max_nodes")), "what is missing")
        viewer.fill("max_nodes", "1")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: viewer.texts("#outcome tbody td")[1:2] == ["1"], "the smaller trainer")
        viewer.press("Clear", "#view")
        viewer.fill("remove", "long")
        viewer.press("Preview", "#view")
        viewer.wait(
            lambda: (
                "Objective" in "".join(viewer.texts("#outcome p"))
                and "long" not in "".join(viewer.texts("#outcome tbody"))
            ),
            "without it",
        )
        assert client.trainer("long").nodes

    def test_a_refusal_stands_at_the_field_whose_value_it_quotes(self, viewer: ServicePage) -> None:
        viewer.go("plans")
        viewer.fill("remove", "long, nobody")
        viewer.press("Preview", "#view")
        viewer.wait(lambda: "'nobody'" in "".join(viewer.texts("#wrong-remove")), "what is wrong")
        viewer.wait(lambda: focused(viewer) == "field-remove", "the focus on it")
        assert viewer.texts("#outcome") == [""]
        assert value_of(viewer, "remove") == "long, nobody"
        viewer.press("Clear", "#view")

    def test_buttons_that_one_may_not_press_are_not_there(
        self, viewer: ServicePage, tokens: dict[str, str]
    ) -> None:
        """The viewer is last asked for here: the user signs in after it."""
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

    def test_who_may_not_see_a_loss_is_told_so_and_not_that_there_is_no_trainer(
        self, viewer: ServicePage, tokens: dict[str, str]
    ) -> None:
        viewer.enter(tokens["user"], "compare?trainers=long")
        viewer.wait(lambda: any("You have no trainer." in text for text in viewer.texts("#view .empty")), "why")
        assert "Of other users, who alone see losses: long." in viewer.texts("#view .part")[1]


def test_a_tab_shows_as_whom_it_acts(driver: WebDriver, client: OakumClient, tokens: dict[str, str]) -> None:
    page = page_of(driver, client)
    page.enter(tokens["user"])
    page.wait(lambda: page.texts("#account .who") == ["ulla, user"], "the user")
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(f"{page.server.url}#token={tokens['admin']}")
    asked = page.wait(lambda: alert_is_present()(driver), "the question whether this is meant")
    asked.accept()
    page.wait(lambda: page.texts("#account .who")[:1] not in ([], ["ulla, user"]), "the administrator")
    [admin] = page.texts("#account .who")
    driver.close()
    driver.switch_to.window(first)
    page.wait(lambda: page.texts("#account .who") == [admin], "the first tab as the administrator, too")
