"""A trainer whose agents report what a test says, when it says so."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import pytest

from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.api.views import trainer_view
from oakum_service.control.membership import MembershipUpdater
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import end_fragments
from oakum_service.db.engine import Sessions
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import NodeState
from oakum_worker.protocol import FragmentReport, Phase, TrainingProgress
from oakum_worker.spec import TrainerSpec

BATCH = 100


class ScriptedTrainer:
    """One trainer with the fragments `a`, `b` ... on nodes of the same names, and the parts of the controller
    that read their reports."""

    def __init__(self, sessions: Sessions, patch: pytest.MonkeyPatch, **spec: object) -> None:
        self.now = 1000.0
        patch.setattr(time, "time", lambda: self.now)
        self._sessions = sessions
        self.restart()
        fields = {"name": "digits", "entrypoint": "a:b", "global_batch": BATCH, "epochs": 1, "max_nodes": 8}
        with sessions.begin() as session:
            self.id = add_trainer(session, TrainerSpec.model_validate(fields | spec), "ulla").id

    def restart(self) -> None:
        """Replace the controller by a new one, which remembers nothing."""
        self.keeper = MembershipUpdater(regroup_timeout_s=3600.0, warm_up_timeout_s=3600.0)

    def launch(self, *fragments: str) -> None:
        with self._sessions.begin() as session:
            for name in fragments:
                session.add(
                    Fragment(
                        id=name, trainer_id=self.id, node=name, state=FragmentState.LIVE, launched_at=self.now
                    )
                )

    def say(self, fragment: str, phase: Phase | None = None, **fields: object) -> None:
        """Make the fragment's next report: the fields of its last one with these changes. The controller reads
        it at its next turn."""
        with self._sessions.begin() as session:
            row = session.get(Report, fragment)
            if row is None:
                first = FragmentReport(phase=Phase.WARMING, sequence=0, pid=1, host="h")
                row = Report(fragment_id=fragment, sequence=0, body=first)
                session.add(row)
            row.sequence += 1
            changes = fields if phase is None else fields | {"phase": phase}
            report = FragmentReport.model_validate({**row.body.model_dump(), **changes, "sequence": row.sequence})
            row.body, row.received_at = report, self.now

    def progress(self, fragment: str, generation: int, step: int, nodes: int = 1, **fields: Any) -> None:
        """Make one more progress report of rank 0, by default of half a second for each step."""
        told = TrainingProgress(
            generation=generation,
            nodes=nodes,
            step=step,
            total_steps=10_000,
            epoch=0,
            samples=step * BATCH,
            **{"samples_per_s": 2.0 * BATCH, "global_batch": BATCH, **fields},
        )
        self.say(fragment, progress=told.model_dump())

    def switch(self, fragment: str, generation: int, step: int, **fields: object) -> None:
        """Report that all members have formed the generation, and from rank 0 with how many steps (`step`) it
        began."""
        for member in self.row.members:
            self.say(member, Phase.TRAINING, generation=generation)
        told = {"generation": generation, "step": step, "source": "survivor", **fields}
        self.say(fragment, switches=[told])

    def turn(self, after_s: float = 0.0) -> list[str]:
        """Let this many seconds pass, then run one turn of the controller; returns the jobs to cancel."""
        self.now += after_s
        with self._sessions.begin() as session:
            self.keeper.read_reports(session, self.now)
            return self.keeper.turn(session, [], self.now)

    def fail_to_hear(self) -> None:
        """Run a turn whose transaction is rolled back, as on a full disk."""
        with self._sessions() as session:
            self.keeper.read_reports(session, self.now)
            session.rollback()

    def preempt(self, fragment: str) -> None:
        """Have the scheduler say that it has told this fragment's job to leave."""
        self._look(preempted=frozenset({fragment}))

    def end_job(self, *fragments: str) -> None:
        """Have the scheduler show these fragments' jobs no more."""
        self._look(ended=fragments)

    def lose(self, *fragments: str) -> None:
        """Have the scheduler show these fragments' jobs no more, and their nodes as idle: it has not taken
        them."""
        self._look(ended=fragments, idle=fragments)

    def _look(
        self,
        ended: Collection[str] = (),
        preempted: frozenset[str] = frozenset(),
        idle: Collection[str] = (),
    ) -> None:
        with self._sessions.begin() as session:
            self.keeper.read_reports(session, self.now)
            live = session.query(Fragment).filter(Fragment.state == FragmentState.LIVE).all()
            jobs = tuple(OwnJob("1", row.id, row.node) for row in live if row.id not in ended)
            nodes = tuple(Node(name, NodeState.HOLE, "127.0.0.1") for name in idle)
            end_fragments(session, Snapshot(self.now, nodes, jobs, preempted=preempted), 3600.0, now=self.now)

    def release(self, fragment: str) -> None:
        """Mark the fragment as released, as when the plan no longer grants its node."""
        with self._sessions.begin() as session:
            session.get_one(Fragment, fragment).released = True

    def change(self, **columns: object) -> None:
        with self._sessions.begin() as session:
            trainer = session.get_one(Trainer, self.id)
            for column, value in columns.items():
                setattr(trainer, column, value)

    @property
    def row(self) -> Trainer:
        with self._sessions.begin() as session:
            return session.get_one(Trainer, self.id)

    @property
    def view(self) -> TrainerView:
        """The trainer as the API shows it now."""
        with self._sessions.begin() as session:
            return trainer_view(session, session.get_one(Trainer, self.id))

    def events(self, kind: str) -> list[str]:
        with self._sessions.begin() as session:
            rows = session.query(EventRecord).filter_by(kind=kind).order_by(EventRecord.id)
            return [row.message for row in rows]
