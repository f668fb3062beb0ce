"""What the solver is asked: every fact of a trainer and of its user, from the database."""

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
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_solver.objectives import parse_objective
from oakum_solver.problem import Curve, PlannedTrainer, Terms
from oakum_solver.solve import solve
from posed_problems import NOW, hold, holes, observe, posed, reason, submit

PROGRESS = {"generation": 1, "nodes": 1, "step": 30, "total_steps": 40, "epoch": 0, "samples": 2880}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def posed_trainer(sessions: Sessions, **settings: Any) -> PlannedTrainer:
    (trainer,) = posed(sessions, **settings).trainers
    return trainer


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
    assert (
        told == "The plan looks 5 min ahead: idle nodes were expected to stay idle for another 50 min on average."
    )


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
