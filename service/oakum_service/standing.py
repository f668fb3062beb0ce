"""Says in one word and one sentence where a trainer stands. All that CLI, API and dashboard say of it comes
from here.

Pure: everything that matters is in a `TrainerSituation`. Conditions checked first in `_word` overrule later
ones, so that no two sentences about a trainer contradict each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from oakum_service.documents.pause import Pause
from oakum_service.documents.setback import Setback, SetbackKind
from oakum_service.states import TrainerState
from oakum_solver.wording import counted


class Status(StrEnum):
    """One word for where a trainer stands: its state, or what keeps it from going on."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    """An admin's hold: the trainer gives its nodes back and gets none until the hold ends."""
    PAUSED = "paused"
    """Its user's pause: the trainer gives its nodes back and gets none until the pause ends."""
    CANCELLING = "cancelling"
    """Its user has cancelled it; the next turn of the control loop ends it."""
    FINISHED = "finished"
    FAILED = "failed"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"


PLANNED = (Status.WAITING, Status.STARTING, Status.RUNNING)
"""The statuses in which a trainer's size follows from the plan."""


@dataclass(frozen=True)
class ActiveHold:
    """A hold that is in force: who has begun it, when, and why."""

    since: float
    by: str
    reason: str = ""


@dataclass(frozen=True)
class Attempt:
    """The present attempt of a trainer that has crashed: its number, how many there are, and what ended the one
    before."""

    number: int
    """Number of the present attempt, from 1."""
    most: int
    """Number of attempts that the trainer has."""
    after: str
    """What ended the attempt before."""


@dataclass(frozen=True)
class AvoidedNode:
    """A node on which nothing is launched for a while, because fragments came to nothing there."""

    node: str
    until: float
    what: str
    """The last words of the newest of these fragments."""


@dataclass(frozen=True)
class Circumstances:
    """What holds for the service, and so for every trainer."""

    hold: ActiveHold | None = None
    dry_run: bool = False
    unanswered_since: float | None = None
    """Since when the scheduler has not answered, if that is too long to launch anything; else None."""
    avoided: tuple[AvoidedNode, ...] = ()
    closed: str = ""
    """Why the scheduler begins no job of ours, as a clause; empty if it does."""
    trouble: str = ""
    """Sentence on what keeps the service from reading or writing its database; empty if nothing does."""
    learns_curves: bool = True
    """Whether measured rates count in plans."""


NOTHING_SPECIAL = Circumstances()


@dataclass(frozen=True)
class TrainerSituation:
    """Everything from which `standing` decides what is said of a trainer."""

    state: TrainerState
    members: tuple[str, ...] = ()
    """Nodes of its present generation."""
    granted: tuple[str, ...] | None = None
    """Nodes that the plan grants; None if no plan has considered the trainer."""
    warming: tuple[str, ...] = ()
    """Nodes on which fragments warm up."""
    why: str = ""
    """The plan's reason for granting no more, as a clause."""
    message: str = ""
    """Why it ended; for a live trainer what is wrong with it."""
    cancel_asked: bool = False
    attempt: Attempt | None = None
    reading_share: float | None = None
    """Share of a step's time in which the slowest rank waits for its samples."""
    around: Circumstances = NOTHING_SPECIAL
    pause: Pause | None = None
    name: str = "TRAINER"
    """Its name, for the commands that sentences name."""
    setback: Setback | None = None
    """Its newest launches, if they came to nothing."""


@dataclass(frozen=True)
class Standing:
    """What is said of a trainer: status, sentences, and nodes that come and go."""

    status: Status
    sentence: str
    condition: str
    """Sentences on what is wrong with the trainer; empty if nothing is."""
    granted: tuple[str, ...]
    joining: tuple[str, ...]
    """Nodes that it will train on and does not train on yet."""
    leaving: tuple[str, ...]
    """Nodes that it still trains on and will give back."""


_FEW = 4
"""Names of nodes in a sentence."""
READING_IS_SLOW = 0.5
"""Share of a step spent on waiting for samples from which on that is named as what slows training."""


def standing(now: TrainerSituation) -> Standing:
    """What is said of the trainer in this situation: status, sentences, and the nodes that join or leave."""
    status = _word(now)
    joining, leaving = _moves(now, status)
    return Standing(
        status=status,
        sentence=_sentence(now, status, joining, leaving),
        condition=" ".join(_conditions(now, status)),
        granted=(now.granted or ()) if status in PLANNED else (),
        joining=joining,
        leaving=leaving,
    )


def hold_sentence(hold: ActiveHold) -> str:
    """A sentence on the hold: since when, by whom, why, and how to end it."""
    return f"{_held(hold)}. `oakum resume` ends the hold."


def _held(hold: ActiveHold) -> str:
    reason = _clause(hold.reason) or "no reason given"
    return f"Held since {moment(hold.since)} by {hold.by}: {reason}"


def _paused(pause: Pause) -> str:
    reason = _clause(pause.reason) or "no reason given"
    return f"Paused since {moment(pause.since)} by {pause.by}: {reason}"


def _word(now: TrainerSituation) -> Status:
    if now.state.ended:
        return Status(now.state.value)
    if now.cancel_asked:
        return Status.CANCELLING
    if now.around.hold is not None:
        return Status.HELD
    if now.pause is not None:
        return Status.PAUSED
    if now.members:
        return Status.RUNNING
    return Status.STARTING if now.warming else Status.WAITING


def _moves(now: TrainerSituation, status: Status) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(nodes that will join the trainer, nodes that will leave it)."""
    if status not in PLANNED:
        return (), now.members
    if now.granted is None or now.around.dry_run:
        return (), ()
    joining = tuple(node for node in now.granted if node not in now.members)
    return joining, tuple(node for node in now.members if node not in now.granted)


def _sentence(now: TrainerSituation, status: Status, joining: tuple[str, ...], leaving: tuple[str, ...]) -> str:
    if now.state.ended:
        return _ended(now)
    back = f"; it gives its {_nodes(len(now.members))} back" if now.members else ""
    if status is Status.CANCELLING:
        return f"Its user has cancelled it{back}."
    if now.around.hold is not None:
        return f"{_held(now.around.hold)}{back}. `oakum resume` ends the hold."
    if now.pause is not None:
        return f"{_paused(now.pause)}{back}. `oakum unpause {now.name}` ends the pause."
    if status is Status.RUNNING:
        return f"Trains on {_nodes(len(now.members))}{_changes(joining, leaving)}{_because(now)}."
    if status is Status.STARTING:
        return f"Warms up on {_nodes(len(now.warming))}{_because(now)}."
    if now.granted and now.around.dry_run:
        return f"Would get {_nodes(len(now.granted))}{_because(now)}."
    if now.granted and now.around.closed:
        return f"Waits{_because(now)}."
    if now.granted and now.setback is not None:
        return f"Waits for its next launch on {_nodes(len(now.granted))}{_because(now)}."
    if now.granted:
        return f"Is about to be launched on {_nodes(len(now.granted))}{_because(now)}."
    return f"Waits{_because(now)}."


def _ended(now: TrainerSituation) -> str:
    """The sentence for a trainer that has ended: its state's word and its message, without the word twice."""
    word = now.state.value
    text = _clause(now.message)
    if not text:
        return f"{word.capitalize()}."
    if text.lower().startswith(word):
        return f"{text[0].upper()}{text[1:]}."
    return f"{word.capitalize()}: {text}."


def _changes(joining: tuple[str, ...], leaving: tuple[str, ...]) -> str:
    parts = [f"{len(joining)} more to join"] if joining else []
    parts += [f"{len(leaving)} to leave"] if leaving else []
    return f", {' and '.join(parts)}" if parts else ""


def _because(now: TrainerSituation) -> str:
    """The end of a sentence, from a colon on: why the trainer has no more nodes; empty where that is not known.
    What is true now comes before the plan's reason, which may be older."""
    around = now.around
    if around.unanswered_since is not None:
        return f": the scheduler has not answered since {moment(around.unanswered_since)}, so nothing is launched"
    if around.closed:
        return f": {around.closed}, so nothing is launched"
    if around.dry_run:
        return ": this is a dry run, which launches nothing"
    if now.granted is None:
        return "" if now.members or now.warming else ": no plan has considered it yet"
    if not now.granted and (now.members or now.warming):
        return ": the newest plan gives it no node"
    return f": {_clause(now.why)}" if now.why else ""


def _conditions(now: TrainerSituation, status: Status) -> Iterator[str]:
    """Sentences on what is wrong with a live trainer; none after its end, which has a sentence of its own."""
    if now.state.ended:
        return
    if now.attempt is not None:
        number, most = now.attempt.number, now.attempt.most
        yield f"This is attempt {number} of {most}. The one before ended with: {_clause(now.attempt.after)}."
    if now.message and (now.attempt is None or now.message != now.attempt.after):
        yield f"{_clause(now.message)}."
    if now.setback is not None and status in PLANNED and not now.around.dry_run:
        yield _set_back(now.setback)
    if now.around.avoided and status in (Status.WAITING, Status.STARTING):
        yield _avoided(now.around.avoided)
    if status is Status.RUNNING and now.reading_share is not None and now.reading_share >= READING_IS_SLOW:
        yield slow_reading(now.reading_share)
    if now.around.trouble:
        yield f"{_clause(now.around.trouble)}."


def _set_back(setback: Setback) -> str:
    """A sentence on launches that came to nothing: how many, where, in whose words why, and when the next is
    due."""
    many = "launch" if setback.times == 1 else f"{setback.times} launches"
    if setback.kind is SetbackKind.REFUSED:
        what = "was refused" if setback.times == 1 else "were refused"
    elif setback.kind is SetbackKind.PENDING:
        what = "waited for a node in vain"
    else:
        what = "ended before a fragment reported"
    return (
        f"Its last {many} {what} (since {moment(setback.since)}, {', '.join(setback.nodes)}): "
        f"{_clause(setback.what)}. The next one is due at {_second(setback.next_at)}, or as soon as its spec, the "
        "state of these nodes or the number of Oakum's jobs changes."
    )


def _avoided(nodes: tuple[AvoidedNode, ...]) -> str:
    """A sentence on nodes that are left out: which, until when, and why."""
    names = ", ".join(node.node for node in nodes[:_FEW])
    more = f" and {len(nodes) - _FEW} more" if len(nodes) > _FEW else ""
    first = min(nodes, key=lambda node: node.until)
    return (
        f"Nothing is launched on {names}{more} for now, on {first.node} until {_second(first.until)}: fragments "
        f"came to nothing there, with the last words: {_clause(first.what)}."
    )


def slow_reading(share: float) -> str:
    """A sentence that says that steps wait for samples, and what to do."""
    return (
        f"Ranks wait for samples for {share:.0%} of each step, so more nodes help only as far as they read side "
        "by side. Faster: let other processes read ahead (`workers` in the spec), or have `__getitem__` do less "
        "(read prepared files, keep them on the node's own disk, cache)."
    )


def _clause(text: str) -> str:
    """The text on one line and without a final full stop."""
    return " ".join(text.split()).removesuffix(".")


def moment(at: float) -> str:
    """The time in UTC, the same for every reader."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def _second(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


def _nodes(number: int) -> str:
    return counted(number, "node")
