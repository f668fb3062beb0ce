"""A cluster small enough to check its documents by hand: a trainer on two of three nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from api_under_test import ApiUnderTest, report
from oakum_service.control.observe import write_snapshot
from oakum_service.db.models.fragments import FragmentState, Report
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.progress import MeasuredRate, ProgressSample
from oakum_service.documents.grant import Grant
from oakum_service.documents.node import Node
from oakum_service.documents.time_account import TimeAccount
from oakum_service.schedulers.port import JobStart, Snapshot
from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_worker.protocol import Phase
from plan_records import plan_record

PROGRESS = {
    "generation": 3,
    "nodes": 2,
    "step": 30,
    "total_steps": 40,
    "epoch": 1,
    "samples": 2880,
    "loss": 0.25,
    "samples_per_s": 9.5,
    "total_samples": 3840,
    "global_batch": 192,
    "learning_rate": 0.01,
    "checkpoint_step": 10,
    "metrics": {"accuracy": 0.9},
    "best": None,
}


@dataclass(frozen=True)
class Scene:
    """A trainer on two of three nodes; a foreground job is on the third, and one was on the second until 60 s
    ago."""

    api: ApiUnderTest
    now: float
    trainer: str
    fragments: tuple[str, str, str]
    """Two members, and one that has been preempted."""

    def get(self, path: str) -> Any:
        response = self.api.viewer.get(path)
        assert response.status_code == 200, response.text
        return response.json()


def train_on_two_nodes(api: ApiUnderTest) -> Scene:
    """Write what makes the scene into the database."""
    now = time.time()
    trainer = api.submit(max_nodes=4)["id"]
    observe_foreground_jobs(api, now)
    lost = api.add_fragment(
        trainer,
        "n3",
        state=FragmentState.ENDED,
        launched_at=now - 130.0,
        training_at=now - 120.0,
        ended_at=now - 100.0,
        cause="preempted",
    )
    first = api.add_fragment(trainer, "n1", launched_at=now - 90.0, training_at=now - 80.0)
    second = api.add_fragment(trainer, "n2", launched_at=now - 30.0, training_at=now - 20.0)
    with api.sessions.begin() as session:
        session.add(Report(fragment_id=first, sequence=1, received_at=now, body=report(phase=Phase.TRAINING)))
        session.add(plan_of_two_nodes(trainer, now))
        session.add(
            MeasuredRate(
                trainer_id=trainer, nodes=2, seconds=60.0, samples=570.0, explored_s=0.0, recent=[[60.0, 9.5]]
            )
        )
        for step, loss in ((10, 0.5), (20, 0.25), (30, None)):
            session.add(
                ProgressSample(trainer_id=trainer, at=now + step, step=step, nodes=2, loss=loss, samples_per_s=9.5)
            )
    api.change_row(trainer, **trained_for_two_minutes(now), members=[second, first])
    return Scene(api, now, trainer, (first, second, lost))


def observe_foreground_jobs(api: ApiUnderTest, now: float) -> None:
    """Write the two snapshots in which j7 takes n2 and n3, and gives n2 back."""
    nodes = {name: Node(name, NodeState.HOLE, f"10.0.0.{name[1:]}") for name in ("n1", "n2", "n3")}
    busy = {
        name: Node(name, NodeState.FOREGROUND, node.address, job="j7", job_name="cfd")
        for name, node in nodes.items()
    }
    start = JobStart("j7", now - 100.0, 2, 0.25)
    earlier = Snapshot(now - 100.0, (nodes["n1"], busy["n2"], busy["n3"]), (), (start,))
    later = Snapshot(now - 40.0, (nodes["n1"], nodes["n2"], busy["n3"]), (), (start,))
    with api.sessions.begin() as session:
        write_snapshot(session, later, write_snapshot(session, earlier, None))


def plan_of_two_nodes(trainer: str, now: float) -> PlanRecord:
    """A plan that grants the trainer n1 and n2."""
    grant = Grant(("n1", "n2"), "all_idle", "no other node is idle")
    return plan_record({trainer: grant}, snapshot=2, made_at=now - 35.0, value=75.0, bound=100.0, optimal=False)


def trained_for_two_minutes(now: float) -> dict[str, Any]:
    """The columns of a trainer that began 120 s ago and is at step 30 of 40."""
    return {
        "state": TrainerState.RUNNING,
        "started_at": now - 120.0,
        "generation": 3,
        "progress": PROGRESS,
        "pace": {"steps": 2, "seconds": 40.0, "reading_s": 10.0, "waiting_s": 4.0},
        "checkpoint_step": 20,
        "checkpoint_at": now - 15.0,
        "durations": {"grow": [0.25, 0.1, 0.5], "loss": [2.0], "start_up": [4.0]},
        "account": account_of_two_minutes(now),
        "steps_at_size": {1: 10, 2: 20},
        "past_node_s": 30.0,
        "past_warm_up_node_s": 10.0,
        "nodes_lost": 1,
        "nodes_gained": 2,
        "rescales": 2,
        "stall_s": 0.75,
        "last_stall_s": 0.25,
    }


def account_of_two_minutes(now: float) -> TimeAccount:
    return TimeAccount(
        began_at=now - 120.0,
        since=now - 50.0,
        use=TimeUse.TRAINING,
        seconds={
            TimeUse.TRAINING: 60.25,
            TimeUse.GROW: 0.75,
            TimeUse.LOSS: 2.0,
            TimeUse.COLD_START: 3.0,
            TimeUse.WAITING: 4.0,
        },
        redone_steps=3,
        redone_s=1.5,
    )


def about(seconds: float) -> object:
    """The value, compared with a tolerance for the time that the test itself takes."""
    return pytest.approx(seconds, abs=30.0)
