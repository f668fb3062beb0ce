"""How a plan's launches are handed to the scheduler, and on which nodes they turn out to be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from api_under_test import SPEC, report
from oakum_service.config import Settings
from oakum_service.control.execute import Executor
from oakum_service.control.observe import Observation, end_fragments, place_fragments
from oakum_service.control.report_pace import report_interval_s, silence_s
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.grant import Grant
from oakum_service.documents.node import Node
from oakum_service.errors import SchedulerError
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.orders import hold
from oakum_service.schedulers.port import ArrayScheduler, OwnJob, Snapshot
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.spec import TrainerSpec
from plan_records import plan_record


class OneByOne:
    """A scheduler without job arrays."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        """The nodes of each submission."""

    def submit(self, config: FragmentConfig) -> str:
        self.groups.append([config.node])
        return f"job on {config.node}"


class InGroups(OneByOne):
    """A scheduler that takes three or four fragments as one array."""

    array_from = 3
    array_most = 4
    refused = ""
    """A node that is wanted soon."""
    error: SchedulerError | None = None

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        if self.error is not None:
            raise self.error
        self.groups.append([config.node for config in configs])
        return {
            config.fragment: f"task {index}" for index, config in enumerate(configs) if config.node != self.refused
        }


def a_moment_ago() -> float:
    """When a fragment was launched. From another year on, each period of the ledger would be charged."""
    return time.time() - 50.0


def holes(*names: str) -> tuple[Node, ...]:
    return tuple(Node(name, NodeState.HOLE, f"address of {name}") for name in names)


def launch(
    sessions: Sessions,
    folder: Path,
    scheduler: OneByOne,
    grants: dict[str, list[str]],
    snapshot: Snapshot | None = None,
) -> dict[str, str]:
    """Carry out a plan, by default on nodes that are all idle; returns node -> state of each fragment."""
    lease = LeaseHolder(sessions, alone=True)
    assert lease.acquire()
    with sessions.begin() as session:
        for name in grants:
            spec = TrainerSpec(name=name, entrypoint="a:b", global_batch=8, epochs=1)
            session.add(Trainer(id=name, name=name, spec=spec, state="waiting", submitted_at=0.0))
        plan = plan_record({name: Grant(tuple(nodes), "", "") for name, nodes in grants.items()})
        session.add(plan)
        session.flush()
        plan_id = plan.id
    configs = FragmentConfigs(Settings(data_dir=folder), b"secret", "http://service.test", 10.0)
    executor = Executor(lease, scheduler, configs)  # type: ignore[arg-type]
    nodes = holes(*(node for granted in grants.values() for node in granted))
    executor.carry_out(plan_id, Observation(1, snapshot or Snapshot(time.time(), nodes, ())))
    assert not executor.submissions.under_way()
    with sessions.begin() as session:
        return dict(session.execute(select(Fragment.node, Fragment.state)).all())


def test_many_fragments_of_one_trainer_are_submitted_at_once_and_few_one_by_one(
    sessions: Sessions, tmp_path: Path
) -> None:
    scheduler = InGroups()
    assert isinstance(scheduler, ArrayScheduler)
    states = launch(sessions, tmp_path, scheduler, {"many": ["n1", "n2", "n3"], "few": ["n4", "n5"]})
    assert sorted(scheduler.groups) == [["n1", "n2", "n3"], ["n4"], ["n5"]]
    assert states == dict.fromkeys(["n1", "n2", "n3", "n4", "n5"], FragmentState.LIVE)


def test_more_than_one_array_can_hold_are_several(sessions: Sessions, tmp_path: Path) -> None:
    scheduler = InGroups()
    launch(sessions, tmp_path, scheduler, {"many": [f"n{number}" for number in range(1, 10)]})
    assert sorted(scheduler.groups) == [["n1", "n2", "n3", "n4"], ["n5", "n6", "n7", "n8"], ["n9"]]


def test_a_scheduler_without_arrays_gets_them_one_by_one(sessions: Sessions, tmp_path: Path) -> None:
    scheduler = OneByOne()
    launch(sessions, tmp_path, scheduler, {"many": ["n1", "n2", "n3"]})
    assert sorted(scheduler.groups) == [["n1"], ["n2"], ["n3"]]


def test_what_a_group_leaves_out_never_started(sessions: Sessions, tmp_path: Path) -> None:
    scheduler = InGroups()
    scheduler.refused = "n2"
    states = launch(sessions, tmp_path, scheduler, {"many": ["n1", "n2", "n3"]})
    assert states == {"n1": FragmentState.LIVE, "n2": FragmentState.ENDED, "n3": FragmentState.LIVE}


def test_a_group_that_is_refused_never_started(sessions: Sessions, tmp_path: Path) -> None:
    scheduler = InGroups()
    scheduler.error = SchedulerError("sbatch: no")
    states = launch(sessions, tmp_path, scheduler, {"many": ["n1", "n2", "n3"]})
    assert states == dict.fromkeys(["n1", "n2", "n3"], FragmentState.ENDED)


def place(sessions: Sessions, launched: dict[str, str], running: dict[str, str | None]) -> dict[str, str]:
    """Fragment -> its node after a look at the jobs, of fragments of the trainer that begins their names."""
    with sessions.begin() as session:
        for trainer in {fragment[0] for fragment in launched}:
            session.add(Trainer(id=trainer, name=trainer, spec=SPEC, state="running", submitted_at=0.0))
        session.flush()
        for fragment, node in launched.items():
            session.add(
                Fragment(
                    id=fragment,
                    trainer_id=fragment[0],
                    node=node,
                    state=FragmentState.LIVE,
                    launched_at=a_moment_ago(),
                )
            )
        session.flush()
        jobs = tuple(OwnJob(f"job of {fragment}", fragment, node) for fragment, node in running.items())
        place_fragments(session, Snapshot(1.0, (), jobs))
        return dict(session.execute(select(Fragment.id, Fragment.node)).all())


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ({"a1": "n1", "a2": "n2", "a3": "n3"}, {"a1": "n1", "a2": "n2", "a3": "n3"}),
        ({"a1": "n3", "a2": "n1", "a3": "n2"}, {"a1": "n3", "a2": "n1", "a3": "n2"}),
        # Each node goes on standing for one of them.
        ({"a1": "n2", "a2": None, "a3": "n3"}, {"a1": "n2", "a2": "n1", "a3": "n3"}),
        ({"a1": "n2", "a2": "n3", "a3": None}, {"a1": "n2", "a2": "n3", "a3": "n1"}),
        ({"a1": "n3", "a2": None, "a3": None}, {"a1": "n3", "a2": "n2", "a3": "n1"}),
        ({"a1": "n9"}, {"a1": "n9", "a2": "n2", "a3": "n3"}),
    ],
)
def test_fragments_are_where_their_jobs_are(
    sessions: Sessions, running: dict[str, str | None], expected: dict[str, str]
) -> None:
    assert place(sessions, {"a1": "n1", "a2": "n2", "a3": "n3"}, running) == expected


def test_another_trainers_fragment_keeps_the_node_that_it_was_launched_for(sessions: Sessions) -> None:
    found = place(sessions, {"a1": "n1", "a2": "n2", "b1": "n3"}, {"a1": "n3", "a2": "n2", "b1": None})
    assert found == {"a1": "n3", "a2": "n2", "b1": "n3"}


def test_a_task_that_got_no_node_is_no_crash_of_its_trainer(sessions: Sessions) -> None:
    """Another job has taken the one node that none of the array's other tasks got."""
    place(sessions, {"a1": "n1", "a2": "n2"}, {"a1": "n2", "a2": None})
    nodes = (Node("n1", NodeState.FOREGROUND, "", job="9"), *holes("n2"))
    with sessions.begin() as session:
        end_fragments(session, Snapshot(time.time(), nodes, (OwnJob("71_0", "a1", "n2"),)), 10.0, now=time.time())
        assert session.get_one(Fragment, "a2").cause == "preempted"
        assert session.get_one(Trainer, "a").crashes == 0


def test_what_is_held_meanwhile_is_not_submitted_and_counts_for_nothing(
    sessions: Sessions, tmp_path: Path
) -> None:
    class HoldingFirst(OneByOne):
        """A scheduler during whose first submission an admin sets a hold."""

        def submit(self, config: FragmentConfig) -> str:
            if not self.groups:
                with sessions.begin() as session:
                    hold.begin(session, "maintenance", "anna")
            return super().submit(config)

    scheduler = HoldingFirst()
    states = launch(sessions, tmp_path, scheduler, {"held": ["n1", "n2", "n3"]})
    assert scheduler.groups == [["n1"]]
    assert sorted(states.values()) == [FragmentState.ENDED, FragmentState.ENDED, FragmentState.LIVE]


def test_nothing_is_launched_on_a_plan_that_a_hold_came_before(sessions: Sessions, tmp_path: Path) -> None:
    with sessions.begin() as session:
        hold.begin(session, "maintenance", "anna")
    scheduler = OneByOne()
    assert launch(sessions, tmp_path, scheduler, {"held": ["n1"]}) == {}
    assert scheduler.groups == []


def tell_signal(session: Session, at: float) -> None:
    """Have a fragment of another trainer report that the scheduler has asked for its node."""
    session.add(Trainer(id="other", name="other", spec=SPEC, state="running", submitted_at=0.0))
    session.flush()
    session.add(Fragment(id="o", trainer_id="other", node="n9", state=FragmentState.LIVE, launched_at=0.0))
    session.flush()
    session.add(Report(fragment_id="o", sequence=1, received_at=at, body=report(signalled_at=at)))


@pytest.mark.parametrize(("later_s", "expected"), [(60.0, []), (-60.0, [["n1"]])], ids=["since", "before"])
def test_nothing_is_launched_on_a_picture_that_is_older_than_the_scheduler_s_word_to_go(
    sessions: Sessions, tmp_path: Path, later_s: float, expected: list[list[str]]
) -> None:
    """The job that it takes the fragment's node for may count on those that were idle as well."""
    with sessions.begin() as session:
        tell_signal(session, time.time() + later_s)
    scheduler = OneByOne()
    states = launch(sessions, tmp_path, scheduler, {"waiting": ["n1"]})
    assert (scheduler.groups, "n1" in states) == (expected, bool(expected))


def test_what_has_not_been_handed_in_when_a_fragment_is_told_to_go_never_starts(
    sessions: Sessions, tmp_path: Path
) -> None:
    class TakenMeanwhile(OneByOne):
        def submit(self, config: FragmentConfig) -> str:
            if not self.groups:
                with sessions.begin() as session:
                    tell_signal(session, time.time())
            return super().submit(config)

    scheduler = TakenMeanwhile()
    states = launch(sessions, tmp_path, scheduler, {"waiting": ["n1", "n2"]})
    assert scheduler.groups == [["n1"]]
    assert states == {"n1": FragmentState.LIVE, "n2": FragmentState.ENDED, "n9": FragmentState.LIVE}


@pytest.mark.parametrize(
    ("handing_over", "granted_to", "is_released"),
    [({"n1"}, "other", False), ({"n1"}, None, False), ({"n2"}, "other", True), ({"n2"}, None, True)],
    ids=["its node", "its node, for nobody", "others", "others, for nobody"],
)
def test_no_node_is_left_on_which_nothing_may_begin_yet(
    sessions: Sessions, tmp_path: Path, handing_over: set[str], granted_to: str | None, is_released: bool
) -> None:
    """While the scheduler hands nodes over, a node that a fragment left would stand idle, and the next plan, which
    could not count on it, would take another one."""
    with sessions.begin() as session:
        session.add(Trainer(id="light", name="light", spec=SPEC, state="running", submitted_at=0.0))
        session.flush()
        fragment = Fragment(
            id="f", trainer_id="light", node="n1:0+1", state=FragmentState.LIVE, launched_at=a_moment_ago()
        )
        session.add(fragment)
    nodes = (*holes("n1:0", "n1:1"), Node("n1:2", NodeState.UNAVAILABLE, "n1", job="9"))
    snapshot = Snapshot(time.time(), nodes, (OwnJob("1", "f", "n1:0+1"),), handing_over=frozenset(handing_over))
    grants = {} if granted_to is None else {granted_to: ["n1:0", "n1:1"]}
    launch(sessions, tmp_path, OneByOne(), grants, snapshot)
    with sessions.begin() as session:
        assert session.get_one(Fragment, "f").released is is_released


def add_fragments(sessions: Sessions, state: FragmentState, count: int, **fields: object) -> list[str]:
    names = [f"f{number}" for number in range(count)]
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="t", spec=SPEC, state="waiting", submitted_at=0.0))
        session.flush()
        for name in names:
            values = {"trainer_id": "t", "node": f"on {name}", "launched_at": a_moment_ago()} | fields
            session.add(Fragment(id=name, state=state, **values))
    return names


def crashes(sessions: Sessions) -> int:
    with sessions.begin() as session:
        return session.get_one(Trainer, "t").crashes


@pytest.mark.parametrize(
    "state", [FragmentState.INTENDED, FragmentState.LIVE], ids=["never submitted", "withdrawn"]
)
def test_jobs_that_never_began_are_no_crashes_of_their_trainer(sessions: Sessions, state: FragmentState) -> None:
    names = add_fragments(sessions, state, 8)
    nodes = holes(*(f"on {name}" for name in names))
    withdrawn = frozenset(names) if state is FragmentState.LIVE else frozenset()
    with sessions.begin() as session:
        end_fragments(session, Snapshot(time.time(), nodes, (), withdrawn=withdrawn), 10.0, now=time.time())
    with sessions.begin() as session:
        assert set(session.execute(select(Fragment.cause)).scalars()) == {"never started"}
    assert crashes(sessions) == 0


def test_jobs_that_began_and_never_said_a_word_have_ended_no_attempt(sessions: Sessions) -> None:
    names = add_fragments(sessions, FragmentState.LIVE, 2)
    with sessions.begin() as session:
        end_fragments(
            session, Snapshot(time.time(), holes(*(f"on {name}" for name in names)), ()), 10.0, now=time.time()
        )
    assert crashes(sessions) == 0


def test_a_job_that_the_scheduler_says_it_has_taken_is_no_crash(sessions: Sessions) -> None:
    """The fragment may have had no service to report to, and its node may be idle again."""
    names = add_fragments(sessions, FragmentState.LIVE, 2)
    snapshot = Snapshot(time.time(), holes(*(f"on {name}" for name in names)), (), preempted=frozenset(names[:1]))
    with sessions.begin() as session:
        end_fragments(session, snapshot, 10.0, now=time.time())
        assert [session.get_one(Fragment, name).cause for name in names] == ["preempted", "never reported"]
    assert crashes(sessions) == 0


def test_a_job_that_ended_for_lack_of_memory_is_one_and_says_what_to_change(sessions: Sessions) -> None:
    [name] = add_fragments(sessions, FragmentState.LIVE, 1)
    snapshot = Snapshot(time.time(), holes(f"on {name}"), (), out_of_memory=frozenset({name}))
    with sessions.begin() as session:
        trainer = session.get_one(Trainer, "t")
        end_fragments(session, snapshot, 10.0, now=time.time())
        assert (trainer.crashes, trainer.crash and trainer.crash.most) == (1, 3)
        told = f"on {name} had no memory left for the fragment, says the scheduler, around step 0. To need less"
        assert trainer.message.startswith(told)


@pytest.mark.parametrize(
    ("body", "cancelled", "released"),
    [
        (None, True, False),
        (report(), False, True),
        (report(signalled=True, signalled_at=5.0), False, False),
    ],
    ids=["never heard of", "heard of", "knows"],
)
def test_a_fragment_that_has_not_heard_that_it_was_preempted_is_told_by_us(
    sessions: Sessions, body: dict[str, object] | None, cancelled: bool, released: bool
) -> None:
    """Slurm signals a job's steps once, and one that is being started has none; whoever knows may be saving."""
    now = time.time()
    [name] = add_fragments(sessions, FragmentState.LIVE, 1, launched_at=now - 1.0)
    snapshot = Snapshot(now, holes(f"on {name}"), (OwnJob("1", name, f"on {name}"),), preempted=frozenset({name}))
    with sessions.begin() as session:
        if body is not None:
            session.add(Report(fragment_id=name, sequence=1, received_at=now, body=body))
            session.flush()
        assert end_fragments(session, snapshot, 10.0, now=time.time()) == ([name] if cancelled else [])
        found = session.get_one(Fragment, name)
        assert (found.state, found.released) == (FragmentState.LIVE, released)
        assert session.get_one(Trainer, "t").revision == released


@pytest.mark.parametrize("heard", [True, False], ids=["heard of before", "never heard of"])
def test_jobs_that_ended_while_no_service_listened_are_no_crashes(sessions: Sessions, heard: bool) -> None:
    """Without a service, fragments leave by themselves, and their reports reach nobody."""
    now = time.time()
    names = add_fragments(sessions, FragmentState.LIVE, 8, launched_at=now - 100.0)
    snapshot = Snapshot(now, holes(*(f"on {name}" for name in names)), ())
    with sessions.begin() as session:
        for name in names if heard else ():
            body = FragmentReport(phase=Phase.TRAINING, sequence=1, pid=1, host="h").model_dump(mode="json")
            session.add(Report(fragment_id=name, sequence=1, received_at=now - 50.0, body=body))
        session.flush()
        end_fragments(session, snapshot, 10.0, now=time.time(), listening_since=now - 20.0)
        assert {session.get_one(Fragment, name).cause for name in names} == {"lost"}
    assert crashes(sessions) == 0


def test_nobody_falls_silent_by_this_process_being_stopped_in_a_turn(sessions: Sessions) -> None:
    began_at = time.time() - 60.0
    [name] = add_fragments(sessions, FragmentState.LIVE, 1, launched_at=began_at - 100.0)
    snapshot = Snapshot(began_at, holes(f"on {name}"), (OwnJob("1", name, f"on {name}"),))
    body = FragmentReport(phase=Phase.TRAINING, sequence=1, pid=1, host="h").model_dump(mode="json")
    with sessions.begin() as session:
        session.add(Report(fragment_id=name, sequence=1, received_at=began_at - 1.0, body=body))
        session.flush()
        assert end_fragments(session, snapshot, 10.0, now=began_at) == []
        assert end_fragments(session, snapshot, 10.0, now=time.time()) == [name]


@pytest.mark.parametrize(
    ("released", "age_s", "silent"),
    [(True, 20.0, True), (True, 5.0, False), (False, 20.0, False), (False, 1000.0, True)],
)
def test_who_has_never_been_heard_is_cancelled_once_unwanted_or_overdue(
    sessions: Sessions, released: bool, age_s: float, silent: bool
) -> None:
    now = time.time()
    [name] = add_fragments(sessions, FragmentState.LIVE, 1, launched_at=now - age_s, released=released)
    snapshot = Snapshot(now, holes(f"on {name}"), (OwnJob("1", name, f"on {name}"),))
    with sessions.begin() as session:
        found = end_fragments(session, snapshot, 10.0, now=time.time(), warm_up_timeout_s=900.0)
    assert found == ([name] if silent else [])


@pytest.mark.parametrize(
    ("silent", "all_of_them", "age_s", "lost"),
    [(8, 8, 20.0, 8), (9, 10, 20.0, 0), (9, 10, 70.0, 9), (20, 50, 20.0, 20), (26, 50, 20.0, 0)],
    ids=["few", "most of many at once", "most of many for long", "less than half", "more than half"],
)
def test_most_of_many_agents_that_fall_silent_at_once_are_not_lost_but_not_heard(
    sessions: Sessions, silent: int, all_of_them: int, age_s: float, lost: int
) -> None:
    now = time.time()
    names = add_fragments(sessions, FragmentState.LIVE, all_of_them, launched_at=now - 100.0)
    jobs = tuple(OwnJob(name, name, f"on {name}") for name in names)
    snapshot = Snapshot(now, holes(*(f"on {name}" for name in names)), jobs)
    body = FragmentReport(phase=Phase.TRAINING, sequence=1, pid=1, host="h").model_dump(mode="json")
    with sessions.begin() as session:
        for i, name in enumerate(names):
            received_at = now - (age_s if i < silent else 1.0)
            session.add(Report(fragment_id=name, sequence=1, received_at=received_at, body=body))
        session.flush()
        assert end_fragments(session, snapshot, 10.0, now=now) == names[:silent] * (lost > 0)


def test_agents_that_report_less_often_because_they_are_many_are_given_more_time() -> None:
    assert [report_interval_s(agents) for agents in (0, 1, 100, 500, 3000, 50_000)] == [1, 1, 1, 5, 30, 30]
    assert [silence_s(10.0, agents) for agents in (1, 100, 500, 50_000)] == [10, 10, 18, 68]
