"""Fragments that reach their time limit are replaced before: the real control loop in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cells import each
from oakum_service.api.views import explanation, trainer_view
from oakum_service.control.renewal import Ending, with_successors
from oakum_service.db.engine import Sessions
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_solver.forecast import IdleNode
from oakum_worker.protocol import FragmentReport, Phase
from virtual_site import VirtualSite, _Job

LIMIT_S = 100.0
RISING = [[1, 1000], [8, 8000]]


class Site(VirtualSite):
    """A site with time limits, which notes the size of a trainer's generation and its fragments in each second."""

    def __init__(self, sessions: Sessions, folder: Path, monkeypatch: pytest.MonkeyPatch, num_nodes: int) -> None:
        super().__init__(sessions, folder, num_nodes=num_nodes, busy=0, start_up_s=6.0, look_ahead_s=60.0)
        monkeypatch.setattr(time, "time", self.time)
        self.scheduler.limit_s = LIMIT_S
        self.members: list[int] = []
        self.held: list[int] = []
        self.begin()

    def watch(self, seconds: int) -> None:
        self.run(seconds, self._look)

    def _says(self, fragment: Fragment, trainer: Trainer, sequence: int) -> FragmentReport:
        report = super()._says(fragment, trainer, sequence)
        is_built = report.phase in (Phase.READY, Phase.TRAINING)
        return report.model_copy(update={"startup_s": 6.0}) if is_built else report

    def _look(self) -> None:
        with self.sessions.begin() as session:
            self.members.append(len(session.query(Trainer).one().members))
        self.held.append(len(self.scheduler.own_jobs))

    def told(self, kind: str) -> list[str]:
        with self.sessions.begin() as session:
            events = session.query(EventRecord).filter_by(kind=kind).order_by(EventRecord.id)
            return [event.message for event in events]

    def explained(self) -> str:
        with self.sessions.begin() as session:
            row = session.query(Trainer).one()
            return explanation(session, row, trainer_view(session, row)).reason


SiteOf = Callable[[int], Site]
"""A site of so many nodes."""


@pytest.fixture
def site_of(sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteOf:
    return lambda num_nodes: Site(sessions, tmp_path, monkeypatch, num_nodes)


def test_a_last_replica_trains_until_its_successor_on_a_free_node_has_the_state(site_of: SiteOf) -> None:
    site = site_of(2)
    site.submit("digits", max_nodes=1, curve=RISING)
    site.watch(20)
    assert site.members[-1] == 1
    site.members.clear()
    site.watch(230)
    assert set(site.members) == {1, 2}
    assert max(site.held) == 2
    assert site.scheduler.timed_out == frozenset()
    assert len(site.scheduler.submitted) == 5
    assert site.told("fragment.renewed")[0] == "node002 reaches its time limit in 50 s, and node001 takes over"


def test_what_takes_over_is_explained_while_it_does(site_of: SiteOf) -> None:
    site = site_of(2)
    site.submit("digits", max_nodes=1, curve=RISING)
    site.watch(20)
    assert site.explained() == "Trains on 1 node: its maximum is 1 node."
    while not site.told("fragment.renewed"):
        site.watch(1)
    assert site.explained() == (
        "Trains on 1 node, 1 more to join and 1 to leave: its maximum is 1 node; "
        "node002 reaches its time limit in 50 s, and node001 takes over."
    )
    site.watch(15)
    assert site.explained() == "Trains on 1 node: its maximum is 1 node."


def test_where_no_node_is_free_the_same_one_is_used_again_at_once(site_of: SiteOf) -> None:
    site = site_of(1)
    site.submit("digits", max_nodes=1, curve=RISING)
    site.watch(20)
    site.members.clear()
    site.watch(230)
    assert len(site.scheduler.timed_out) == 2
    assert site.members.count(0) <= 2 * 10
    assert site.told("fragment.renewed") == []


@pytest.mark.parametrize("curve", [RISING, [[1, 1000], [2, 1900], [8, 1901]]])
def test_each_of_many_is_replaced_once(site_of: SiteOf, curve: list[list[int]]) -> None:
    site = site_of(8)
    site.submit("digits", max_nodes=3, curve=curve)
    site.watch(20)
    size = site.members[-1]
    site.members.clear()
    site.watch(75)
    assert set(site.members) <= {size, 2 * size}
    assert max(site.held) == 2 * size
    assert len(site.scheduler.submitted) == 2 * size


def test_a_successor_that_loses_its_node_is_replaced(site_of: SiteOf) -> None:
    site = site_of(3)
    site.submit("digits", max_nodes=1, curve=RISING)
    while not site.told("fragment.renewed"):
        site.watch(1)
    site.members.clear()
    site._jobs["foreground"] = _Job(site.now + 500.0, (1,))
    site.watch(60)
    assert 0 not in site.members
    assert {job.node for job in site.scheduler.own_jobs} == {"node003"}


def ending(node: str, left_s: float = 60.0) -> dict[str, Ending]:
    return {node: Ending("a", node, left_s)}


@each(
    "free",
    [
        IdleNode("n2", 1e9, node_type="gpu"),
        IdleNode("n2", 1e9, access="big"),
        IdleNode("n2", 1e9, rest_s=50.0),
        IdleNode("n2", 1e9, owner="b"),
    ],
)
def test_a_node_that_will_not_do_takes_no_place(free: IdleNode) -> None:
    nodes = [IdleNode("n1", 1e9, owner="a"), free]
    found = with_successors(nodes, ending("n1"), {"a": ("n1",)}, lambda _, node: node.access == "")
    assert {(node.node, node.owner) for node in found} == {("n1", "a"), ("n2", free.owner)}


def test_last_replicas_get_the_free_node_first() -> None:
    nodes = [IdleNode(name, 1e9, owner=name[0]) for name in ("b1", "b2", "a1")] + [IdleNode("free", 1e9)]
    both = {"b1": Ending("b", "b1", 10.0), "a1": Ending("a", "a1", 50.0)}
    found = with_successors(nodes, both, {"a": ("a1",), "b": ("b1", "b2")}, lambda *_: True)
    assert [(node.node, node.owner) for node in found] == [("b2", "b"), ("free", "a"), ("b1", "b")]
