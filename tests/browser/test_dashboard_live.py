"""How the dashboard keeps up: events, outages, tokens, and text that would be code."""

from __future__ import annotations

import pytest

from accessibility import violations
from dashboard_page import Page, Server
from oakum_service.api.schemas.hold import HoldView
from oakum_service.api.schemas.trainers import MeasuredRateView, StepCost, TrainerView
from oakum_service.control.retrying import may_retry
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


def view_of(cluster: SimulatedCluster, called: str, **changes: object) -> TrainerView:
    """A trainer that runs, with these fields."""
    made = {"id": f"t-{called}", "name": called, "state": TrainerState.RUNNING, "ended_at": None, "message": ""}
    return cluster.trainers()[0].model_copy(update={**made, **changes})


def told_of(now: TrainerSituation) -> dict[str, object]:
    """The fields in which the service tells of a situation."""
    told = standing(now)
    fields: dict[str, object] = {"state": now.state, "status": told.status, "reason": told.sentence}
    fields |= {"condition": told.condition, "message": now.message, "nodes": [*now.members]}
    return fields | {"joining": [*told.joining], "leaving": [*told.leaving]}


ENDS = {
    TrainerState.FAILED: "ValueError: no sample 17 (the same error twice at step 412)",
    TrainerState.DIVERGED: (
        "the loss is nan since step 31 (3 steps). Its newest checkpoint was written before that and is kept"
    ),
}
BY_SPEC = "Plans go by its spec's curve, not by measured rates."
ATTEMPT = Attempt(number=2, most=3, after="ValueError: no sample 17")
ONE = ("node-001",)
TWO = ("node-001", "node-002")
AGAIN = TrainerSituation(TrainerState.RUNNING, ONE, ONE, attempt=ATTEMPT, message=ATTEMPT.after)
WHILE_HELD = TrainerSituation(TrainerState.RUNNING, TWO, (*TWO, "node-003"), (), around=Circumstances(hold=HELD))
READING = TrainerSituation(TrainerState.RUNNING, ONE, ONE, reading_share=0.97)


@pytest.fixture(scope="class")
def cards(page: Page, cluster: SimulatedCluster) -> Page:
    waiting = {"state": TrainerState.WAITING, "status": Status.WAITING, "nodes": []}
    full = waiting | {"started_at": None, "time_spent": None, "condition": "the disk is full"}
    idle = waiting | {"loss": 0.25, "samples_per_s": None, "stepped_at": cluster.started - 300.0}
    slow = told_of(READING) | {"samples_per_s": None, "samples_per_s_below": 0.2}
    slow["pace"] = StepCost(step_s=312.0, reading_share=0.97, waiting_share=0.01)
    curved = cluster.trainers()[0].spec.model_copy(update={"curve": ((1, 100.0), (4, 340.0))})
    measured = ((1, 100.0), (2, 150.0))
    rates = [MeasuredRateView(nodes=n, samples_per_s=rate, seconds=60) for n, rate in measured]
    cluster.extra_trainers += [
        view_of(cluster, "full", **full),
        view_of(cluster, "idle", **idle),
        view_of(cluster, "again", **told_of(AGAIN)),
        view_of(cluster, "held", **(told_of(WHILE_HELD) | {"granted": []})),
        view_of(cluster, "slow", **slow),
        view_of(cluster, "rated", spec=curved, measured_rates=rates),
        view_of(cluster, "spec-led", spec=curved, measured_rates=rates, curve_reason=BY_SPEC),
        view_of(cluster, "many", nodes=[CODE, *"abcdefghi"], warming=[]),
    ]
    for state, message in ENDS.items():
        end = told_of(TrainerSituation(state, message=message))
        end |= {"checkpoint_step": None, "ended_at": cluster.started, "may_retry": may_retry(state)}
        cluster.extra_trainers.append(view_of(cluster, state.value, **end))
    page.open()
    names = {"digits", "charlm", *(each.name for each in cluster.extra_trainers)}
    page.wait(lambda: set(page.texts(".trainer h3")) == names, "the cards")
    return page


class TestCards:
    """Cards of trainers of which there is something unusual to tell, on one page."""

    def test_a_condition_stands_out_and_a_trainer_that_never_started_has_no_times(self, cards: Page) -> None:
        assert cards.texts("[data-trainer=t-full] .message.condition") == ["the disk is full"]
        assert not cards.shows("[data-trainer=t-full] .times")
        assert cards.shows("[data-trainer=t-digits] .times")
        assert not cards.shows("[data-trainer=t-digits] .message")
        assert not cards.shows("[data-trainer=t-digits] .ways")

    @pytest.mark.parametrize(("state", "message"), ENDS.items(), ids=[*ENDS])
    def test_an_end_that_nobody_wished_for_stands_out_on_its_card(
        self, cards: Page, state: TrainerState, message: str
    ) -> None:
        card = f"[data-trainer=t-{state}] "
        assert cards.texts(card + f".badge.{state}") == [state.value]
        assert cards.texts(card + ".message.failure") == [message]
        assert cards.texts(card + ".size") == [""]
        assert not cards.shows(card + ".reason")
        assert cards.texts(card + ".ways button") == (["Retry"] if state is TrainerState.FAILED else [])
        assert cards.attributes(card + ".ways a", "href") == {f"#/trainers/t-{state}?log=open"}
        facts = facts_on(cards, state.value)
        assert (facts["Checkpoint"], facts.get("Granted")) == ("none", None)
        assert f"{state} " in cards.texts(card + ".done")[0]
        assert cards.errors() == []

    def test_a_card_tells_of_the_attempt_and_of_what_ended_the_last_one(self, cards: Page) -> None:
        card = "[data-trainer=t-again] "
        assert cards.texts(card + ".badge.running") == ["running"]
        assert cards.texts(card + ".message.condition") == [
            "This is attempt 2 of 3. The one before ended with: ValueError: no sample 17."
        ]

    def test_members_and_newcomers_are_named_as_text(self, cards: Page) -> None:
        members = facts_on(cards, "many")["Members, rank 0 first"]
        assert members == f"{CODE}, a, b, c, d, e, f, g and 2 more"
        assert "owned" not in cards.driver.title

    def test_while_held_a_card_says_so_and_that_nobody_joins(self, cards: Page) -> None:
        card = "[data-trainer=t-held] "
        assert cards.texts(card + ".badge") == ["held"]
        assert cards.texts(card + ".size") == ["2 nodes, 2 leaving"]
        sentence = standing(WHILE_HELD).sentence
        assert cards.texts(card + ".reason") == [sentence.replace("`oakum resume`", "“oakum resume”")]
        assert "maintenance at 8" in cards.texts(card + ".reason")[0]

    def test_a_first_step_that_waits_for_its_data_is_not_told_as_0(self, cards: Page) -> None:
        card = "[data-trainer=t-slow] "
        assert "97% of each step" in "".join(cards.texts(card + ".message.condition"))
        assert cards.texts(card + ".charts figcaption strong")[1] == "< 0.2"
        step = facts_on(cards, "slow")["Step"].replace("\u202f", " ")
        assert step == "5 min 12 s: data 97 %, other ranks 1 %, computing 2 %"

    def test_the_loss_of_a_trainer_without_nodes_is_the_last_one_known_with_its_age(self, cards: Page) -> None:
        captions = "[data-trainer=t-idle] .charts figcaption "
        assert cards.texts(captions + "strong.old") == ["0.25"]
        assert cards.texts(captions + "small.age")[0].endswith(" ago")
        assert cards.texts(captions + "strong") == ["0.25", "0", "0 nodes"]

    def test_measured_speed_up_stands_beside_what_the_curve_predicts(self, cards: Page) -> None:
        facts = facts_on(cards, "rated")
        told = {name: value for name, value in facts.items() if name.startswith("Speed-up")}
        assert list(told.values()) == ["1.50 on 2 (predicted 1.80)"]
        told = {name: value for name, value in facts_on(cards, "spec-led").items() if name.startswith("Speed-up")}
        assert list(told.values()) == ["1.50 on 2 (plans count 1.80)"]
        assert cards.texts("[data-trainer=t-spec-led] .reason")[0].endswith(BY_SPEC.replace("'", "’"))


def facts_on(page: Page, trainer: str) -> dict[str, str]:
    """The facts on a trainer's card, read at once since the card is filled anew meanwhile."""
    card = f"[data-trainer=t-{trainer}] .facts"
    texts = page.texts(f"{card} dt, {card} dd")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def drawn(page: Page, trainer: str) -> list[list[list[float | None]]]:
    """For each chart of a trainer, the values of its lines."""
    script = """
        const charts = [...document.querySelectorAll(`[data-trainer=t-${arguments[0]}] .chart`)];
        return charts.map((chart) => (chart.data ?? []).map((line) => [...line.y]));
    """
    return list(page.driver.execute_script(script, trainer))


@pytest.fixture(scope="class")
def living(page: Page, cluster: SimulatedCluster) -> Page:
    cluster.outage = (200.0, 110.0)
    cluster.jobs[:] = [job.model_copy(update={"name": CODE}) for job in cluster.jobs]
    page.open()
    page.wait(lambda: page.texts("#liveness") == ["Live"], "the event stream")
    return page


class TestKeepingUp:
    """A page that stays open while its cluster changes."""

    def test_the_token_leaves_the_address_bar(self, living: Page) -> None:
        assert TOKEN not in living.driver.current_url

    def test_charts_draw_nothing_over_an_outage_and_0_where_there_is_no_node(self, living: Page) -> None:
        living.wait(lambda: living.texts(".trainer h3"), "cards")
        living.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
        living.wait(lambda: all(drawn(living, "digits")), "charts")
        losses, rates, sizes = drawn(living, "digits")
        assert len(rates) == len(sizes) == 2, "a line before the outage and one after it"
        assert 0 in [value for line in rates for value in line], "the rate falls to 0"
        assert len(losses) > 2, "and no loss is drawn while it has no node"
        assert None not in [value for chart in (losses, rates, sizes) for line in chart for value in line]

    def test_an_event_is_shown_and_brings_the_rest_up_to_date(
        self, living: Page, cluster: SimulatedCluster
    ) -> None:
        failed = {"state": TrainerState.FAILED, "message": "it cannot be built", "ended_at": cluster.started}
        cluster.extra_trainers.append(view_of(cluster, "new", **failed))
        cluster.publish("trainer.failed", "new", "failed before its first step")
        living.wait(lambda: "failed before its first step" in living.texts(".event")[0], "the event")
        assert living.texts(".event.mood-bad .kind") == ["Trainer failed"]
        assert living.attributes(".event.mood-bad .kind", "title") == {"trainer.failed"}
        living.wait(
            lambda: living.texts("[data-trainer=t-new] .message") == ["it cannot be built"], "the new card"
        )

    def test_a_new_plan_is_told_at_once(self, living: Page, cluster: SimulatedCluster) -> None:
        before = living.texts("#plan")
        living.wait(lambda: living.texts("#plan") != before, "a plan that was asked for just now")
        before = living.texts("#plan")
        cluster.publish("plan.made", "plan 1", "gives nothing to nobody")
        living.wait(lambda: living.texts("#plan") != before, "the next plan", within_s=4.5)

    def test_what_users_write_is_shown_as_text(self, living: Page, cluster: SimulatedCluster) -> None:
        written = {"name": CODE, "reason": CODE, "condition": CODE, "message": CODE}
        cluster.extra_trainers.append(view_of(cluster, "code", **written, state=TrainerState.WAITING))
        cluster.publish("trainer.waiting", CODE, CODE)
        living.wait(lambda: CODE in "".join(living.texts(".event.mood-warn")), "the event's text")
        card = "[data-trainer=t-code] "
        living.wait(lambda: living.texts(card + "h3") == [CODE], "the card")
        assert living.texts(card + ".message") == living.texts(card + ".reason") == [CODE]
        assert any(name.startswith("<img src") for name in living.texts(".plot .job-name"))
        assert living.attributes("body img", "src") == {"static/icon.svg"}
        assert "owned" not in living.driver.title
        assert living.errors() == []

    def test_what_keeps_plans_from_being_carried_out_is_told(
        self, living: Page, cluster: SimulatedCluster
    ) -> None:
        assert not living.shows("#mode")
        for mode, said in (
            ({"held": True, "hold": HOLD, "num_fragments": 2}, "by anna: maintenance at 8."),
            ({"held": True, "hold": HOLD, "num_fragments": 2}, "2 fragments are leaving"),
            ({"held": True, "hold": HOLD}, "Every node has been given back"),
            ({"dry_run": True}, "Dry run"),
            ({"silence": {"since": 5.0, "for_s": 150.0, "tried": "`squeue` failed"}}, "has not answered for 2"),
            (
                {"fault": FAULT},
                "The database cannot be written since 12:04 (no space left on device): see “df -h”, and",
            ),
            ({"fault": FAULT, "held": True, "hold": HOLD}, "by anna: maintenance at 8."),
        ):
            cluster.mode = mode
            cluster.publish("service.held", "service", "changes")
            living.wait(lambda said=said: said in "".join(living.texts("#mode")), said)
            assert living.shows("#mode.fault") == ("fault" in mode)
        cluster.mode = {}
        cluster.publish("service.resumed", "service", "changes")
        living.wait(lambda: not living.shows("#mode"), "the end of it")

    def test_an_outage_is_told_and_the_page_recovers_by_itself(
        self, living: Page, server: Server, cluster: SimulatedCluster
    ) -> None:
        living.wait(lambda: living.texts("#liveness") == ["Live"], "the event stream")
        server.stop()
        try:
            living.wait(lambda: living.shows("#banner"), "the banner")
            assert "Cannot reach the Oakum service" in living.texts("#banner")[0]
            assert living.texts("#liveness") == ["Offline"]
            assert living.attributes("#hold", "disabled") == {""}
            cluster.publish("service.started", "service", "is back")
        finally:
            server.start()
        living.wait(lambda: not living.shows("#banner"), "the banner's end")
        living.wait(lambda: "is back" in living.texts(".event")[0], "the event of the meantime")
        living.wait(lambda: living.texts("#liveness") == ["Live"], "the event stream again")
        assert living.attributes("#hold", "disabled") == {None}


def test_without_a_valid_token_the_page_asks_for_one_and_signing_in_outlives_a_reload(page: Page) -> None:
    page.open(token="made-up")
    page.wait(lambda: page.shows("#sign-in"), "the form")
    assert "does not accept this token" in page.texts("#sign-in-message")[0]
    assert page.attributes("#token", "aria-invalid") == {"true"}
    for dark in (False, True):
        assert violations(page, dark=dark) == [], f"of the form, dark: {dark}"
    page.write("#token", TOKEN)
    page.click("#sign-in button")
    page.wait(lambda: page.texts(".trainer h3"), "cards")
    assert not page.shows("#sign-in")
    page.driver.refresh()
    page.wait(lambda: page.texts(".trainer h3"), "cards after the reload")


def test_the_seventh_page_loads_too(page: Page, cluster: SimulatedCluster) -> None:
    """A browser keeps six connections to a host, and those of pages that were left or reloaded for a minute: only
    a page that is looked at holds one for its events, and lets it go when it is left."""

    def one_follows(what: str) -> None:
        page.wait(lambda: page.texts("#liveness") == ["Live"], f"{what} live")
        page.wait(lambda: cluster.followers == 1, f"one stream of events, by {what}", within_s=40)

    page.open()
    one_follows("the first page")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.get(page.server.url + "#/compare")
    one_follows("a page before which another is hidden")
    page.driver.refresh()
    one_follows("a page that was reloaded")
    page.driver.get("about:blank")
    page.wait(lambda: cluster.followers == 0, "no stream for a page that was left", within_s=40)
    page.driver.close()
    page.driver.switch_to.window(first)
    one_follows("the page that is looked at again")
