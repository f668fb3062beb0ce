"""What the solver is asked: every fact of a trainer, of its user and of the nodes, from the database."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import pytest
from sqlalchemy import delete

from cells import each
from oakum_service.api.views import explanation, plan_view, trainer_view
from oakum_service.config import Settings
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.objectives import parse_objective
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.solve import solve
from oakum_worker.protocol import Held, Phase
from oakum_worker.spec import TrainerSpec

NOW = 1_800_000_000.0
PROGRESS = {"generation": 1, "nodes": 1, "step": 30, "total_steps": 40, "epoch": 0, "samples": 2880}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def holes(*names: str, **fields: Any) -> tuple[Node, ...]:
    return tuple(Node(name, NodeState.HOLE, "10.0.0.1", **fields) for name in names)


def submit(sessions: Sessions, name: str, user: str = "ulla", **fields: Any) -> str:
    """Submit a trainer; fields that are no part of the spec are columns that the controller writes."""
    columns = {key: fields.pop(key) for key in [*fields] if key not in TrainerSpec.model_fields}
    required = {"name": name, "entrypoint": "a:b", "global_batch": 96, "epochs": 1, "max_nodes": 8}
    with sessions.begin() as session:
        trainer = add_trainer(session, TrainerSpec.model_validate(required | fields), user)
        for column, value in columns.items():
            setattr(trainer, column, value)
        return trainer.id


def hold(sessions: Sessions, trainer: str, *nodes: str) -> None:
    """Let the trainer hold these nodes."""
    with sessions.begin() as session:
        for node in nodes:
            session.add(
                Fragment(id=node, trainer_id=trainer, node=node, state=FragmentState.LIVE, launched_at=NOW)
            )


def observe(sessions: Sessions, *snapshots: tuple[Node, ...]) -> Observation:
    """Record snapshots a second apart, the last one now."""
    last: Observation | None = None
    for index, nodes in enumerate(snapshots, start=1):
        with sessions.begin() as session:
            last = write_snapshot(session, Snapshot(NOW + index - len(snapshots), nodes, ()), last)
    assert last is not None
    return last


def posed(sessions: Sessions, *snapshots: tuple[Node, ...], **settings: Any) -> Problem:
    observed = observe(sessions, *(snapshots or (holes("n1", "n2"),)))
    with sessions.begin() as session:
        return pose(session, observed, Settings(**settings), time.time())


def posed_trainer(sessions: Sessions, **settings: Any) -> PlannedTrainer:
    (trainer,) = posed(sessions, **settings).trainers
    return trainer


def reason(sessions: Sessions, trainer: str, *snapshots: tuple[Node, ...], **settings: Any) -> tuple[str, str]:
    """Why the trainer has the size that a plan gives it, as `oakum explain` has it."""
    observed = observe(sessions, *snapshots)
    with sessions.begin() as session:
        problem = pose(session, observed, Settings(**settings), time.time())
        write_plan(session, solve(problem), problem, observed, time.time())
        session.flush()
        row = session.get_one(Trainer, trainer)
        told = explanation(session, row, trainer_view(session, row))
    return told.why, told.reason


def test_what_the_settings_say_is_posed(sessions: Sessions) -> None:
    submit(sessions, "digits")
    problem = posed(sessions, objective="weight * samples / rate_one", milp_solver="highs", look_ahead_s=20.0)
    assert problem.objective == parse_objective("weight * samples / rate_one")
    assert (problem.milp_solver, problem.look_ahead_s, problem.user_caps) == ("highs", 20.0, {})
    assert problem.terms == Terms(departures=False, completion=False)


def end_holes(sessions: Sessions, *lengths_s: float) -> None:
    """Let holes of these lengths have ended long ago."""
    with sessions.begin() as session:
        for number, length_s in enumerate(lengths_s):
            session.add(
                NodeInterval(node=f"p{number}", state="hole", start_at=NOW - 1e6, end_at=NOW - 1e6 + length_s)
            )


@each(
    ("lengths_s", "expected_s"),
    [([], 1800.0), ([3000.0] * 9, 1800.0), ([3000.0] * 20, 300.0), ([20.0] * 20, 20.0)],
)
def test_the_look_ahead_follows_from_how_long_nodes_stayed_idle(
    sessions: Sessions, lengths_s: list[float], expected_s: float
) -> None:
    with sessions.begin() as session:
        session.execute(delete(NodeInterval))
    end_holes(sessions, *lengths_s)
    assert posed(sessions).look_ahead_s == pytest.approx(expected_s, rel=0.01)


def test_a_stall_that_was_measured_while_a_machine_slept_leaves_no_node_idle(sessions: Sessions) -> None:
    slept_s = 36_000.0
    submit(sessions, "digits", curve=[[1, 90]], durations={"grow": [slept_s], "start_up": [slept_s]})
    problem = posed(sessions, holes("n1", "n2"))
    assert len(solve(problem).allocations[0].nodes) > 0


def test_explain_tells_how_far_the_plan_looks_ahead_and_why(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits")
    end_holes(sessions, *[3000.0] * 20)
    observed = observe(sessions, holes("n1"))
    with sessions.begin() as session:
        problem = pose(session, observed, Settings(), time.time())
        plan = write_plan(session, solve(problem), problem, observed, time.time())
        row = session.get_one(Trainer, trainer)
        told = explanation(session, row, trainer_view(session, row)).look_ahead_reason
        assert told == plan_view(session, plan).look_ahead_reason
    assert told == "Plans look 5 min ahead: idle nodes are expected to stay idle for another 50 min on average."


def test_a_node_that_nobody_else_wants_is_used_though_its_stall_costs_more_than_half_a_minute_gains(
    sessions: Sessions,
) -> None:
    names = [f"n{number}" for number in range(1, 9)]
    curve = [[1, 22.0], [7, 138.0], [8, 143.0]]
    trainer = submit(sessions, "digits", curve=curve, durations={"grow": [1.5]})
    hold(sessions, trainer, *names[:7])
    for look_ahead_s, size in ((30.0, 7), (None, 8)):
        plan = solve(posed(sessions, holes(*names), look_ahead_s=look_ahead_s))
        assert len(plan.allocations[0].nodes) == size


def test_parts_of_nodes_in_use_are_taken_before_a_node_that_is_idle_as_a_whole(sessions: Sessions) -> None:
    submit(sessions, "digits", max_nodes=1)
    taken = Node("n2:0", NodeState.FOREGROUND, "10.0.0.1", job="7")
    problem = posed(sessions, (*holes("n1:0", "n1:1"), taken, *holes("n2:1")))
    assert [group.nodes for group in problem.groups] == [("n2:1", "n1:0", "n1:1")]


def test_what_the_spec_says_is_posed(sessions: Sessions) -> None:
    curves = {"gpu": [[1, 90], [2, 170]], "cpu": [[1, 10]]}
    submit(sessions, "digits", priority=-3, weight=2.0, curves_by_type=curves, mixes_types=True)
    trainer = posed_trainer(sessions)
    assert (trainer.priority, trainer.weight, trainer.user, trainer.mixes_types) == (-3, 2.0, "ulla", True)
    assert trainer.curves_by_type == {"gpu": Curve(((1, 90.0), (2, 170.0))), "cpu": Curve(((1, 10.0),))}


def test_without_curves_by_type_all_nodes_are_alike(sessions: Sessions) -> None:
    submit(sessions, "digits")
    assert posed_trainer(sessions).curves_by_type is None


def test_beside_a_trainer_of_known_curves_by_type_a_newcomer_is_promised_its_minimum(sessions: Sessions) -> None:
    submit(sessions, "known", curves_by_type={"cpu": [[1, 10]], "gpu": [[1, 700]]})
    submit(sessions, "new")
    curves = {trainer.name: trainer.curve for trainer in posed(sessions, learn_curves=True).trainers}
    assert curves["new"].rate(1) == 700.0


def test_a_deadline_is_posed_in_seconds_from_now(sessions: Sessions) -> None:
    submit(sessions, "soon", deadline="2027-01-15T10:01:00+02:00")
    submit(sessions, "late", deadline="2027-01-15T06:00:00Z")
    submit(sessions, "without")
    deadlines = {trainer.name: trainer.deadline_in_s for trainer in posed(sessions).trainers}
    assert deadlines == {"soon": 60.0, "late": -7200.0, "without": math.inf}


def test_what_is_done_and_what_is_left_come_from_the_progress(sessions: Sessions) -> None:
    submit(sessions, "digits", progress=PROGRESS)
    trainer = posed_trainer(sessions)
    assert (trainer.attained_samples, trainer.remaining_samples) == (2880.0, 960.0)


def test_where_the_batch_changes_its_samples_say_what_is_left(sessions: Sessions) -> None:
    submit(sessions, "digits", progress=PROGRESS | {"total_samples": 9000, "global_batch": 384})
    trainer = posed_trainer(sessions)
    assert (trainer.attained_samples, trainer.remaining_samples) == (2880.0, 6120.0)


@pytest.mark.parametrize("number", [-5, 10**40, -(10**40)])
def test_nonsense_in_the_progress_is_bounded(sessions: Sessions, number: int) -> None:
    submit(sessions, "digits", progress=PROGRESS | {"samples": number, "total_steps": number})
    trainer = posed_trainer(sessions)
    assert (trainer.attained_samples, trainer.remaining_samples) == ((2.0**53,) * 2 if number > 0 else (0.0, 0.0))


def test_before_its_first_word_a_trainer_is_endless_or_needs_all_its_time(sessions: Sessions) -> None:
    submit(sessions, "endless", curve=[[1, 10], [8, 50]])
    submit(sessions, "dated", curve=[[1, 10], [8, 50]], deadline="2027-01-15T09:00:00Z")
    facts = {t.name: (t.attained_samples, t.remaining_samples) for t in posed(sessions).trainers}
    assert facts == {"endless": (0.0, math.inf), "dated": (0.0, 50 * 3600.0)}


def test_a_trainer_that_waits_is_posed_with_its_wait(sessions: Sessions) -> None:
    submit(sessions, "digits", waiting_since=NOW - 90.0)
    assert posed_trainer(sessions).waited_s == 90.0


def test_a_trainer_with_nodes_does_not_wait(sessions: Sessions) -> None:
    submit(sessions, "digits", waiting_since=None)
    assert posed_trainer(sessions).waited_s == 0.0


def test_who_has_waited_as_long_as_the_guard_allows_is_guaranteed_nodes(sessions: Sessions) -> None:
    submit(sessions, "digits", guard_waited_s=500.0, curve=[[1, 90]])
    assert not posed_trainer(sessions).guaranteed
    assert posed_trainer(sessions, starvation_guard_s=500.0).guaranteed
    assert not posed_trainer(sessions, starvation_guard_s=math.inf).guaranteed


def test_a_cap_is_posed_for_the_users_whose_trainers_could_take_more(sessions: Sessions) -> None:
    submit(sessions, "one", max_nodes=2)
    submit(sessions, "two", max_nodes=2)
    submit(sessions, "other", user="otto", max_nodes=3)
    assert posed(sessions, user_cap=3).user_caps == {"ulla": 3}
    assert posed(sessions).user_caps == {}


def test_trainers_of_before_users_were_written_down_have_no_cap(sessions: Sessions) -> None:
    submit(sessions, "digits", user_name=None)
    assert posed(sessions, user_cap=1).user_caps == {}


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


def test_a_cap_is_named_as_the_reason(sessions: Sessions) -> None:
    trainer = submit(sessions, "digits")
    assert reason(sessions, trainer, holes("n1", "n2", "n3"), user_cap=2) == (
        "user_cap",
        "Is about to be launched on 2 nodes: ulla's trainers together have 2 nodes and may have at most 2.",
    )


def test_a_higher_priority_is_named_as_the_reason(sessions: Sessions) -> None:
    trainer = submit(sessions, "later", weight=1000.0)
    submit(sessions, "sooner", priority=1, max_nodes=2)
    why, text = reason(sessions, trainer, holes("n1", "n2"))
    assert why == "priority"
    assert text.endswith("but trainers of a higher priority, such as sooner, have every node that it can use.")


def test_a_guaranteed_trainer_gets_nodes_from_whoever_gains_more(sessions: Sessions) -> None:
    poor = submit(sessions, "poor", curve=[[1, 1]], max_nodes=1, guard_waited_s=3600.0)
    submit(sessions, "rich", curve=[[1, 1000], [2, 2000]], max_nodes=2)
    assert reason(sessions, poor, holes("n1", "n2")) == (
        "at_maximum",
        "Is about to be launched on 1 node: its maximum is 1 node.",
    )


def test_a_trainer_near_its_end_keeps_its_nodes(sessions: Sessions) -> None:
    """Others gain more from them in the next 30 s, but it needs them for less than one."""
    ending = submit(sessions, "ending", curve=[[4, 400]], max_nodes=4, progress=PROGRESS | {"step": 39})
    hold(sessions, ending, "n1", "n2")
    hold(sessions, submit(sessions, "growing", curve=[[4, 400]], max_nodes=4), "n3", "n4")
    reason(sessions, ending, holes("n1", "n2", "n3", "n4"))
    with sessions.begin() as session:
        (plan,) = session.query(PlanRecord).all()
        assert plan.allocations[ending].nodes == ("n1", "n2")


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


def test_nodes_are_granted_to_the_trainer_and_not_to_its_name(sessions: Sessions) -> None:
    """While the solver works, one trainer ends and another one is submitted under its name."""
    ended = submit(sessions, "digits")
    observed = observe(sessions, holes("n1"))
    with sessions.begin() as session:
        problem = pose(session, observed, Settings(), time.time())
    with sessions.begin() as session:
        session.get_one(Trainer, ended).state = "cancelled"
    submit(sessions, "digits")
    with sessions.begin() as session:
        assert write_plan(session, solve(problem), problem, observed, time.time()).allocations == {}


def test_an_objective_of_any_length_is_recorded_with_its_plan(sessions: Sessions) -> None:
    submit(sessions, "digits")
    objective = "weight * samples / rate_one" + " + 0 * samples" * 20
    observed = observe(sessions, holes("n1"))
    with sessions.begin() as session:
        problem = pose(session, observed, Settings(objective=objective), time.time())
        assert write_plan(session, solve(problem), problem, observed, time.time()).objective == objective


def test_a_node_that_trains_is_kept_before_one_that_is_ready_and_that_before_one_that_warms_up(
    sessions: Sessions,
) -> None:
    hold(sessions, submit(sessions, "digits"), "warming", "ready", "trains")
    with sessions.begin() as session:
        session.get_one(Fragment, "ready").ready_at = NOW - 5
        session.get_one(Fragment, "trains").ready_at = session.get_one(Fragment, "trains").training_at = NOW - 50
    (group,) = posed(sessions, holes("warming", "ready", "trains")).groups
    assert group.nodes == ("trains", "ready", "warming")


def granted(sessions: Sessions, *snapshots: tuple[Node, ...]) -> dict[str, set[str]]:
    """Trainer's name -> the nodes that a plan gives it."""
    problem = posed(sessions, *snapshots)
    plan = solve(problem)
    return {trainer.name: set(plan.grant(trainer.id)) for trainer in problem.trainers}


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


def test_a_node_that_a_trainer_has_stays_its_own_however_soon_it_is_wanted(sessions: Sessions) -> None:
    hold(sessions, submit(sessions, "digits", curve=[[1, 90]]), "n1")
    assert posed(sessions, holes("n1", announced_at=NOW + 2.0)).num_nodes == 1


def test_a_plan_that_grants_the_same_nodes_in_another_order_is_no_new_one(sessions: Sessions) -> None:
    hold(sessions, submit(sessions, "digits", curve=[[1, 90], [2, 170]], max_nodes=2), "n1", "n2")
    observed = observe(sessions, holes("n1", "n2", "n3"))
    numbers = []
    for preference in (("n1", "n2", "n3"), ("n3", "n2", "n1")):
        with sessions.begin() as session:
            seen = dataclasses.replace(observed, preference=preference)
            problem = pose(session, seen, Settings(), time.time())
            numbers.append(write_plan(session, solve(problem), problem, seen, time.time()).id)
    assert numbers == [1, 1]


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
