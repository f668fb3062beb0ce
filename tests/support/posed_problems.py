"""Problems as the service poses them from a database, at one moment, and what their plans give."""

from __future__ import annotations

import time
from typing import Any

from oakum_service.api.views import explanation, trainer_view
from oakum_service.config import Settings
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.problem import Problem
from oakum_solver.solve import solve
from oakum_worker.spec import TrainerSpec

NOW = 1_800_000_000.0


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


def reason(sessions: Sessions, trainer: str, *snapshots: tuple[Node, ...], **settings: Any) -> tuple[str, str]:
    """Why the trainer has the size that a plan gives it, as `oakum explain` has it."""
    observed = observe(sessions, *snapshots)
    with sessions.begin() as session:
        problem = pose(session, observed, Settings(**settings), time.time())
        write_plan(session, solve(problem), problem, observed, time.time())
        session.flush()
        row = session.get_one(Trainer, trainer)
        explained = explanation(session, row, trainer_view(session, row))
    return explained.why, explained.reason


def granted(sessions: Sessions, *snapshots: tuple[Node, ...]) -> dict[str, set[str]]:
    """Trainer's name -> the nodes that a plan gives it."""
    problem = posed(sessions, *snapshots)
    plan = solve(problem)
    return {trainer.name: set(plan.grant(trainer.id)) for trainer in problem.trainers}
