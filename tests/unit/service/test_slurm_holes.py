"""Which nodes of a Slurm cluster are holes, who has the others, and which jobs are ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from cells import each
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.schedulers.slurm.arrays import JobArray
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.reading.state import (
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmState,
    Unread,
)
from oakum_service.schedulers.slurm.snapshot import OakumInstance, own_tasks, to_snapshot
from oakum_service.states import NodeState

INSTANCE = OakumInstance("oakum", "ab12")
NOW = 1000.0
POLICY = HolePolicy("fill")


def node(name: str, *states: str, gres: str = "", features: tuple[str, ...] = ()) -> SlurmNode:
    return SlurmNode(name, f"{name}.cluster", states or ("IDLE",), ("main", "fill"), gres, features)


def job(number: int, *states: str, nodes: str = "", **fields: object) -> SlurmJob:
    values = {"name": f"job{number}", "user": "alice", "partition": "main"} | fields
    return SlurmJob(id=number, states=states or ("RUNNING",), nodes=nodes, **values)


def own(number: int, fragment: str, *states: str, nodes: str = "", **fields: object) -> SlurmJob:
    ours = {"name": INSTANCE.job_name(fragment), "user": "oakum", "partition": "fill"}
    return job(number, *states, nodes=nodes, **ours, **fields)


def snapshot_of(
    state: SlurmState, policy: HolePolicy = POLICY, arrays: Mapping[str, JobArray] = MappingProxyType({})
) -> Snapshot:
    return to_snapshot(state, INSTANCE, policy, own_tasks(state.jobs, INSTANCE, arrays))


def states_of(
    nodes: list[SlurmNode],
    jobs: list[SlurmJob] | None = None,
    policy: HolePolicy = POLICY,
    reservations: tuple[SlurmReservation, ...] = (),
) -> dict[str, NodeState]:
    state = SlurmState(NOW, "22.05.8", tuple(nodes), tuple(jobs or ()), reservations)
    return {found.name: found.state for found in snapshot_of(state, policy).nodes}


@each(
    ("states", "expected"),
    [
        (("IDLE",), NodeState.HOLE),
        (("IDLE", "CLOUD"), NodeState.HOLE),
        (("ALLOCATED",), NodeState.FOREGROUND),
        (("MIXED",), NodeState.FOREGROUND),
        (("IDLE", "DRAIN"), NodeState.UNAVAILABLE),
        (("IDLE", "CLOUD", "POWERED_DOWN"), NodeState.UNAVAILABLE),
        (("IDLE", "POWERING_UP"), NodeState.UNAVAILABLE),
        (("IDLE", "MAINTENANCE", "RESERVED"), NodeState.UNAVAILABLE),
        (("IDLE", "COMPLETING"), NodeState.UNAVAILABLE),
        (("IDLE", "POWERED_DOWN"), NodeState.UNAVAILABLE),
        (("IDLE", "NOT_RESPONDING"), NodeState.UNAVAILABLE),
        (("IDLE", "A_FLAG_OF_A_LATER_VERSION"), NodeState.UNAVAILABLE),
        (("DOWN",), NodeState.UNAVAILABLE),
        (("FUTURE",), NodeState.UNAVAILABLE),
        (("UNKNOWN",), NodeState.UNAVAILABLE),
    ],
)
def test_a_node_is_a_hole_only_where_nothing_speaks_against_it(
    states: tuple[str, ...], expected: NodeState
) -> None:
    assert states_of([node("n1", *states)]) == {"n1": expected}


@each(
    ("flags", "jobs", "expected"),
    [
        (["COMPLETING"], [own(1, "f1", "RUNNING", "COMPLETING", nodes="n1")], True),
        (["COMPLETING"], [], True),
        (["COMPLETING"], [job(1, "RUNNING", "COMPLETING", nodes="n1")], False),
        (["COMPLETING", "DRAIN"], [own(1, "f1", "RUNNING", "COMPLETING", nodes="n1")], False),
        ([], [], False),
    ],
)
def test_a_node_is_being_cleared_until_the_job_that_left_it_to_nobody_has_completed(
    flags: list[str], jobs: list[SlurmJob], expected: bool
) -> None:
    state = SlurmState(NOW, "22.05.8", (node("n1", "IDLE", *flags),), tuple(jobs))
    assert [one.clearing for one in snapshot_of(state).nodes] == [expected]


@each(
    ("jobs", "expected"),
    [
        ([own(1, "f1", "COMPLETED", nodes="n1", end_at=NOW - 1)], NodeState.UNAVAILABLE),
        ([own(1, "f1", "COMPLETED", nodes="n1", end_at=NOW - 9)], NodeState.FOREGROUND),
        ([job(1, "COMPLETED", nodes="n1", end_at=NOW - 1)], NodeState.FOREGROUND),
        ([own(1, "f1", "COMPLETED", nodes="n2", end_at=NOW - 1)], NodeState.FOREGROUND),
    ],
)
def test_a_node_read_before_our_job_had_ended_goes_to_no_foreground_job(
    jobs: list[SlurmJob], expected: NodeState
) -> None:
    """Nodes are read first, and may still show a job that the jobs no longer show."""
    state = SlurmState(NOW, "22.05.8", (node("n1", "ALLOCATED"),), tuple(jobs))
    [seen] = snapshot_of(state).nodes
    assert (seen.state, seen.clearing) == (expected, expected is NodeState.UNAVAILABLE)


def test_a_node_that_is_kept_for_a_job_is_not_cleared_for_nobody() -> None:
    state = SlurmState(NOW, "22.05.8", (node("n1", "IDLE", "COMPLETING"),), ())
    kept = to_snapshot(state, INSTANCE, POLICY, {}, wanted={"n1": job(9, "PENDING")}).nodes[0]
    assert (kept.state, kept.job, kept.clearing) == (NodeState.UNAVAILABLE, "9", False)


def test_nodes_of_other_partitions_are_not_shown() -> None:
    elsewhere = SlurmNode("n2", "n2", ("IDLE",), ("main",))
    assert states_of([node("n1"), elsewhere]) == {"n1": NodeState.HOLE}


def test_a_job_of_ours_leaves_its_node_a_hole_and_any_other_takes_it() -> None:
    nodes = [node(f"n{number}", "ALLOCATED") for number in (1, 2, 3)]
    jobs = [
        own(1, "f1", nodes="n1"),
        job(2, nodes="n2"),
        job(3, nodes="n3", name=INSTANCE.job_name("f3"), user="mallory"),
    ]
    assert states_of(nodes, jobs) == {
        "n1": NodeState.HOLE,
        "n2": NodeState.FOREGROUND,
        "n3": NodeState.FOREGROUND,
    }


def test_a_node_that_another_job_shares_with_ours_is_not_ours() -> None:
    assert states_of([node("n1", "MIXED")], [own(1, "f1", nodes="n1"), job(2, nodes="n1")]) == {
        "n1": NodeState.FOREGROUND
    }


def test_jobs_of_another_oakum_under_the_same_account_are_foreground_jobs() -> None:
    other = OakumInstance("oakum", "cd34").job_name("f1")
    jobs = [job(1, nodes="n1", name=other, user="oakum", partition="fill")]
    state = SlurmState(NOW, "22.05.8", (node("n1", "ALLOCATED"),), tuple(jobs))
    snapshot = snapshot_of(state)
    assert (snapshot.nodes[0].state, snapshot.nodes[0].job, snapshot.own_jobs) == (NodeState.FOREGROUND, "1", ())


def test_our_jobs_are_known_until_they_complete() -> None:
    jobs = [
        own(1, "f1", nodes="n1"),
        own(2, "f2", "PENDING"),
        own(3, "f3", "RUNNING", "COMPLETING", nodes="n3"),
        own(4, "f4", "PREEMPTED", "COMPLETING", nodes="n4"),
        own(5, "f5", "CONFIGURING", nodes="n5"),
    ]
    state = SlurmState(NOW, "22.05.8", (), tuple(jobs))
    assert snapshot_of(state).own_jobs == (
        OwnJob("1", "f1", "n1"),
        OwnJob("2", "f2", None),
        OwnJob("5", "f5", "n5"),
    )


def test_our_jobs_tell_when_slurm_will_signal_that_their_time_is_over() -> None:
    ends = {"f1": NOW + 600, "f2": NOW + 600, "f3": math.inf}
    jobs = [
        msgspec.structs.replace(own(number, fragment, *states, nodes=nodes), end_at=ends[fragment])
        for number, fragment, states, nodes in [
            (1, "f1", (), "n1"),
            (2, "f2", ("PENDING",), ""),
            (3, "f3", (), "n3"),
        ]
    ]
    state = SlurmState(NOW, "22.05.8", (), tuple(jobs))
    seen = to_snapshot(state, INSTANCE, POLICY, own_tasks(state.jobs, INSTANCE), warning_s=30.0)
    assert {job.fragment: job.leaves_at for job in seen.own_jobs} == {"f1": NOW + 570, "f2": None, "f3": None}


def task(number: int, index: int | None, *states: str, nodes: str = "") -> SlurmJob:
    fields = {"name": INSTANCE.job_name("batch"), "user": "oakum", "array_job_id": 70, "array_task_id": index}
    return job(number, *states, nodes=nodes, **fields)


def own_jobs_of(*jobs: SlurmJob, **arrays: JobArray) -> set[OwnJob]:
    state = SlurmState(NOW, "22.05.8", (), jobs)
    return set(snapshot_of(state, arrays=arrays).own_jobs)


def test_a_task_of_an_array_stands_for_the_fragment_of_its_index() -> None:
    jobs = [task(71, 0, nodes="n2"), task(70, 1, nodes="n1"), own(9, "f9", nodes="n3")]
    assert own_jobs_of(*jobs, batch=JobArray(("f0", "f1"))) == {
        OwnJob("70_0", "f0", "n2"),
        OwnJob("70_1", "f1", "n1"),
        OwnJob("9", "f9", "n3"),
    }


def test_an_array_that_waits_stands_for_the_fragments_that_no_other_record_has_shown() -> None:
    array = JobArray(("f0", "f1", "f2", "f3"), begun=frozenset({0, 1}))  # of which the first has ended
    assert own_jobs_of(task(71, 1, nodes="n2"), task(70, None, "PENDING"), batch=array) == {
        OwnJob("70_1", "f1", "n2"),
        OwnJob("70_2", "f2", None),
        OwnJob("70_3", "f3", None),
    }


def test_a_task_that_runs_is_not_waiting_though_it_was_never_seen_before() -> None:
    jobs = task(71, 1, nodes="n2"), task(70, None, "PENDING")
    expected = {OwnJob("70_0", "f0", None), OwnJob("70_1", "f1", "n2")}
    assert own_jobs_of(*jobs, batch=JobArray(("f0", "f1"))) == expected
    assert own_jobs_of(*reversed(jobs), batch=JobArray(("f0", "f1"))) == expected


def test_the_last_task_that_waits_is_shown_by_its_index() -> None:
    array = JobArray(("f0", "f1"), begun=frozenset({0, 1}))
    assert own_jobs_of(task(70, 1, "PENDING"), batch=array) == {OwnJob("70_1", "f1", None)}


def test_tasks_beyond_what_an_array_is_known_to_hold_are_nobodys() -> None:
    assert own_jobs_of(task(72, 2, nodes="n2"), task(70, 0, nodes="n1"), batch=JobArray(("f0",))) == {
        OwnJob("70_0", "f0", "n1"),
        OwnJob("70_2", "batch_2", "n2"),
    }
    assert own_jobs_of(task(70, None, "PENDING")) == {OwnJob("70", "batch", None)}


def test_the_nodes_of_an_arrays_tasks_are_holes() -> None:
    nodes = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")]
    assert states_of(nodes, [task(71, 0, nodes="n1"), job(2, nodes="n2")]) == {
        "n1": NodeState.HOLE,
        "n2": NodeState.FOREGROUND,
    }


def test_a_pending_foreground_job_announces_itself_on_its_nodes() -> None:
    waiting = job(7, "PENDING", planned_nodes="n[1-2]", start_at=NOW + 300)
    later = job(8, "PENDING", planned_nodes="n2", start_at=NOW + 100)
    state = SlurmState(NOW, "22.05.8", tuple(node(f"n{i}") for i in (1, 2, 3)), (waiting, later))
    announced = {n.name: n.announced_at for n in snapshot_of(state).nodes}
    assert announced == {"n1": NOW + 300, "n2": NOW + 100, "n3": None}


def test_what_begins_first_on_a_node_announces_itself_in_whatever_order_slurm_tells_of_it() -> None:
    jobs = [job(7 + i, "PENDING", planned_nodes="n1", start_at=NOW + 60 * i) for i in (1, 2)]
    coming = SlurmReservation("maintenance", "n1", NOW + 600, NOW + 7200, ("MAINT",))
    for told in (jobs, jobs[::-1]):
        state = SlurmState(NOW, "22.05.8", (node("n1"),), tuple(told), (coming,))
        assert [n.announced_at for n in snapshot_of(state).nodes] == [NOW + 60]


def test_a_reservation_announces_itself_until_it_is_over() -> None:
    coming = SlurmReservation("maintenance", "n1", NOW + 600, NOW + 7200, ("MAINT",))
    over = SlurmReservation("training", "n2", NOW - 600, NOW - 60)
    state = SlurmState(NOW, "22.05.8", (node("n1"), node("n2")), (), (coming, over))
    announced = {n.name: n.announced_at for n in snapshot_of(state).nodes}
    assert announced == {"n1": NOW + 600, "n2": None}


@each(
    ("start_at", "policy", "expected"),
    [
        (NOW + 300, POLICY, NodeState.HOLE),
        (NOW + 300, HolePolicy("fill", planned_are_holes=False), NodeState.UNAVAILABLE),
        (NOW - 5, POLICY, NodeState.UNAVAILABLE),
        (None, POLICY, NodeState.UNAVAILABLE),
    ],
    ids=["known", "by policy", "due", "unknown"],
)
def test_a_planned_node_is_a_hole_until_a_start_that_is_known(
    start_at: float | None, policy: HolePolicy, expected: NodeState
) -> None:
    waiting = job(7, "PENDING", planned_nodes="n1", start_at=start_at)
    assert states_of([node("n1", "IDLE", "PLANNED")], [waiting], policy) == {"n1": expected}


def test_types_follow_gres_and_the_features_that_count() -> None:
    nodes = (
        node("n1"),
        node("n2", gres="gpu:h100:4(S:0-1)"),
        node("n3", gres="gpu:h100:4", features=("ib", "rack1")),
        node("n4", gres="gpu:2,craynetwork:1"),
    )
    state = SlurmState(NOW, "22.05.8", nodes, ())
    snapshot = snapshot_of(state, HolePolicy("fill", type_features=("ib",)))
    assert [n.node_type for n in snapshot.nodes] == ["cpu", "h100:4", "h100:4+ib", "2,craynetwork:1"]


def test_the_features_that_specs_may_ask_for_are_shown() -> None:
    nodes = node("n1", features=("rack1", "ib")), node("n2", features=("rack2",))
    snapshot = snapshot_of(
        SlurmState(NOW, "22.05.8", nodes, ()), HolePolicy("fill", asked_features=("ib", "roce"))
    )
    assert [n.features for n in snapshot.nodes] == [("ib",), ()]


def reserved(name: str, nodes: str, *flags: str, start_at: float = NOW - 10, end_at: float = NOW + 600) -> Any:
    return SlurmReservation(name, nodes, start_at, end_at, flags)


@each(
    ("states", "reservations", "expected"),
    [
        (("RESERVED",), [reserved("ours", "n1")], (NodeState.HOLE, "ours", NOW + 600, "")),
        (("MAINT",), [reserved("ours", "n1", "MAINT")], (NodeState.HOLE, "ours", NOW + 600, "")),
        (("RESERVED", "MAINT"), [reserved("ours", "n1")], (NodeState.UNAVAILABLE, "ours", None, "MAINT")),
        (("RESERVED",), [reserved("theirs", "n1")], (NodeState.UNAVAILABLE, "", None, "RESERVED")),
        (
            ("RESERVED",),
            [reserved("ours", "n[1-2]"), reserved("theirs", "n1")],
            (NodeState.UNAVAILABLE, "", None, "RESERVED"),
        ),
        ((), [reserved("ours", "n1", start_at=NOW + 50)], (NodeState.HOLE, "", NOW + 50, "")),
        ((), [reserved("ours", "n1", end_at=NOW)], (NodeState.HOLE, "", None, "")),
        (("RESERVED",), [reserved("ours", "n1", end_at=math.inf)], (NodeState.HOLE, "ours", None, "")),
    ],
)
def test_a_reservation_that_specs_may_ask_for_is_open_to_them_while_it_lasts(
    states: tuple[str, ...], reservations: list[SlurmReservation], expected: tuple[Any, ...]
) -> None:
    state = SlurmState(NOW, "22.05.8", (node("n1", "IDLE", *states),), (), tuple(reservations))
    (found,) = snapshot_of(state, HolePolicy("fill", reservations=("ours",))).nodes
    assert (found.state, found.reservation, found.announced_at, found.wanted) == expected


def test_a_node_list_that_cannot_be_read_is_an_error_and_no_empty_cluster() -> None:
    with pytest.raises(SchedulerError, match=r"'n\[1-'"):
        states_of([node("n1")], [job(1, nodes="n[1-")])


@each("flag", ["POWERED_DOWN", "POWERING_UP"])
def test_nodes_that_slurm_starts_are_holes_where_the_admin_says_so(flag: str) -> None:
    policy = HolePolicy("fill", powered_down_are_holes=True)
    nodes = [node("n1", "IDLE", flag), node("n2", "IDLE", flag, "DRAIN"), node("n3", "IDLE", "POWERING_DOWN")]
    assert list(states_of(nodes, policy=policy).values()) == [
        NodeState.HOLE,
        NodeState.UNAVAILABLE,
        NodeState.UNAVAILABLE,
    ]


def test_what_could_not_be_understood_costs_its_nodes_and_no_others() -> None:
    jobs = (job(1, "UNKNOWN", nodes="n1"), job(2, "SOMETHING_NEW", nodes="n2"))
    unread = (Unread("reservation", "r", "why", "n3"), Unread("reservation", "s", "why"))
    nodes = (node("n1"), node("n2"), node("n3"), node("n4"), node("n5", "UNKNOWN"))
    snapshot = snapshot_of(SlurmState(NOW, "22.05.8", nodes, jobs, unread=unread))
    assert [found.state for found in snapshot.nodes] == [
        NodeState.FOREGROUND,
        NodeState.FOREGROUND,
        NodeState.UNAVAILABLE,
        NodeState.HOLE,
        NodeState.UNAVAILABLE,
    ]


def test_a_job_of_ours_of_an_unknown_state_is_there() -> None:
    assert own_tasks([own(1, "f1", "SOMETHING_NEW", nodes="n1")], INSTANCE).keys() == {"f1"}
