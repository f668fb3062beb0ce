"""How the dashboard keeps up: events, outages, tokens, and text that would be code."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.by import By

from browser.conftest import Page, Server
from browser.simulated_cluster import TOKEN, SimulatedCluster
from oakum_service.api.schemas import TrainerView
from oakum_service.states import TrainerState

pytestmark = pytest.mark.needs("browser")

CODE = "<img src=x onerror=document.title='owned'>"


def failed_trainer(cluster: SimulatedCluster, message: str) -> TrainerView:
    changes = {"id": "t-new", "name": "new", "state": TrainerState.FAILED, "message": message}
    return cluster.trainers()[0].model_copy(update={**changes, "ended_at": cluster.started})


def test_an_event_is_shown_and_brings_the_rest_up_to_date(page: Page, cluster: SimulatedCluster) -> None:
    page.open()
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream")
    cluster.extra_trainers.append(failed_trainer(cluster, "it cannot be built"))
    cluster.publish("trainer.failed", "new", "failed before its first step")
    page.wait(lambda: "failed before its first step" in page.texts(".event")[0], "the event")
    page.wait(lambda: page.texts("[data-trainer=t-new] .message") == ["it cannot be built"], "the new card")


def test_a_condition_stands_out_and_a_trainer_that_never_started_has_no_times(
    page: Page, cluster: SimulatedCluster
) -> None:
    waiting = {
        "state": TrainerState.WAITING,
        "ended_at": None,
        "started_at": None,
        "time_spent": None,
        "nodes": [],
    }
    cluster.extra_trainers.append(failed_trainer(cluster, "the disk is full").model_copy(update=waiting))
    page.open()
    page.wait(
        lambda: page.texts("[data-trainer=t-new] .message.condition") == ["the disk is full"], "the condition"
    )
    assert not page.shows("[data-trainer=t-new] .times")
    assert page.shows("[data-trainer=t-digits] .times")
    assert not page.shows("[data-trainer=t-digits] .message")


def test_members_and_newcomers_are_named_as_text(page: Page, cluster: SimulatedCluster) -> None:
    running = {"state": TrainerState.RUNNING, "ended_at": None, "nodes": [CODE, *"abcdefghi"], "warming": []}
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=running))
    page.open()
    page.wait(lambda: page.texts("[data-trainer=t-new] h3"), "the card")
    card = "[data-trainer=t-new] .facts "
    facts = dict(zip(page.texts(card + "dt"), page.texts(card + "dd"), strict=True))
    assert facts["Members, rank 0 first"] == f"{CODE}, a, b, c, d, e, f, g and 2 more"
    assert "owned" not in page.driver.title


def test_an_outage_is_told_and_the_page_recovers_by_itself(
    page: Page, server: Server, cluster: SimulatedCluster
) -> None:
    page.open()
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream")
    server.stop()
    page.wait(lambda: page.shows("#banner"), "the banner")
    assert "Cannot reach the Oakum service" in page.texts("#banner")[0]
    assert page.texts("#liveness") == ["Offline"]
    cluster.publish("service.started", "service", "is back")
    server.start()
    page.wait(lambda: not page.shows("#banner"), "the banner's end")
    page.wait(lambda: "is back" in page.texts(".event")[0], "the event of the meantime")
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream again")


def test_what_keeps_plans_from_being_carried_out_is_told(page: Page, cluster: SimulatedCluster) -> None:
    page.open()
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream")
    assert not page.shows("#mode")
    for mode, said in (
        ({"held": True, "num_fragments": 2}, "2 fragments are leaving"),
        ({"held": True}, "every node has been given back"),
        ({"dry_run": True}, "Dry run"),
        ({"snapshot_age_s": 150.0}, "has not answered for 2"),
    ):
        cluster.mode = mode
        cluster.publish("service.held", "service", "changes")
        page.wait(lambda said=said: said in "".join(page.texts("#mode")), said)
    cluster.mode = {}
    cluster.publish("service.resumed", "service", "changes")
    page.wait(lambda: not page.shows("#mode"), "the end of it")


def test_the_token_leaves_the_address_bar_and_outlives_a_reload(page: Page) -> None:
    page.open()
    page.wait(lambda: page.texts(".trainer h3"), "cards")
    assert TOKEN not in page.driver.current_url
    page.driver.refresh()
    page.wait(lambda: page.texts(".trainer h3"), "cards after the reload")


def test_without_a_valid_token_the_page_asks_for_one(page: Page) -> None:
    page.open(token="made-up")
    page.wait(lambda: page.shows("#sign-in"), "the form")
    assert "does not accept this token" in page.texts("#sign-in-message")[0]
    page.driver.find_element(By.ID, "token").send_keys(TOKEN)
    page.driver.find_element(By.CSS_SELECTOR, "#sign-in button").click()
    page.wait(lambda: page.texts(".trainer h3"), "cards")
    assert not page.shows("#sign-in")


def test_what_users_write_is_shown_as_text(page: Page, cluster: SimulatedCluster) -> None:
    hostile = failed_trainer(cluster, CODE).model_copy(update={"name": CODE, "reason": CODE})
    cluster.extra_trainers.append(hostile.model_copy(update={"state": TrainerState.WAITING, "ended_at": None}))
    cluster.jobs[:] = [job.model_copy(update={"name": CODE}) for job in cluster.jobs]
    page.open()
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream")
    cluster.publish("trainer.waiting", CODE, CODE)
    page.wait(lambda: CODE in page.texts(".event")[0], "the event's text")
    card = "[data-trainer=t-new] "
    assert page.texts(card + "h3") == page.texts(card + ".message") == page.texts(card + ".reason") == [CODE]
    assert any(name.startswith("<img src") for name in page.texts(".plot .job-name"))
    assert page.attributes("body img", "src") == {"static/icon.svg"}
    assert "owned" not in page.driver.title
    assert page.errors() == []
