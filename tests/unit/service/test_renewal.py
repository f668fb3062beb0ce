"""Fragments that reach their time limit are replaced before: the real control loop in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cells import each
from oakum_service.api.views import explanation, trainer_view
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.renewal import Ending, Successors, endings, with_successors
from oakum_service.db.engine import Sessions
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_solver.forecast import IdleNode
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.spec import TrainerSpec
from virtual_site import VirtualSite, _Job

LIMIT_S = 100.0
NOW = 1_800_000_000.0
RISING = [[1, 1000], [8, 8000]]


class Site(VirtualSite):
    """A site with time limits, which notes the size of a trainer's generation and its fragments in each second."""

    def __init__(
        self, sessions: Sessions, folder: Path, monkeypatch: pytest.MonkeyPatch, num_nodes: int, slots: int
    ) -> None:
        times = {"start_up_s": 6.0, "look_ahead_s": 60.0}
        super().__init__(sessions, folder, num_nodes=num_nodes, busy=0, slots=slots, **times)
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


SiteOf = Callable[..., Site]
"""A site of so many nodes, of so many slots each."""


@pytest.fixture
def site_of(sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteOf:
    return lambda num_nodes, slots=1: Site(sessions, tmp_path, monkeypatch, num_nodes, slots)


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


@pytest.mark.parametrize("slots_per_fragment", [2, "node"])
def test_a_fragment_of_several_slots_is_replaced_by_one_with_as_many_of_one_node(
    site_of: SiteOf, slots_per_fragment: int | str
) -> None:
    site = site_of(2, slots=2)
    site.submit("digits", max_nodes=2, curve=RISING, slots_per_fragment=slots_per_fragment)
    site.watch(20)
    assert site.members[-1] == 1
    site.members.clear()
    site.watch(75)
    assert set(site.members) == {1, 2}
    assert max(site.held) == 2
    assert site.scheduler.timed_out == frozenset()
    assert {config.node for config in site.scheduler.submitted} == {"node001:0+1", "node002:0+1"}
    first = site.told("fragment.renewed")[0]
    assert first == "node002:0+1 reaches its time limit in 50 s, and node001:0+1 takes over"


def test_single_slots_of_several_nodes_replace_no_fragment_that_has_them_together(site_of: SiteOf) -> None:
    site = site_of(3, slots=2)
    site._jobs["foreground"] = _Job(site.now + 500.0, (3, 5))
    site.submit("pairs", max_nodes=2, curve=RISING, slots_per_fragment=2)
    site.watch(110)
    assert {config.node for config in site.scheduler.submitted} == {"node001:0+1"}
    assert len(site.scheduler.timed_out) == 1
    assert site.told("fragment.renewed") == []


def test_what_is_left_of_a_preempted_fragments_time_is_no_limit_that_comes_near(sessions: Sessions) -> None:
    with sessions.begin() as session:
        spec = TrainerSpec(name="a", entrypoint="a:b", global_batch=96, epochs=1)
        trainer = add_trainer(session, spec, "ulla")
        session.add(Fragment(id="f", node="n1:0+1", trainer_id=trainer.id, state="live", launched_at=NOW - 3600))
        session.flush()
        jobs = (OwnJob("71", "f", "n1:0+1", NOW + 50.0),)
        assert set(endings(session, Snapshot(NOW, (), jobs), NOW)) == {"n1:0+1"}
        assert endings(session, Snapshot(NOW, (), jobs, preempted=frozenset(["f"])), NOW) == {}


def ending(node: str, left_s: float = 60.0) -> dict[str, Ending]:
    return {node: Ending("a", node, left_s)}


def successors(**fields: object) -> Successors:
    return Successors(**({"may_have": lambda *_: True} | fields))  # type: ignore[arg-type]


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
    mine = successors(may_have=lambda _, node: node.access == "")
    found, _ = with_successors(nodes, ending("n1"), {"a": ("n1",)}, mine)
    assert {(node.node, node.owner) for node in found} == {("n1", "a"), ("n2", free.owner)}


def test_last_replicas_get_the_free_node_first() -> None:
    nodes = [IdleNode(name, 1e9, owner=name[0]) for name in ("b1", "b2", "a1")] + [IdleNode("free", 1e9)]
    both = {"b1": Ending("b", "b1", 10.0), "a1": Ending("a", "a1", 50.0)}
    found, _ = with_successors(nodes, both, {"a": ("a1",), "b": ("b1", "b2")}, successors())
    assert [(node.node, node.owner) for node in found] == [("b2", "b"), ("free", "a"), ("b1", "b")]


def pair_and(*free: str) -> list[IdleNode]:
    """Two slots that a fragment has together, and free ones."""
    held = [IdleNode(name, 1e9, owner="a") for name in ("n1:0", "n1:1")]
    return held + [IdleNode(name, 1e9) for name in free]


@each(
    ("free", "found"),
    [
        (("n2:0", "n3:0"), ()),
        (("n2:0", "n2:1", "n2:2", "n3:0", "n3:2"), ("n3:0", "n3:2")),
        (("n1:2", "n1:3"), ("n1:2", "n1:3")),
    ],
)
def test_slots_together_are_replaced_where_least_room_is_left_over(
    free: tuple[str, ...], found: tuple[str, ...]
) -> None:
    nodes = pair_and(*free)
    got, together = with_successors(nodes, ending("n1:0+1"), {"a": ("n1:0", "n1:1")}, successors())
    assert tuple(node.node for node in got if node.owner == "a") == (found or ("n1:0", "n1:1"))
    assert together == ([found] if found else [])


@each(("slots_of_n2", "is_replaced"), [(2, True), (4, False)])
def test_a_fragment_that_has_all_of_a_node_is_replaced_by_one_that_has_so_too(
    slots_of_n2: int, is_replaced: bool
) -> None:
    whole = successors(whole=("a",), sizes={("n1", "cpu"): 2, ("n2", "cpu"): slots_of_n2})
    nodes = pair_and("n2:0", "n2:1")
    got, _ = with_successors(nodes, ending("n1:0+1"), {"a": ("n1:0", "n1:1")}, whole)
    assert ("n1:0" not in {node.node for node in got}) is is_replaced


@each(("successor_is_held", "taken"), [(True, ("n2:0", "n2:1")), (False, ("n3:0", "n3:1"))])
def test_slots_together_are_replaced_once_unless_the_successor_comes_to_nothing(
    successor_is_held: bool, taken: tuple[str, ...]
) -> None:
    begun = [IdleNode(name, 1e9, owner="a") for name in ("n2:0", "n2:1")] if successor_is_held else []
    nodes = [*pair_and("n3:0", "n3:1"), *begun]
    got, _ = with_successors(nodes, ending("n1:0+1"), {"a": ("n2:0", "n2:1")}, successors())
    assert tuple(node.node for node in got if node.owner == "a") == taken
