"""How the dashboard keeps up: events, outages, tokens, and text that would be code."""

from __future__ import annotations

import pytest

from dashboard_page import Page, Server
from oakum_service.api.schemas.hold import HoldView
from oakum_service.api.schemas.trainers import MeasuredRateView, StepCost, TrainerView
from oakum_service.standing import (
    ActiveHold,
    Attempt,
    Circumstances,
    Status,
    TrainerSituation,
    hold_sentence,
    standing,
)
from oakum_service.states import TrainerState
from served_documents import TOKEN
from simulated_cluster import SimulatedCluster

pytestmark = pytest.mark.needs("browser")

HELD = ActiveHold(since=1_700_000_000.0, by="anna", reason="maintenance at 8")
HOLD = HoldView(held=True, reason=HELD.reason, by=HELD.by, since=HELD.since, sentence=hold_sentence(HELD))
FAULT = "the database cannot be written since 12:04 (no space left on device): see `df -h`, and free some"
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
        "condition": "the disk is full",
    }
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=waiting))
    page.open()
    page.wait(
        lambda: page.texts("[data-trainer=t-new] .message.condition") == ["the disk is full"], "the condition"
    )
    assert not page.shows("[data-trainer=t-new] .times")
    assert page.shows("[data-trainer=t-digits] .times")
    assert not page.shows("[data-trainer=t-digits] .message")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (TrainerState.FAILED, "ValueError: no sample 17 (the same error twice at step 412)"),
        (
            TrainerState.DIVERGED,
            "the loss is nan since step 31 (3 steps). Its newest checkpoint was written before that and is kept",
        ),
    ],
)
def test_an_end_that_nobody_wished_for_stands_out_on_its_card(
    page: Page, cluster: SimulatedCluster, state: TrainerState, message: str
) -> None:
    told = standing(TrainerSituation(state, message=message))
    ended = {"state": state, "status": told.status, "reason": told.sentence, "nodes": [], "checkpoint_step": None}
    cluster.extra_trainers.append(failed_trainer(cluster, message).model_copy(update=ended))
    page.open()
    card = "[data-trainer=t-new] "
    page.wait(lambda: page.texts(card + f".badge.{state}") == [state.value], "the badge")
    assert page.texts(card + ".message.failure") == [message]
    assert page.texts(card + ".size") == [""]
    assert not page.shows(card + ".reason")
    facts = dict(zip(page.texts(card + ".facts dt"), page.texts(card + ".facts dd"), strict=True))
    assert (facts["Checkpoint"], facts.get("Granted")) == ("none", None)
    assert f"{state} " in page.texts(card + ".done")[0]
    assert page.errors() == []


def test_a_card_tells_of_the_attempt_and_of_what_ended_the_last_one(page: Page, cluster: SimulatedCluster) -> None:
    attempt = Attempt(number=2, most=3, after="ValueError: no sample 17")
    now = TrainerSituation(
        TrainerState.RUNNING, ("node-001",), ("node-001",), attempt=attempt, message=attempt.after
    )
    told = standing(now)
    again = {"state": now.state, "status": told.status, "reason": told.sentence, "condition": told.condition}
    again |= {"nodes": ["node-001"], "ended_at": None, "message": now.message}
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=again))
    page.open()
    card = "[data-trainer=t-new] "
    page.wait(lambda: page.texts(card + ".badge.running") == ["running"], "the badge")
    assert page.texts(card + ".message.condition") == ["Attempt 2 of 3, after: ValueError: no sample 17."]


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
        ({"held": True, "hold": HOLD, "num_fragments": 2}, "by anna: maintenance at 8."),
        ({"held": True, "hold": HOLD, "num_fragments": 2}, "2 fragments are leaving"),
        ({"held": True, "hold": HOLD}, "Every node has been given back"),
        ({"dry_run": True}, "Dry run"),
        ({"snapshot_age_s": 150.0}, "has not answered for 2"),
        (
            {"fault": FAULT},
            "The database cannot be written since 12:04 (no space left on device): see “df -h”, and",
        ),
        ({"fault": FAULT, "held": True, "hold": HOLD}, "by anna: maintenance at 8."),
    ):
        cluster.mode = mode
        cluster.publish("service.held", "service", "changes")
        page.wait(lambda said=said: said in "".join(page.texts("#mode")), said)
        assert page.shows("#mode.fault") == ("fault" in mode)
    cluster.mode = {}
    cluster.publish("service.resumed", "service", "changes")
    page.wait(lambda: not page.shows("#mode"), "the end of it")


def test_while_held_a_card_says_so_and_that_nobody_joins(page: Page, cluster: SimulatedCluster) -> None:
    nodes = ("node-001", "node-002")
    now = TrainerSituation(TrainerState.RUNNING, nodes, (*nodes, "node-003"), (), around=Circumstances(hold=HELD))
    told = standing(now)
    held = {"state": now.state, "status": told.status, "reason": told.sentence, "ended_at": None}
    held |= {"nodes": [*nodes], "granted": [], "joining": [*told.joining], "leaving": [*told.leaving]}
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=held))
    page.open()
    card = "[data-trainer=t-new] "
    page.wait(lambda: page.texts(card + ".badge") == ["held"], "the badge")
    assert page.texts(card + ".size") == ["2 nodes, 2 leaving"]
    assert page.texts(card + ".reason") == [told.sentence.replace("`oakum resume`", "“oakum resume”")]
    assert "maintenance at 8" in page.texts(card + ".reason")[0]


def test_a_first_step_that_waits_for_its_data_is_not_told_as_0(page: Page, cluster: SimulatedCluster) -> None:
    told = standing(TrainerSituation(TrainerState.RUNNING, ("node-001",), ("node-001",), reading_share=0.97))
    slow = {"state": TrainerState.RUNNING, "status": told.status, "condition": told.condition, "ended_at": None}
    slow |= {"nodes": ["node-001"], "samples_per_s": None, "samples_per_s_below": 0.2}
    slow |= {"pace": StepCost(step_s=312.0, reading_share=0.97, waiting_share=0.01)}
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=slow))
    page.open()
    card = "[data-trainer=t-new] "
    page.wait(lambda: "97% of the step" in "".join(page.texts(card + ".message.condition")), "the condition")
    assert page.texts(card + ".charts figcaption strong")[1] == "< 0.2"
    facts = dict(zip(page.texts(card + ".facts dt"), page.texts(card + ".facts dd"), strict=True))
    assert facts["Step"].replace("\u202f", " ") == "5 min 12 s: data 97 %, other ranks 1 %, computing 2 %"


def test_the_loss_of_a_trainer_without_nodes_is_the_last_one_known_with_its_age(
    page: Page, cluster: SimulatedCluster
) -> None:
    idle = {"state": TrainerState.WAITING, "status": Status.WAITING, "nodes": [], "ended_at": None}
    idle |= {"loss": 0.25, "samples_per_s": None, "stepped_at": cluster.started - 300.0}
    cluster.extra_trainers.append(failed_trainer(cluster, "").model_copy(update=idle))
    page.open()
    captions = "[data-trainer=t-new] .charts figcaption "
    page.wait(lambda: page.texts(captions + "strong.old") == ["0.25"], "a loss that is marked as old")
    assert page.texts(captions + "small")[0].endswith(" ago")
    assert page.texts(captions + "strong") == ["0.25", "0", "0 nodes"]


def drawn(page: Page, trainer: str) -> list[list[list[float | None]]]:
    """For each chart of a trainer, the values of its lines."""
    script = """
        const charts = [...document.querySelectorAll(`[data-trainer=t-${arguments[0]}] .chart`)];
        return charts.map((chart) => (chart.data ?? []).map((line) => [...line.y]));
    """
    return list(page.driver.execute_script(script, trainer))


def test_charts_draw_nothing_over_an_outage_and_0_where_there_is_no_node(
    page: Page, cluster: SimulatedCluster
) -> None:
    cluster.outage = (200.0, 110.0)
    page.open()
    page.wait(lambda: page.texts(".trainer h3"), "cards")
    page.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    page.wait(lambda: all(drawn(page, "digits")), "charts")
    losses, rates, sizes = drawn(page, "digits")
    assert len(rates) == len(sizes) == 2, "a line before the outage and one after it"
    assert 0 in [value for line in rates for value in line], "the rate falls to 0"
    assert len(losses) > 2, "and no loss is drawn while it has no node"
    assert None not in [value for chart in (losses, rates, sizes) for line in chart for value in line]


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
    page.write("#token", TOKEN)
    page.click("#sign-in button")
    page.wait(lambda: page.texts(".trainer h3"), "cards")
    assert not page.shows("#sign-in")


def test_what_users_write_is_shown_as_text(page: Page, cluster: SimulatedCluster) -> None:
    hostile = failed_trainer(cluster, CODE).model_copy(update={"name": CODE, "reason": CODE, "condition": CODE})
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


def test_measured_speed_up_stands_beside_what_the_curve_predicts(page: Page, cluster: SimulatedCluster) -> None:
    view = failed_trainer(cluster, "")
    curve = ((1, 100.0), (4, 340.0))
    rates = [MeasuredRateView(nodes=n, samples_per_s=rate, seconds=60) for n, rate in ((1, 100.0), (2, 150.0))]
    spec = view.spec.model_copy(update={"curve": curve})
    cluster.extra_trainers.append(view.model_copy(update={"spec": spec, "measured_rates": rates}))
    page.open()
    page.wait(lambda: page.texts("[data-trainer=t-new] h3"), "the card")
    card = "[data-trainer=t-new] .facts "
    facts = dict(zip(page.texts(card + "dt"), page.texts(card + "dd"), strict=True))
    told = {name: value for name, value in facts.items() if name.startswith("Speed-up")}
    assert list(told.values()) == ["1.50 on 2 (predicted 1.80)"]


def test_the_seventh_page_loads_too(page: Page) -> None:
    """A browser keeps six connections to a host; only a page that is looked at may hold one for its events."""
    first = page.driver.current_window_handle
    opened = []
    for number in range(7):
        page.driver.switch_to.new_window("tab")
        opened.append(page.driver.current_window_handle)
        page.open()
        page.wait(lambda: page.texts("#liveness") == ["Live"], f"page {number + 1} live")
    for handle in opened:
        page.driver.switch_to.window(handle)
        page.driver.close()
    page.driver.switch_to.window(first)
    for number in range(7):
        page.open()
        page.wait(lambda: page.texts("#liveness") == ["Live"], f"load {number + 1} live")
