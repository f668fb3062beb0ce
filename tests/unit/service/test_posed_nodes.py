"""Which nodes the solver is offered, in which order and to whom, from the database."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest

from cells import each
from oakum_service.config import Settings
from oakum_service.control.plan import pose
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.states import NodeState
from oakum_solver.problem import NodeGroup, Terms
from oakum_worker.protocol import Held, Phase
from posed_problems import NOW, granted, hold, holes, observe, posed, reason, submit


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def test_parts_of_nodes_in_use_are_taken_before_a_node_that_is_idle_as_a_whole(sessions: Sessions) -> None:
    submit(sessions, "digits", max_nodes=1)
    taken = Node("n2:0", NodeState.FOREGROUND, "10.0.0.1", job="7")
    problem = posed(sessions, (*holes("n1:0", "n1:1"), taken, *holes("n2:1")))
    assert [group.nodes for group in problem.groups] == [("n2:1", "n1:0", "n1:1")]


@pytest.mark.parametrize(
    ("left_s", "clearing", "offered"),
    [(5.0, True, ("n1", "n2")), (60.0, True, ("n1",)), (5.0, False, ("n1",))],
    ids=["being cleared", "not cleared for a minute", "taken"],
)
def test_a_node_that_a_fragment_has_just_left_counts_while_it_is_cleared(
    sessions: Sessions, left_s: float, clearing: bool, offered: tuple[str, ...]
) -> None:
    """A plan that moved it from one trainer to another would otherwise be followed by one that moves a second."""
    trainer = submit(sessions, "digits")
    with sessions.begin() as session:
        ended = Fragment(id="f", trainer_id=trainer, node="n2", state=FragmentState.ENDED, launched_at=NOW - 100)
        ended.ended_at = NOW - left_s
        session.add(ended)
    left = Node("n2", NodeState.UNAVAILABLE, "10.0.0.1", clearing=clearing)
    assert posed(sessions, (left, *holes("n1"))).groups[0].nodes == offered


def test_nodes_whose_holes_began_in_one_snapshot_are_a_cohort(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits")
    hold(sessions, trainer, "n1", "n3")
    busy = Node("n3", NodeState.FOREGROUND, "10.0.0.1", job="j1")
    snapshots = (*holes("n1", "n2"), busy), holes("n1", "n2", "n3")
    groups = posed(sessions, *snapshots, groups=True).groups
    early, late = f"idle since {NOW - 1.0}", f"idle since {NOW}"
    assert set(groups) == {
        NodeGroup(("n1",), trainer, 1800.0, "cpu", early),
        NodeGroup(("n2",), None, 1800.0, "cpu", early),
        NodeGroup(("n3",), trainer, 1800.0, "cpu", late),
    }
    assert posed(sessions, *snapshots, groups=True).terms == Terms(completion=False)


def test_nodes_that_are_announced_to_one_job_are_a_cohort(sessions: Sessions) -> None:
    submit(sessions, "digits")
    nodes = (*holes("n1"), *holes("n2", "n3", announced_at=NOW + 10.0))
    assert posed(sessions, nodes, groups=True).groups == (
        NodeGroup(("n1",), None, 1800.0, "cpu", f"idle since {NOW}"),
        NodeGroup(("n2", "n3"), None, 10.0, "cpu", f"wanted at {NOW + 10.0}"),
    )


def test_without_group_awareness_there_are_no_cohorts(sessions: Sessions) -> None:
    submit(sessions, "digits")
    assert posed(sessions).groups == (NodeGroup(("n1", "n2"), None, math.inf, "cpu"),)


def test_announced_starts_count_without_group_awareness(sessions: Sessions) -> None:
    submit(sessions, "digits")
    nodes = (*holes("n1"), *holes("n2", announced_at=NOW + 10.0))
    assert posed(sessions, nodes).groups == (
        NodeGroup(("n1",), None, math.inf, "cpu"),
        NodeGroup(("n2",), None, 10.0, "cpu"),
    )


def test_a_trainer_gets_no_node_of_a_type_it_has_no_curve_for(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits", curves_by_type={"gpu": [[1, 90]]})
    why, text = reason(sessions, trainer, holes("n1", "n2"))
    assert (why, text) == ("no_idle_node", "Waits: no idle node is of a type that makes it faster.")
    nodes = (*holes("n1", "n2"), *holes("g1", node_type="gpu"))
    reason(sessions, trainer, nodes)
    with sessions.begin() as session:
        plan = session.query(PlanRecord).order_by(PlanRecord.id.desc()).first()
        assert plan is not None
        assert plan.allocations[trainer].nodes == ("g1",)


def test_a_node_that_trains_is_kept_before_one_that_is_ready_and_that_before_one_that_warms_up(
    sessions: Sessions,
) -> None:
    hold(sessions, submit(sessions, "digits"), "warming", "ready", "trains")
    with sessions.begin() as session:
        session.get_one(Fragment, "ready").ready_at = NOW - 5
        session.get_one(Fragment, "trains").ready_at = session.get_one(Fragment, "trains").training_at = NOW - 50
    (group,) = posed(sessions, holes("warming", "ready", "trains")).groups
    assert group.nodes == ("trains", "ready", "warming")


@each(
    ("constraint", "nodes"),
    [
        (None, {"both", "ib", "none", "roce"}),
        ("ib", {"both", "ib"}),
        ("ib&roce", {"both"}),
        ("ib|roce", {"both", "ib", "roce"}),
        ("other", set()),
    ],
)
def test_a_constraint_limits_the_nodes_that_a_plan_gives(
    sessions: Sessions, constraint: str | None, nodes: set[str]
) -> None:
    features = {"both": ("ib", "roce"), "ib": ("ib",), "roce": ("roce",), "none": ()}
    found = tuple(node for name, given in features.items() for node in holes(name, features=given))
    trainer = submit(sessions, f"digits{len(nodes)}", slurm={"constraint": constraint})
    assert granted(sessions, found) == {f"digits{len(nodes)}": nodes}
    if not nodes:
        assert reason(sessions, trainer, found)[1] == "Waits: its Slurm options allow none of the idle nodes."
    with sessions.begin() as session:
        session.delete(session.get_one(Trainer, trainer))


def test_nodes_of_a_reservation_are_for_those_who_ask_for_it_and_they_get_no_others(sessions: Sessions) -> None:
    submit(sessions, "reserved", slurm={"reservation": "ours"})
    submit(sessions, "plain", weight=100.0)
    found = (*holes("n1", "n2", reservation="ours"), *holes("n3"))
    assert granted(sessions, found) == {"reserved": {"n1", "n2"}, "plain": {"n3"}}


def test_a_newcomer_that_no_node_is_open_to_keeps_no_other_from_being_tried(sessions: Sessions) -> None:
    submit(sessions, "bound", slurm={"constraint": "ib"}, min_nodes=2)
    submit(sessions, "new")
    assert {t.name: t.guaranteed for t in posed(sessions).trainers} == {"bound": False, "new": True}


def test_what_others_may_not_have_is_left_to_those_who_may(sessions: Sessions) -> None:
    submit(sessions, "bound", slurm={"constraint": "ib"}, max_nodes=2)
    submit(sessions, "free", max_nodes=2)
    found = (*holes("n1", "n2", features=("ib",)), *holes("n3", "n4"))
    assert granted(sessions, found) == {"bound": {"n1", "n2"}, "free": {"n3", "n4"}}


def test_a_node_that_is_left_out_of_the_trainer_s_size_is_given_up_before_those_that_train(
    sessions: Sessions,
) -> None:
    trainer = submit(sessions, "digits", sizes=[1, 2, 4, 8])
    hold(sessions, trainer, "warming", "left-out", "trains")
    with sessions.begin() as session:
        session.get_one(Trainer, trainer).members = ("trains",)
        for name in ("left-out", "trains"):
            fragment = session.get_one(Fragment, name)
            fragment.ready_at = fragment.training_at = NOW - 50
    (group,) = posed(sessions, holes("warming", "left-out", "trains")).groups
    assert group.nodes == ("trains", "left-out", "warming")


def test_nodes_are_posed_in_the_order_in_which_they_are_expected_to_stay(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits")
    hold(sessions, trainer, "n1", "n4")
    observed = dataclasses.replace(
        observe(sessions, holes("n1", "n2", "n3", "n4")), preference=("n4", "n3", "n2", "n1")
    )
    with sessions.begin() as session:
        groups = pose(session, observed, Settings(), time.time()).groups
    assert {group.owner: group.nodes for group in groups} == {trainer: ("n4", "n1"), None: ("n3", "n2")}


def test_a_hole_that_is_expected_to_end_before_the_shortest_start_up_is_offered_to_nobody(
    sessions: Sessions,
) -> None:
    submit(sessions, "digits", curve=[[1, 90]], durations={"start_up": [9.0]})
    wanted = holes("soon", announced_at=NOW + 8.0) + holes("later", announced_at=NOW + 10.0) + holes("free")
    problem = posed(sessions, wanted)
    assert ({node for group in problem.groups for node in group.nodes}, problem.withheld) == ({"later", "free"}, 1)


def test_holes_that_have_all_been_short_are_offered_to_nobody(sessions: Sessions) -> None:
    """Ten holes of a node have ended after 2 s each; its eleventh hole has just begun."""
    trainer = submit(sessions, "digits", curve=[[1, 90]])
    with sessions.begin() as session:
        for number in range(10):
            start_at = NOW - 100 + 10 * number
            session.add(NodeInterval(node="n1", state=NodeState.HOLE, start_at=start_at, end_at=start_at + 2.0))
    told = reason(sessions, trainer, holes("n1"))
    assert told == (
        "no_idle_node",
        "Waits: no idle node is expected to stay idle for as long as a trainer takes to start there.",
    )


def test_whoever_has_waited_for_so_long_that_it_is_guaranteed_nodes_may_try_any(sessions: Sessions) -> None:
    submit(sessions, "digits", curve=[[1, 90]], guard_waited_s=4000.0)
    problem = posed(sessions, holes("soon", announced_at=NOW + 2.0))
    assert (problem.num_nodes, problem.withheld) == (1, 0)


@pytest.mark.parametrize("in_s", [2.0, 0.0, -5.0])
def test_a_node_that_a_trainer_has_stays_its_own_however_soon_it_is_wanted(
    sessions: Sessions, in_s: float
) -> None:
    hold(sessions, submit(sessions, "digits", curve=[[1, 90]]), "n1")
    assert granted(sessions, holes("n1", announced_at=NOW + in_s)) == {"digits": {"n1"}}


def test_a_trainer_that_gives_nodes_up_keeps_those_that_have_its_state(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits")
    hold(sessions, trainer, "n1", "n2", "n3")
    body = {"pid": 1, "host": "h", "sequence": 1}
    with sessions.begin() as session:
        for node, phase, held in (("n2", Phase.READY, Held.NOWHERE), ("n3", Phase.TRAINING, Held.RANKS)):
            told = {**body, "phase": phase, "holds": held}
            session.add(Report(fragment_id=node, sequence=1, received_at=NOW, body=told))
    (own, free) = posed(sessions, holes("n1", "n2", "n3", "n4")).groups
    assert (own.nodes, free.nodes) == (("n3", "n1", "n2"), ("n4",))
