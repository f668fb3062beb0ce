"""What is written down of the scheduler's snapshots: each node's intervals, holes among them, and job starts."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from num_examples import scaled
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.db.engine import Sessions, open_engine, open_sessions
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval, SnapshotRecord
from oakum_service.db.models.events import EventRecord
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import JobStart, Snapshot
from oakum_service.states import NodeState

NAMES = ("n1", "n2", "n3")
Stretch = tuple[NodeState, str | None, float, float | None]


def idle(name: str) -> Node:
    return Node(name, NodeState.HOLE, "10.0.0.1")


def busy(name: str, job: str) -> Node:
    return Node(name, NodeState.FOREGROUND, "10.0.0.1", job=job, job_name=f"name of {job}")


def down(name: str) -> Node:
    return Node(name, NodeState.UNAVAILABLE, "10.0.0.1")


def observe(sessions: Sessions, *snapshots: Snapshot, restart_before: frozenset[int] = frozenset()) -> list[int]:
    """Record the snapshots in turn, and return their numbers; the last snapshot is forgotten where the service
    restarts."""
    last: Observation | None = None
    numbers = []
    for index, snapshot in enumerate(snapshots):
        with sessions.begin() as session:
            last = write_snapshot(session, snapshot, None if index in restart_before else last)
        numbers.append(last.number)
    return numbers


def intervals(sessions: Sessions) -> dict[str, list[Stretch]]:
    """Node -> its intervals in the order in which they were written."""
    with sessions.begin() as session:
        rows = session.execute(select(NodeInterval).order_by(NodeInterval.id)).scalars().all()
    found: dict[str, list[Stretch]] = {}
    for row in rows:
        found.setdefault(row.node, []).append((NodeState(row.state), row.job, row.start_at, row.end_at))
    return found


def test_a_node_that_changes_ends_one_interval_and_begins_the_next(sessions: Sessions) -> None:
    observe(
        sessions,
        Snapshot(10.0, (idle("n1"), idle("n2")), ()),
        Snapshot(20.0, (busy("n1", "j1"), idle("n2")), ()),
        Snapshot(30.0, (idle("n1"), idle("n2")), ()),
    )
    assert intervals(sessions) == {
        "n1": [
            (NodeState.HOLE, None, 10.0, 20.0),
            (NodeState.FOREGROUND, "j1", 20.0, 30.0),
            (NodeState.HOLE, None, 30.0, None),
        ],
        "n2": [(NodeState.HOLE, None, 10.0, None)],
    }


def test_a_hole_goes_on_while_the_node_is_cleared_after_a_job_of_ours(sessions: Sessions) -> None:
    cleared = Node("n1", NodeState.UNAVAILABLE, "10.0.0.1", clearing=True)
    seen = (idle("n1"), cleared, idle("n1"), cleared, busy("n1", "j1"), cleared, idle("n1"))
    observe(sessions, *(Snapshot(10.0 * number, (node,), ()) for number, node in enumerate(seen, start=1)))
    assert intervals(sessions) == {
        "n1": [
            (NodeState.HOLE, None, 10.0, 50.0),
            (NodeState.FOREGROUND, "j1", 50.0, 60.0),
            (NodeState.UNAVAILABLE, None, 60.0, 70.0),
            (NodeState.HOLE, None, 70.0, None),
        ]
    }


def test_two_jobs_in_a_row_are_two_intervals(sessions: Sessions) -> None:
    observe(sessions, Snapshot(10.0, (busy("n1", "j1"),), ()), Snapshot(20.0, (busy("n1", "j2"),), ()))
    assert intervals(sessions)["n1"] == [
        (NodeState.FOREGROUND, "j1", 10.0, 20.0),
        (NodeState.FOREGROUND, "j2", 20.0, None),
    ]


def test_a_node_that_is_gone_from_the_cluster_has_no_open_interval(sessions: Sessions) -> None:
    observe(sessions, Snapshot(10.0, (idle("n1"), idle("n2")), ()), Snapshot(20.0, (idle("n2"),), ()))
    assert intervals(sessions)["n1"] == [(NodeState.HOLE, None, 10.0, 20.0)]


def test_the_same_nodes_again_are_the_same_snapshot(sessions: Sessions) -> None:
    """Also when our own jobs or the time have changed: a number stands for what a plan depends on."""
    same = Snapshot(20.0, (idle("n1"),), (), (JobStart("j1", 5.0, 1, 0.5),))
    numbers = observe(sessions, Snapshot(10.0, (idle("n1"),), ()), same, Snapshot(30.0, (down("n1"),), ()))
    assert numbers[0] == numbers[1] < numbers[2]


def test_a_node_that_is_kept_free_says_for_whom(sessions: Sessions) -> None:
    kept = Node("n1", NodeState.UNAVAILABLE, "10.0.0.1", job="123")
    observe(sessions, Snapshot(10.0, (kept, down("n2")), ()))
    with sessions.begin() as session:
        told = session.execute(select(EventRecord.message).order_by(EventRecord.id)).scalars().all()
    assert told == [
        "is kept free while the scheduler hands nodes to foreground job 123",
        "is not available",
    ]


def test_a_restart_does_not_break_an_interval_in_two(sessions: Sessions) -> None:
    again = Snapshot(20.0, (idle("n1"),), ())
    observe(sessions, Snapshot(10.0, (idle("n1"),), ()), again, restart_before=frozenset({1}))
    assert intervals(sessions) == {"n1": [(NodeState.HOLE, None, 10.0, None)]}


def test_each_start_of_a_foreground_job_is_counted_once(sessions: Sessions) -> None:
    first, second, third = (JobStart(f"j{number}", 5.0 + number, 1, 0.5) for number in range(3))
    observe(
        sessions,
        Snapshot(10.0, (idle("n1"),), (), (first,)),
        Snapshot(11.0, (idle("n1"),), (), (first, second, third)),
        Snapshot(12.0, (idle("n1"),), (), (first, second, third)),
        Snapshot(13.0, (down("n1"),), (), (second, third)),
        restart_before=frozenset({2}),
    )
    with sessions.begin() as session:
        rows = session.execute(select(ForegroundStart).order_by(ForegroundStart.started_at)).scalars().all()
    assert [(row.job, row.started_at, row.num_nodes, row.delay_s) for row in rows] == [
        ("j0", 5.0, 1, 0.5),
        ("j1", 6.0, 1, 0.5),
        ("j2", 7.0, 1, 0.5),
    ]


@pytest.fixture(scope="module")
def shared(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """One database for all examples."""
    file = shutil.copy(empty_database, tmp_path_factory.mktemp("observing") / "oakum.db")
    engine = open_engine(f"sqlite:///{file}")
    yield open_sessions(engine)
    engine.dispose()


NODES = st.sampled_from(NAMES).flatmap(
    lambda name: st.sampled_from([idle(name), busy(name, "j1"), busy(name, "j2"), down(name)])
)
CLUSTERS = st.lists(NODES, max_size=len(NAMES), unique_by=lambda node: node.name)


@given(
    clusters=st.lists(CLUSTERS, min_size=1, max_size=8),
    restart_before=st.frozensets(st.integers(0, 7), max_size=2),
)
@settings(max_examples=scaled(60), deadline=None)
def test_intervals_say_what_the_snapshots_said(
    shared: Sessions, clusters: list[list[Node]], restart_before: frozenset[int]
) -> None:
    """A node's follow each other without overlap, none goes on as the one before, and the open one is now."""
    with shared.begin() as session:
        session.execute(delete(NodeInterval))
        session.execute(delete(SnapshotRecord))
    snapshots = [Snapshot(10.0 * (1 + i), tuple(nodes), ()) for i, nodes in enumerate(clusters)]
    observe(shared, *snapshots, restart_before=restart_before)
    found = intervals(shared)
    for stretches in found.values():
        for before, after in itertools.pairwise(stretches):
            assert before[3] is not None
            assert before[2] < before[3] <= after[2]
            assert before[:2] != after[:2] or before[3] < after[2]
    for snapshot in snapshots:
        seen = {
            name: stretch[:2]
            for name, stretches in found.items()
            for stretch in stretches
            if stretch[2] <= snapshot.taken_at and (stretch[3] is None or snapshot.taken_at < stretch[3])
        }
        assert seen == {node.name: (node.state, node.job) for node in snapshot.nodes}
    still_open = {name for name, stretches in found.items() if stretches[-1][3] is None}
    assert still_open == {node.name for node in snapshots[-1].nodes}
