"""A trainer whose agents say what a test has them say, at the times that it says."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import pytest

from oakum_service.api.schemas import TrainerView
from oakum_service.api.views import trainer_view
from oakum_service.control.membership import MembershipKeeper
from oakum_service.control.observe import end_fragments
from oakum_service.control.submission import add_trainer
from oakum_service.db.engine import Sessions
from oakum_service.db.models import EventRecord, Fragment, FragmentState, Report, Trainer
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_worker.protocol import FragmentReport, Phase, Progress
from oakum_worker.spec import TrainerSpec

BATCH = 100


class ScriptedTrainer:
    """One trainer, its fragments `a`, `b` ... on nodes of their names, and what of the controller hears them."""

    def __init__(self, sessions: Sessions, patch: pytest.MonkeyPatch, **spec: object) -> None:
        self.now = 1000.0
        patch.setattr(time, "time", lambda: self.now)
        self._sessions = sessions
        self.restart()
        fields = {"name": "digits", "entrypoint": "a:b", "global_batch": BATCH, "epochs": 1, "max_nodes": 8}
        with sessions.begin() as session:
            self.id = add_trainer(session, TrainerSpec.model_validate(fields | spec), "ulla").id

    def restart(self) -> None:
        """Another controller, which remembers nothing, goes on."""
        self.keeper = MembershipKeeper(regroup_timeout_s=3600.0, warm_up_timeout_s=3600.0)

    def launch(self, *fragments: str) -> None:
        with self._sessions.begin() as session:
            for name in fragments:
                session.add(
                    Fragment(
                        id=name, trainer_id=self.id, node=name, state=FragmentState.LIVE, launched_at=self.now
                    )
                )

    def say(self, fragment: str, phase: Phase | None = None, **fields: object) -> None:
        """The fragment's next report: what it said before, and this. The controller reads it at its next turn."""
        with self._sessions.begin() as session:
            row = session.get(Report, fragment)
            if row is None:
                row = Report(
                    fragment_id=fragment, sequence=0, body={"phase": Phase.WARMING, "pid": 1, "host": "h"}
                )
                session.add(row)
            row.sequence += 1
            changes = fields if phase is None else fields | {"phase": phase}
            report = FragmentReport.model_validate({**row.body, **changes, "sequence": row.sequence})
            row.body, row.received_at = report.model_dump(mode="json"), self.now

    def progress(self, fragment: str, generation: int, step: int, nodes: int = 1, **fields: Any) -> None:
        """One more word of rank 0, by default at half a second for a step."""
        told = Progress(
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
        """All members have formed the generation; rank 0 says with how many steps, and has finished one more."""
        for member in self.row.members:
            self.say(member, Phase.TRAINING, generation=generation)
        told = {"generation": generation, "step": step, "source": "survivor", **fields}
        self.say(fragment, switches=[told])

    def turn(self, after_s: float = 0.0) -> list[str]:
        """Let so much time pass, then have the controller take its turn; returns the jobs to cancel."""
        self.now += after_s
        with self._sessions.begin() as session:
            self.keeper.hear(session)
            return self.keeper.turn(session, [])

    def fail_to_hear(self) -> None:
        """A turn whose transaction is undone, as on a full disk."""
        with self._sessions() as session:
            self.keeper.hear(session)
            session.rollback()

    def preempt(self, fragment: str) -> None:
        """The scheduler says that it has told this one's job to go."""
        self._look(preempted=frozenset({fragment}))

    def end_job(self, *fragments: str) -> None:
        """The scheduler does not know these jobs any more."""
        self._look(ended=fragments)

    def _look(self, ended: Collection[str] = (), preempted: frozenset[str] = frozenset()) -> None:
        with self._sessions.begin() as session:
            self.keeper.hear(session)
            live = session.query(Fragment).filter(Fragment.state == FragmentState.LIVE).all()
            jobs = tuple(OwnJob("1", row.id, row.node) for row in live if row.id not in ended)
            end_fragments(session, Snapshot(self.now, (), jobs, preempted=preempted), 3600.0)

    def release(self, fragment: str) -> None:
        """The plan no longer grants its node."""
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
        """What the API shows now."""
        with self._sessions.begin() as session:
            return trainer_view(session, session.get_one(Trainer, self.id))

    def events(self, kind: str) -> list[str]:
        with self._sessions.begin() as session:
            rows = session.query(EventRecord).filter_by(kind=kind).order_by(EventRecord.id)
            return [row.message for row in rows]
