"""What the controller learns of nodes that leave, from each snapshot, and from the database after a restart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event

from oakum_service.control.node_preference import NodePreferenceTracker
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.db.engine import Sessions
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState

NAMES = [f"n{number:02}" for number in range(20)]


def snapshot(
    at: float, busy: Sequence[int], names: Sequence[str] = NAMES, cleared: Sequence[int] = ()
) -> Snapshot:
    nodes = (
        Node(name, NodeState.FOREGROUND, "10.0.0.1", job="j")
        if number in busy
        else Node(name, NodeState.UNAVAILABLE, "10.0.0.1", clearing=True)
        if number in cleared
        else Node(name, NodeState.HOLE, "10.0.0.1")
        for number, name in enumerate(names)
    )
    return Snapshot(at, tuple(nodes), ())


class Watching:
    """A controller's node preference, which sees one snapshot after the other."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.keeper = sessions, NodePreferenceTracker()
        self.last: Any = None
        self.now = 1000.0

    def see(self, busy: Sequence[int], names: Sequence[str] = NAMES, cleared: Sequence[int] = ()) -> Observation:
        self.now += 10.0
        with self.sessions.begin() as session:
            written = write_snapshot(session, snapshot(self.now, busy, names, cleared), self.last)
            self.last = self.keeper.ordered(session, written)
        return self.last


def takes_the_highest(watching: Watching, rounds: int = 12) -> Observation:
    """Jobs come and go on the nodes with the highest numbers, more of them and fewer."""
    for number in range(rounds):
        watching.see(range(20 - (2, 6, 4, 9)[number % 4], 20))
    return watching.see(range(18, 20))


def test_at_first_the_last_nodes_of_the_list_come_first(sessions: Sessions) -> None:
    assert Watching(sessions).see([19, 0]).preference == tuple(reversed(NAMES[1:19]))


def test_what_is_taken_last_comes_first(sessions: Sessions) -> None:
    assert takes_the_highest(Watching(sessions)).preference == tuple(NAMES[:18])


def test_nodes_that_are_cleared_after_a_job_of_ours_were_taken_by_nobody(sessions: Sessions) -> None:
    watching = Watching(sessions)
    for _ in range(12):  # ours leave the first nodes again and again
        takes_the_highest(watching, rounds=4)
        watching.see(range(18, 20), cleared=range(10))
    assert watching.see(range(18, 20)).preference == tuple(NAMES[:18])


def test_a_controller_that_begins_has_learnt_from_the_past_of_the_database(sessions: Sessions) -> None:
    before = takes_the_highest(Watching(sessions))
    after = Watching(sessions)
    after.last, after.now = before, before.snapshot.taken_at
    assert after.see(range(18, 20)).preference == before.preference


def test_nodes_that_are_new_to_the_cluster_are_among_them(sessions: Sessions) -> None:
    watching = Watching(sessions)
    takes_the_highest(watching)
    assert set(watching.see([19], [*NAMES, "new"]).preference) == {*NAMES[:19], "new"}


def test_a_turn_without_a_change_asks_the_database_for_nothing(sessions: Sessions) -> None:
    """And one with a change for no past: what it costs does not depend on how long the service has run."""
    watching = Watching(sessions)
    takes_the_highest(watching)
    asked: list[str] = []
    with sessions.begin() as session:
        event.listen(session.connection(), "before_cursor_execute", lambda *call: asked.append(call[2]))
        for number in (watching.last.number, watching.last.number + 1):
            later = Observation(number, snapshot(time.time(), [0]))
            assert len(watching.keeper.ordered(session, later).preference) == (
                18 if number == watching.last.number else 19
            )
    assert [text for text in asked if "node_intervals" in text] == []


@pytest.mark.parametrize("again", [False, True])
def test_whoever_gets_the_lease_again_reads_the_past_anew(sessions: Sessions, again: bool) -> None:
    watching, other = Watching(sessions), Watching(sessions)
    first = watching.see([19])
    other.last, other.now = first, watching.now
    takes_the_highest(other)
    if again:
        watching.keeper.begin()
    watching.last, watching.now = other.last, other.now
    assert watching.see([19]).preference == tuple(NAMES[:19] if again else reversed(NAMES[:19]))
