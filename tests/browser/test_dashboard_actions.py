"""What one does on the dashboard, on a real service: signing in, looking closely, and changing things by role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.client.oakum_client import OakumClient
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


@pytest.fixture
def page(driver: WebDriver, client: OakumClient) -> Iterator[ServicePage]:
    opened = ServicePage(driver, Address(client.address.url))  # type: ignore[arg-type]
    opened.errors()
    yield opened
    driver.get("about:blank")


def test_one_signs_in_by_a_cookie_that_scripts_cannot_read_and_out_again(
    page: ServicePage, tokens: dict[str, str]
) -> None:
    page.enter(tokens["admin"])
    page.wait(lambda: page.texts(".trainer h3") == ["long"], "the card")
    kept = "return [document.cookie, JSON.stringify({...sessionStorage, ...localStorage})]"
    assert page.driver.execute_script(kept) == ["", "{}"]
    page.driver.refresh()
    page.wait(lambda: page.texts(".trainer h3") == ["long"], "the card after a reload")
    page.press("Sign out")
    page.wait(lambda: page.shows("#sign-in"), "the form")
    page.driver.refresh()
    page.wait(lambda: page.shows("#sign-in"), "the form after a reload")


def test_a_trainers_page_tells_all_and_back_leads_back(page: ServicePage, tokens: dict[str, str]) -> None:
    page.enter(tokens["admin"])
    page.wait(lambda: page.texts(".trainer h3 a") == ["long"], "the card")
    page.click("#overview .trainer h3 a")
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


def test_a_range_chosen_in_one_chart_holds_for_all(page: ServicePage, tokens: dict[str, str]) -> None:
    page.enter(tokens["admin"], "trainers/long")
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


def test_pause_scale_and_cancel_ask_first_and_then_act(
    page: ServicePage, tokens: dict[str, str], client: OakumClient
) -> None:
    client.submit(small_spec("short", epochs=100_000, max_nodes=1))
    page.enter(tokens["admin"], "trainers/short")
    page.press("Pause", "#actions")
    page.wait(lambda: page.texts("dialog h2") == ["Pause short?"], "the question")
    page.press("Leave it", "dialog")
    page.wait(lambda: not page.shows("dialog"), "its end")
    page.press("Pause", "#actions")
    page.fill("reason", CODE)
    page.press("Pause", "dialog")
    wait_until("it is paused", lambda: client.trainer("short").status == "paused")
    page.wait(lambda: any(CODE in text for text in page.texts(".reason, .why, .message")), "the reason, as text")
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
    page.press("Cancel", "#actions")
    page.press("Cancel the trainer", "dialog")
    wait_until("it is cancelled", lambda: state_of(client, "short") is TrainerState.CANCELLED)
    page.wait(lambda: page.buttons("#actions") == ["Retry"], "the only button")
    assert page.attributes("body img", "src") == {"static/icon.svg"}
    assert "owned" not in page.driver.title


def test_a_hold_needs_a_reason_which_everybody_sees(
    page: ServicePage, tokens: dict[str, str], client: OakumClient
) -> None:
    page.enter(tokens["admin"])
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


@pytest.mark.parametrize("role", ["viewer", "user"])
def test_buttons_that_one_may_not_press_are_not_there(
    page: ServicePage, tokens: dict[str, str], role: str
) -> None:
    page.enter(tokens[role], "trainers/long")
    page.wait(lambda: page.texts(".view-head h2") == ["long"], "the trainer's page")
    page.wait(lambda: page.shows("#view .trainer"), "the card")
    assert page.buttons("#actions") == []
    assert page.buttons("#account") == ["Sign out"]
    # Another user's losses, log and files are not shown to users; viewers read everything.
    assert page.shows("#view .trainer .charts") == (role == "viewer")
    assert page.shows("#log") == (role == "viewer")


def test_the_log_is_searched_as_one_types(
    page: ServicePage, tokens: dict[str, str], client: OakumClient, tmp_path: Path
) -> None:
    page.enter(tokens["admin"], "trainers/long")
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


def test_plans_are_listed_compared_and_supposed(
    page: ServicePage, tokens: dict[str, str], client: OakumClient
) -> None:
    page.enter(tokens["viewer"], "plans")
    page.wait(lambda: any(text.startswith("Plan ") for text in page.texts("#view tbody th a")), "plans")
    page.fill("drain_count", "1000")
    page.press("Preview", "#view")
    page.wait(lambda: "0 nodes to give" in "".join(page.texts("#outcome")), "the plan without nodes")
    assert page.texts("#outcome tbody th") == ["long"]
    page.fill("objective", "nonsense *")
    page.press("Preview", "#view")
    page.wait(lambda: "objective" in "".join(page.texts("#outcome .wrong")), "what is wrong")
    page.press("Clear", "#view")
    assert page.texts("#outcome") == [""]
    page.fill("remove", "long")
    page.press("Preview", "#view")
    page.wait(
        lambda: "long" not in "".join(page.texts("#outcome tbody")) and page.texts("#outcome p"), "without it"
    )
    assert client.trainer("long").nodes


def test_a_plan_is_shown_as_the_difference_to_the_one_before(
    page: ServicePage, tokens: dict[str, str], client: OakumClient
) -> None:
    for size in (1, 2):
        client.change("long", TrainerChange(max_nodes=size))
        wait_until("long trains on them", lambda size=size: len(client.trainer("long").nodes) == size)  # type: ignore[misc]
    plan = next(one for one in client.plans().plans if one.parent and one.allocations)
    page.enter(tokens["viewer"], f"plans/{plan.id}")
    page.wait(lambda: page.texts(".view-head h2") == [f"Plan {plan.id}"], "the plan")
    page.wait(lambda: f"Compared with plan {plan.parent}" in "".join(page.texts("#view p")), "its parent")
    shown = dict(zip(page.texts("#view tbody th"), page.texts("#view tbody tr"), strict=True))
    assert "long" in shown
    page.click(f"#view p a[href='#/plans/{plan.parent}']")
    page.wait(lambda: page.texts(".view-head h2") == [f"Plan {plan.parent}"], "the parent")


def test_free_nodes_are_said_to_be_unused_and_why(
    page: ServicePage, tokens: dict[str, str], client: OakumClient
) -> None:
    page.enter(tokens["admin"])
    page.wait(lambda: page.texts("#summary dt")[:2] == ["Nodes that train", "Unused nodes"], "the figures")
    page.wait(lambda: "every trainer has its maximum" in page.texts("#summary .note")[1], "why")
    client.hold("maintenance")
    page.wait(lambda: "the service is held" in page.texts("#summary .note")[1], "why, now")
    client.resume()
    wait_for_size(client, "long", 2)


def test_it_fits_a_phone(page: ServicePage, tokens: dict[str, str]) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    try:
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)  # type: ignore[attr-defined]
        for view, shown in (("", "#overview"), ("trainers/long", "#view .trainer"), ("plans", "#view table")):
            page.enter(tokens["admin"], view)
            page.wait(lambda shown=shown: page.shows(shown), shown)  # type: ignore[misc]
            width = "return [document.documentElement.scrollWidth, innerWidth]"
            needed, there = page.driver.execute_script(width)
            assert (needed, there) == (390, 390), view
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]
