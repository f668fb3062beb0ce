"""What is said of a trainer: every combination of what is known gives a word and sentences that agree with it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from cells import each
from oakum_service.documents.pause import Pause
from oakum_service.documents.setback import Setback, SetbackKind
from oakum_service.standing import (
    PLANNED,
    ActiveHold,
    Attempt,
    Circumstances,
    Standing,
    Status,
    TrainerSituation,
    hold_sentence,
    standing,
)
from oakum_service.states import TrainerState

HELD = ActiveHold(since=1_700_000_000.0, by="anna", reason="maintenance at 8")
PAUSE = Pause(since=1_700_000_000.0, by="ulla", reason="its data moves")
ATTEMPT = Attempt(2, 3, "RuntimeError at step 7")
SETBACK = Setback(
    SetbackKind.REFUSED, "sbatch: error: no", 1_700_000_000.0, 1_700_000_000.0, 3, 1_700_000_020.0, ("n8",), "", 0
)
WHYS = {
    0: ("no node is idle", "a first node would add 600 samples, but no node that it can use is free"),
    1: ("no other node is idle", "its maximum is 1 node"),
    2: ("no other node is idle", "its maximum is 2 nodes"),
}
AROUND = [
    Circumstances(hold=hold, dry_run=dry_run, unanswered_since=since, trouble=trouble)
    for hold, dry_run, since, trouble in itertools.product(
        (None, HELD), (False, True), (None, 1_700_000_100.0), ("", "The data folder is full")
    )
]
AROUND += [
    Circumstances(closed="the partition is DOWN"),
    Circumstances(dry_run=True, closed="the partition is DOWN"),
]


def situations() -> Iterator[TrainerSituation]:
    """Everything that may come together, and more: rows and plans change at different moments."""
    nodes = ("n1", "n2")
    for state, around in itertools.product(TrainerState, AROUND):
        for members, granted, warming in itertools.product(
            ((), nodes[:1], nodes), (None, (), nodes[1:], nodes), ((), ("n3",))
        ):
            for why in ("",) if granted is None else WHYS[len(granted)]:
                for cancel_asked, attempt, share, pause, setback in itertools.product(
                    (False, True), (None, ATTEMPT), (None, 0.97), (None, PAUSE), (None, SETBACK)
                ):
                    known = (members, granted, warming, why, "its message", cancel_asked, attempt, share)
                    yield TrainerSituation(state, *known, around, pause, "digits", setback)


def numbers(pattern: str, text: str) -> list[int]:
    return [int(found) for found in re.findall(pattern, text)]


def contradiction(now: TrainerSituation, told: Standing) -> str:
    """Text about what contradicts itself in what is said; empty where nothing does."""
    text = told.sentence
    live = not now.state.ended
    openings = (
        "Trains on",
        "Warms up",
        "Waits",
        "Would get",
        "Is about to",
        "Held since",
        "Paused since",
        "Its user has",
    )
    if re.search(r"(?<![\d.,])1 (?:more )?[a-z]{2,}s\b|\b(\w{2,}) \1\b", f"{text} {told.condition}"):
        return "one is not many, and no word comes twice"
    begun = [opening for opening in openings if text.startswith(opening)]
    if live and len(begun) != 1:
        return "a live trainer's sentence begins with what it does"
    if not live and (begun or told.condition or told.granted or told.joining or told.status.value != now.state):
        return "of an ended trainer only its end is told"
    if told.status is Status.HELD and not all(
        word in text for word in ("anna", "maintenance at 8", "oakum resume")
    ):
        return "a hold is told with who, why, and how it ends"
    if told.status is Status.PAUSED and not all(
        word in text for word in ("ulla", "its data moves", "oakum unpause digits")
    ):
        return "a pause is told with who, why, and how it ends"
    if told.status not in PLANNED and re.search(r"idle|join|launched|[Ww]aits|maximum|granted", text):
        return "the plan does not speak where it is not carried out"
    if told.status not in PLANNED and (told.joining or told.granted):
        return "nothing joins where no plan is carried out"
    if live and (told.status is Status.HELD) != (now.around.hold is not None and not now.cancel_asked):
        return "held is who is held"
    stopped = now.cancel_asked or now.around.hold is not None
    if live and (told.status is Status.PAUSED) != (now.pause is not None and not stopped):
        return "paused is who is paused"
    if (told.status is Status.RUNNING) != (bool(now.members) and live and told.status in PLANNED):
        return "who has members runs"
    if numbers(r"Trains on (\d+)", text) not in ([], [len(now.members)]):
        return "the size is the members'"
    if numbers(r"(\d+) more to join", text) != ([len(told.joining)] if "to join" in text else []):
        return "who is said to join joins"
    if bool(told.joining) != ("to join" in text) and told.status is Status.RUNNING:
        return "who joins is told"
    if (now.members or now.warming or now.granted) and live and "no node is idle" in text:
        return "who has nodes does not lack an idle one"
    if now.around.unanswered_since and told.status in PLANNED and "idle" in text:
        return "nobody knows which nodes are idle"
    if now.around.dry_run and (told.joining or told.leaving) and told.status in PLANNED:
        return "a dry run moves nobody"
    plans = told.status in PLANNED and not now.around.dry_run
    if ("sbatch: error: no" in told.condition) != (now.setback is not None and plans):
        return "what keeps launches from beginning is told where there would be any"
    if told.status in PLANNED and ("is DOWN" in text) != bool(now.around.closed):
        return "that the partition is down is told"
    if (now.setback is not None or now.around.closed) and "about to be launched" in text:
        return "who was refused is not about to be launched"
    if live and ("2 of 3" in told.condition) != (now.attempt is not None):
        return "attempts are told"
    if ("97%" in told.condition) != (told.status is Status.RUNNING and now.reading_share is not None):
        return "what a step waits for is told of who takes steps"
    if live and ("folder is full" in told.condition) != bool(now.around.trouble):
        return "what keeps the service from working is told"
    return ""


def test_no_combination_of_facts_gives_sentences_that_contradict_each_other() -> None:
    told = [(now, standing(now)) for now in situations()]
    wrong = [(why, now, said) for now, said in told if (why := contradiction(now, said))]
    assert not wrong, f"{len(wrong)} of {len(told)}, first {wrong[0]}"
    assert {said.status for _, said in told} == set(Status)


NODES = ("n1", "n2")


@each(
    ("now", "status", "sentence"),
    [
        (TrainerSituation(TrainerState.WAITING), "waiting", "Waits: no plan has considered it yet."),
        (
            TrainerSituation(TrainerState.WAITING, granted=(), why="no node is idle"),
            "waiting",
            "Waits: no node is idle.",
        ),
        (
            TrainerSituation(TrainerState.WAITING, granted=NODES, why="no other node is idle"),
            "waiting",
            "Is about to be launched on 2 nodes: no other node is idle.",
        ),
        (
            TrainerSituation(TrainerState.STARTING, granted=NODES, warming=NODES, why="its maximum is 2 nodes"),
            "starting",
            "Warms up on 2 nodes: its maximum is 2 nodes.",
        ),
        (
            TrainerSituation(TrainerState.RUNNING, ("n1",), NODES, ("n2",), "its maximum is 2 nodes"),
            "running",
            "Trains on 1 node, 1 more to join: its maximum is 2 nodes.",
        ),
        (
            TrainerSituation(TrainerState.RUNNING, NODES, (), why="no node is idle"),
            "running",
            "Trains on 2 nodes, 2 to leave: the newest plan gives it no node.",
        ),
        (
            TrainerSituation(
                TrainerState.RUNNING, NODES, NODES, (), "its maximum is 2 nodes", around=Circumstances(HELD)
            ),
            "held",
            "Held since 2023-11-14 22:13 UTC by anna: maintenance at 8; it gives its 2 nodes back. "
            "`oakum resume` ends the hold.",
        ),
        (
            TrainerSituation(
                TrainerState.RUNNING, NODES, NODES, around=Circumstances(unanswered_since=1_700_000_100.0)
            ),
            "running",
            "Trains on 2 nodes: the scheduler has not answered since 2023-11-14 22:15 UTC, "
            "so nothing is launched.",
        ),
        (
            TrainerSituation(TrainerState.WAITING, granted=NODES, around=Circumstances(dry_run=True)),
            "waiting",
            "Would get 2 nodes: this is a dry run, which launches nothing.",
        ),
        (
            TrainerSituation(TrainerState.RUNNING, NODES, NODES, cancel_asked=True),
            "cancelling",
            "Its user has cancelled it; it gives its 2 nodes back.",
        ),
        (
            TrainerSituation(TrainerState.RUNNING, NODES, NODES, pause=PAUSE, name="digits"),
            "paused",
            "Paused since 2023-11-14 22:13 UTC by ulla: its data moves; it gives its 2 nodes back. "
            "`oakum unpause digits` ends the pause.",
        ),
        (
            TrainerSituation(TrainerState.FINISHED, message="finished after 40 steps, loss 0.2"),
            "finished",
            "Finished after 40 steps, loss 0.2.",
        ),
        (
            TrainerSituation(
                TrainerState.FAILED, NODES, NODES, message="no module named x", around=Circumstances(HELD)
            ),
            "failed",
            "Failed: no module named x.",
        ),
    ],
)
def test_what_is_said(now: TrainerSituation, status: str, sentence: str) -> None:
    told = standing(now)
    assert (told.status, told.sentence) == (status, sentence)


def test_a_hold_without_a_reason_says_so() -> None:
    told = hold_sentence(ActiveHold(since=1_700_000_000.0, by="anna"))
    assert told == "Held since 2023-11-14 22:13 UTC by anna: no reason given. `oakum resume` ends the hold."


def test_a_reason_on_several_lines_stays_one_sentence() -> None:
    told = hold_sentence(ActiveHold(since=1_700_000_000.0, by="anna", reason="cooling\nis down."))
    assert "by anna: cooling is down. `oakum resume`" in told
