"""Service and replay pose the same problem, and make the same plan, where the same has happened."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from oakum_service.config import Settings
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.control.plan import pose
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.logs.holes import HoleLog, changes
from oakum_solver.plan import Plan
from oakum_solver.problem import Curve, PlannedTrainer, Problem
from oakum_solver.replay import engine
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import solve
from oakum_worker.spec import TrainerSpec

BEGAN_AT = 1_800_000_000.0
CURVES = {"a": ((1, 10.0), (4, 34.0), (8, 50.0)), "b": ((1, 8.0), (6, 46.0))}
NODES = tuple(f"n{number:02}" for number in range(12))
Posed = tuple[Problem, Plan]


def log_of_holes() -> HoleLog:
    """Twelve nodes, each idle three times for 3 to 17 minutes."""
    turn, number = np.divmod(np.arange(36), 12)
    starts = 60.0 * (11 * turn + number % 5)
    ends = np.minimum(starts + 30.0 * (6 + (7 * number + 3 * turn) % 13), starts + 11 * 60.0 - 1.0)
    order = np.argsort(starts, kind="stable")
    return HoleLog(
        "made.csv", NODES, number[order].astype(np.int32), starts[order], ends[order], float(ends.max())
    )


def replayed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[Posed]:
    """The problems and plans of a replay by the rules of these settings."""
    told: list[Posed] = []

    def listen(problem: Problem, *args: Any, **options: Any) -> Plan:
        told.append((problem, solve(problem, *args, **options)))
        return told[-1][1]

    replay_settings = ReplaySettings.following(
        settings.planning_rules,
        cost=CostModel.IN_PLACE, stall_s=settings.stall_s, startup_s=settings.start_up_s,
    )  # fmt: skip
    items = (WorkItem(PlannedTrainer(name, Curve(points), max_nodes=8)) for name, points in CURVES.items())
    with monkeypatch.context() as patch:
        patch.setattr(engine, "solve", listen)
        engine.replay(log_of_holes(), Workload(tuple(items)), replay_settings)
    return told


def observed(sessions: Sessions) -> Iterator[tuple[float, Observation]]:
    """What the service sees of the log: (time, observation) at each of its changes."""
    idle: set[int] = set()
    last: Observation | None = None
    for at_s, leaving, coming in changes(log_of_holes()):
        idle = (idle - set(leaving.tolist())) | set(coming.tolist())
        nodes = tuple(
            Node(name, NodeState.HOLE, "10.0.0.1")
            if number in idle
            else Node(name, NodeState.FOREGROUND, "10.0.0.1", job="1")
            for number, name in enumerate(NODES)
        )
        with sessions.begin() as session:
            last = write_snapshot(session, Snapshot(BEGAN_AT + at_s, nodes, ()), last)
        yield BEGAN_AT + at_s, last


def submit(sessions: Sessions) -> None:
    with sessions.begin() as session:
        for name, curve in CURVES.items():
            fields = {"entrypoint": "a:b", "global_batch": 96, "epochs": 1, "max_nodes": 8, "curve": curve}
            add_trainer(session, TrainerSpec.model_validate({"name": name, **fields}), "ulla").id = name


def hold(sessions: Sessions, held: dict[str, tuple[str, ...]]) -> None:
    """Let each trainer hold just these nodes."""
    with sessions.begin() as session:
        session.execute(delete(Fragment))
        for trainer, nodes in held.items():
            for node in nodes:
                row = Fragment(
                    id=node, trainer_id=trainer, node=node, state=FragmentState.LIVE, launched_at=BEGAN_AT
                )
                session.add(row)


def comparable(problem: Problem) -> dict[str, object]:
    """What decides the plan: facts that are told in reasons only, and the order of alike nodes, left out."""
    untold: dict[str, Any] = {
        "name": "", "user": None, "access": None,
        "attained_samples": 0.0, "remaining_samples": math.inf, "deadline_in_s": math.inf, "waited_s": 0.0,
    }  # fmt: skip
    return {
        "trainers": {dataclasses.replace(trainer, **untold) for trainer in problem.trainers},
        "groups": {(frozenset(group.nodes), group.owner, group.horizon_s) for group in problem.groups},
        "look_ahead_s": pytest.approx(problem.look_ahead_s, rel=1e-6),
        **{
            name: getattr(problem, name) for name in ("objective", "terms", "withheld", "milp_solver", "user_caps")
        },
    }


def test_the_service_plans_as_its_replay_does(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(stall_s=1.5, start_up_s=360.0, explore_share=0.0)
    told = replayed(settings, monkeypatch)
    submit(sessions)
    withheld, look_aheads_s = 0, set()
    for (problem, plan), (now, seen) in zip(told, observed(sessions), strict=True):
        hold(sessions, problem.held)
        with sessions.begin() as session:
            ours = pose(session, seen, settings, now)
        assert comparable(ours) == comparable(problem)
        sizes = {each.trainer: len(each.nodes) for each in plan.allocations}
        assert {each.trainer: len(each.nodes) for each in solve(ours).allocations} == sizes
        withheld, look_aheads_s = withheld + problem.withheld, look_aheads_s | {problem.look_ahead_s}
    assert len(told) > 30
    assert withheld > 0
    assert len(look_aheads_s) > 2
