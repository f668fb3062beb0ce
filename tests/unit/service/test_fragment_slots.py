"""How many slots a fragment takes where the spec leaves that to the service: by what foreground jobs took, by the
model, and within the trainer's bounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_service.config import Settings
from oakum_service.control import fragment_slots
from oakum_service.control.fragment_slots import JobShapes, Site, decide
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.fragment_slots import FragmentSlots, SlotsWhy
from oakum_service.documents.node import Node
from oakum_service.orders.quotas import set_quota
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.problem import Host
from oakum_worker.spec import TrainerSpec
from virtual_site import VirtualSite

NOW = 1_800_000_000.0
HOLE, TAKEN = NodeState.HOLE, NodeState.FOREGROUND
WHOLE, SINGLE, FEW = JobShapes(40, 38), JobShapes(40, 3), JobShapes(19, 19)
LINE = {"parallel": {"tensor": {"line": 2}}}


def spec_of(**fields: Any) -> TrainerSpec:
    return TrainerSpec(name="digits", entrypoint="a:b", global_batch=96, epochs=1, **fields)


def hosts(*idle: int, size: int = 4) -> list[Host]:
    """One node of so many slots for each number, of which so many are idle."""
    return [Host(tuple(f"n{n}:{slot}" for slot in range(number)), size) for n, number in enumerate(idle) if number]


@each(
    ("fields", "past", "idle", "slots", "why"),
    [
        ({}, WHOLE, (4, 4), "node", "past"),
        ({}, JobShapes(40, 36), (4, 4), "node", "past"),
        ({}, JobShapes(40, 35), (4, 4), 1, "past"),
        ({}, SINGLE, (4, 4), 1, "past"),
        ({}, FEW, (4, 4), 1, "few_jobs"),
        ({}, JobShapes(), (4, 4), 1, "few_jobs"),
        # nothing is idle at all: it waits for nodes as jobs leave them
        ({}, WHOLE, (), "node", "past"),
        ({}, WHOLE, (3, 1), 1, "scattered"),
        ({"max_nodes": 3}, WHOLE, (4, 4), 1, "bounds"),
        ({"min_nodes": 5, "max_nodes": 7}, WHOLE, (4, 4), 1, "bounds"),
        ({"min_nodes": 5, "max_nodes": 8}, WHOLE, (4, 4), "node", "past"),
        ({"sizes": [1, 2, 6]}, WHOLE, (4, 4), 1, "bounds"),
        ({"sizes": "powers_of_two"}, WHOLE, (4, 4), "node", "past"),
        # a model that is divided over its ranks
        (LINE, SINGLE, (4, 4), 2, "model"),
        (LINE, FEW, (2, 2), 2, "model"),
        (LINE, SINGLE, (2, 1, 1), 1, "past"),
        (LINE, SINGLE, (1, 1), 1, "past"),
        (LINE | {"max_nodes": 1}, SINGLE, (4, 4), 1, "past"),
        ({"parallel": {"tensor": {"square": 2}}}, SINGLE, (4, 4), "node", "model"),
        ({"parallel": {"tensor": {"cube": 2}}}, SINGLE, (4, 4), "node", "model"),
        ({"parallel": {"tensor": {}}}, SINGLE, (4, 4), "node", "model"),
        ({"parallel": {"pipeline": {"stages": 2}}}, SINGLE, (3, 3), 2, "model"),
        ({"parallel": {"pipeline": {}}}, SINGLE, (4, 3), 1, "past"),
        ({"parallel": {"data": "sharded"}}, SINGLE, (4, 2), "node", "model"),
        ({"parallel": {"data": "sharded"}}, WHOLE, (4, 2, 2, 2), "node", "past"),
    ],
)
def test_it_follows_from_what_jobs_took_and_from_the_model(
    fields: dict[str, Any], past: JobShapes, idle: Sequence[int], slots: int | str, why: str
) -> None:
    spec = spec_of(**fields)
    decided = decide(spec, spec.max_nodes, past, hosts(4, 4, 4), hosts(*idle))
    assert (decided.slots, decided.why) == (slots, why)


@each(
    ("gain", "idle", "slots"),
    [(1.1, (4, 4), 1), (1.3, (4, 4), 2), (1.3, (4, 3), 1), (5.0, (2, 1, 1, 1), 2), (1e300, (1, 1), 1)],
)
def test_what_links_were_measured_to_be_worth_is_weighed_against_what_is_idle(
    gain: float, idle: Sequence[int], slots: int
) -> None:
    spec = spec_of(**LINE)
    decided = decide(spec, spec.max_nodes, SINGLE, hosts(4, 4), hosts(*idle), gain)
    assert decided.slots == slots
    assert ("predicted by measured links to go" in decided.reason) == (slots == 2)


@each(
    ("fields", "past", "size", "idle", "reason"),
    [
        ({}, WHOLE, 4, (4, 4), "all 4 slots of a node: of 40 foreground jobs here 38 took whole nodes."),
        ({}, SINGLE, 4, (4, 4), "one slot: of 40 foreground jobs here 3 took whole nodes."),
        ({}, FEW, 4, (4, 4), "one slot: fewer than 20 foreground jobs have been seen to take slots here."),
        (
            {"min_nodes": 2, "max_nodes": 3},
            *(WHOLE, 4, (4, 4)),
            "one slot: of 40 foreground jobs here 38 took whole nodes, but the trainer's 2 to 3 slots make up no "
            "whole nodes.",
        ),
        (
            LINE,
            *(SINGLE, 8, (3, 2)),
            "2 slots of a node: its model is divided over its ranks, which is assumed to go 2 times as fast on "
            "one node, and 4 of 5 idle slots are on nodes with so many idle.",
        ),
    ],
)
def test_it_says_why(fields: dict[str, Any], past: JobShapes, size: int, idle: Sequence[int], reason: str) -> None:
    spec = spec_of(**fields)
    decided = decide(spec, spec.max_nodes, past, hosts(size, size, size=size), hosts(*idle, size=size))
    assert decided.reason == f"Each fragment takes {reason}"


def site(*states: Sequence[NodeState], kind: str = "a100") -> tuple[Node, ...]:
    return tuple(
        Node(f"n{node}:{slot}", state, "10.0.0.1", kind)
        for node, slots in enumerate(states)
        for slot, state in enumerate(slots)
    )


IDLE = site([HOLE] * 4, [HOLE] * 4)


def take(
    sessions: Sessions, job: str | None, *slots: str, at: float = NOW - 9e4, to: float | None = NOW - 8e4
) -> None:
    """Let a foreground job have had these slots."""
    rows = [{"node": slot, "job": job, "state": TAKEN, "start_at": at, "end_at": to} for slot in slots]
    with sessions.begin() as session:
        session.add_all([NodeInterval(**row) for row in rows])


def whole_node(node: str) -> list[str]:
    return [f"{node}:{slot}" for slot in range(4)]


def test_a_job_takes_whole_nodes_if_it_has_all_slots_of_each(sessions: Sessions) -> None:
    take(sessions, "one node", *whole_node("n0"))
    take(sessions, "two nodes", *whole_node("n0"), *whole_node("n1"))
    take(sessions, "a node and a slot", *whole_node("n0"), "n1:0")
    take(sessions, "where ours were", "n0:0", "n0:1")
    take(sessions, "where ours were", "n0:2", "n0:3", at=NOW - 9e4 + 5.0)
    take(sessions, "runs", *whole_node("n1"), to=None)
    take(sessions, "one slot", "n1:2")
    take(sessions, "one slot, of which a hook told", "n1:2")
    take(sessions, "one slot, of which a hook told", "n1:0", "n1:1", "n1:3", to=NOW - 9e4 + 1.0)
    take(sessions, None, *whole_node("n1"))  # whose, Slurm does not say: perhaps of several
    take(sessions, "gone", *whole_node("n7"))
    take(sessions, "whole", "n0")
    with sessions.begin() as session:
        past = Site(Snapshot(NOW, IDLE, ()), session).past({"a100"})
        assert past == JobShapes(jobs=7, whole=4)
        assert Site(Snapshot(NOW, IDLE, ()), session).past({"h100"}) == JobShapes()


def test_of_a_long_past_the_newest_jobs_count_and_none_by_halves(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_slots, "_PAST_TAKINGS", 10)
    for number in range(9):
        take(sessions, f"job {number}", *whole_node("n0"), at=NOW - 9e4 + number)
    with sessions.begin() as session:
        assert Site(Snapshot(NOW, IDLE, ()), session).past({"a100"}) == JobShapes(2, 2)


def submit(sessions: Sessions, **fields: Any) -> str:
    with sessions.begin() as session:
        trainer = add_trainer(session, spec_of(**fields), "ulla")
        session.flush()
        return trainer.id


def decided(sessions: Sessions, nodes: tuple[Node, ...] = IDLE) -> FragmentSlots | None:
    """What is news for the only trainer, which is stored as the planner does."""
    with sessions.begin() as session:
        news = fragment_slots.due(session, Snapshot(NOW, nodes, ()), Settings())
        fragment_slots.store(session, news)
    return next(iter(news.values()), None)


def slots_of(sessions: Sessions, trainer: str) -> int | str:
    with sessions.begin() as session:
        return session.get_one(Trainer, trainer).slots_per_fragment


def test_what_is_decided_holds_while_the_trainer_has_a_fragment(sessions: Sessions) -> None:
    trainer = submit(sessions)
    assert slots_of(sessions, trainer) == 1
    first = decided(sessions)
    assert first is not None
    assert (first.slots, first.why) == (1, SlotsWhy.FEW_JOBS)
    with sessions.begin() as session:
        row = {"trainer_id": trainer, "state": FragmentState.LIVE, "launched_at": NOW}
        session.add(Fragment(id="f", node="n0:0", **row))
    for number in range(40):
        take(sessions, str(number), *whole_node("n0"))
    assert decided(sessions) is None
    assert slots_of(sessions, trainer) == 1
    with sessions.begin() as session:
        fragment = session.get_one(Fragment, "f")
        fragment.state, fragment.ended_at = FragmentState.ENDED, NOW
        session.get_one(Trainer, trainer).members = ("f",)
    assert decided(sessions) is None, "its generation has not ended yet"
    with sessions.begin() as session:
        session.get_one(Trainer, trainer).members = ()
    assert decided(sessions) is not None
    assert slots_of(sessions, trainer) == "node"
    assert decided(sessions) is None


def test_a_users_quota_bounds_it(sessions: Sessions) -> None:
    trainer = submit(sessions)
    for number in range(40):
        take(sessions, str(number), *whole_node("n0"))
    with sessions.begin() as session:
        set_quota(session, "ulla", {"nodes": 3}, "root")
    news = decided(sessions)
    assert news is not None
    assert news.why is SlotsWhy.BOUNDS
    assert slots_of(sessions, trainer) == 1


def test_only_types_that_the_trainer_runs_on_count(sessions: Sessions) -> None:
    trainer = submit(sessions, curves_by_type={"h100": [[1, 10.0]]})
    for number in range(40):
        take(sessions, str(number), *whole_node("n0"))
    other = tuple(Node(f"n9:{slot}", HOLE, "10.0.0.9", "h100") for slot in range(4))
    news = decided(sessions, IDLE + other)
    assert news is not None
    assert news.why is SlotsWhy.FEW_JOBS
    assert slots_of(sessions, trainer) == 1


def test_where_nodes_are_whole_nothing_is_said(sessions: Sessions) -> None:
    trainer = submit(sessions)
    nodes = Node("n0", HOLE, "10.0.0.1"), Node("n1:0", HOLE, "10.0.0.2")
    assert decided(sessions, nodes) is None
    assert slots_of(sessions, trainer) == 1
    for number in range(40):
        take(sessions, str(number), *whole_node("n0"))
    decided(sessions)
    assert slots_of(sessions, trainer) == "node"
    assert decided(sessions, nodes) == FragmentSlots(1, SlotsWhy.WHOLE_NODES, ""), "no longer in parts"


@each("fixed", [1, 2, "node"])
def test_what_a_spec_fixes_is_not_decided(sessions: Sessions, fixed: int | str) -> None:
    with sessions.begin() as session:
        session.query(Trainer).delete()
    trainer = submit(sessions, slots_per_fragment=fixed)
    for number in range(40):
        take(sessions, str(number), *whole_node("n0"))
    assert decided(sessions) is None
    assert slots_of(sessions, trainer) == fixed


def test_fragments_are_launched_on_what_was_decided(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        take(sessions, str(number), *(f"node001:{slot}" for slot in range(4)))
    virtual = VirtualSite(sessions, tmp_path, num_nodes=2, busy=0, slots=4)
    monkeypatch.setattr(time, "time", virtual.time)
    virtual.begin()
    virtual.submit("digits", max_nodes=64, curve=[[1, 10], [64, 640]])
    virtual.submit("single", max_nodes=64, curve=[[1, 10], [64, 640]], slots_per_fragment=1, priority=-1)
    virtual.run(12)
    assert {job.node for job in virtual.scheduler.own_jobs} == {"node001:0+1+2+3", "node002:0+1+2+3"}
    assert virtual.sizes() == {"digits": 2}
