"""A plan each turn, and the one before it as long as none can be made."""

from __future__ import annotations

import pytest

from oakum_service.config import Settings
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import Observation
from oakum_service.control.planner import Planner
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_worker.spec import TrainerSpec

OBSERVED = Observation(1, Snapshot(0.0, (Node("n1", NodeState.HOLE, "10.0.0.1"),), ()))


@pytest.fixture
def planner(sessions: Sessions) -> Planner:
    """A planner whose objective has no value for a trainer of 99 samples/s."""
    lease = LeaseHolder(sessions, alone=True)
    assert lease.acquire()
    return Planner(Settings(objective="samples / (rate_one - 99)"), sessions, lease)


def add(sessions: Sessions, name: str, rate: float) -> None:
    with sessions.begin() as session:
        fields = {"name": name, "entrypoint": "a:b", "global_batch": 96, "epochs": 1, "curve": [[1, rate]]}
        add_trainer(session, TrainerSpec.model_validate(fields), "ulla")


def end(sessions: Sessions, name: str) -> None:
    with sessions.begin() as session:
        session.query(Trainer).filter_by(name=name).one().state = "cancelled"


def failures(sessions: Sessions) -> list[str]:
    with sessions.begin() as session:
        return [row.message for row in session.query(EventRecord).filter_by(kind="plan.failed")]


def num_plans(sessions: Sessions) -> int:
    with sessions.begin() as session:
        return session.query(PlanRecord).count()


def test_an_expression_without_a_value_keeps_the_plan_and_says_so_once(
    sessions: Sessions, planner: Planner
) -> None:
    add(sessions, "fine", rate=100.0)
    before = planner.plan(OBSERVED)
    assert before is not None
    add(sessions, "odd", rate=99.0)
    assert [planner.plan(OBSERVED) for _ in range(5)] == [None] * 5
    assert num_plans(sessions) == 1
    (message,) = failures(sessions)
    assert "objective 'samples / (rate_one - 99)' is" in message
    assert message.endswith("until then trainers keep the nodes they have, and none are launched on others")


def test_planning_goes_on_when_the_expression_has_a_value_again(sessions: Sessions, planner: Planner) -> None:
    add(sessions, "odd", rate=99.0)
    assert planner.plan(OBSERVED) is None
    end(sessions, "odd")
    assert planner.plan(OBSERVED) is not None
    add(sessions, "odd", rate=99.0)
    assert planner.plan(OBSERVED) is None
    assert len(failures(sessions)) == 2
