"""Execute: make the world match the plan. Idempotent; decides nothing of its own."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control import hold, journal
from oakum_service.control.lease import LeaseHolder
from oakum_service.control.observe import Observed
from oakum_service.db.models import Fragment, FragmentState, PlanRecord, Report, Trainer
from oakum_service.errors import SchedulerError
from oakum_service.fragment_configs import FragmentConfigs
from oakum_service.schedulers.port import ArrayScheduler, Scheduler, Snapshot
from oakum_service.states import NodeState
from oakum_worker.protocol import FragmentConfig

_log = logging.getLogger("oakum")


@dataclass(frozen=True)
class Launch:
    """An intent: committed, not yet submitted."""

    fragment: str
    trainer: str
    node: str
    address: str


class Executor:
    """Launches and releases fragments."""

    def __init__(
        self, lease: LeaseHolder, scheduler: Scheduler, configs: FragmentConfigs, *, dry_run: bool = False
    ) -> None:
        """With `dry_run` nothing is launched, released or cancelled."""
        self._lease = lease
        self._scheduler = scheduler
        self._configs = configs
        self._dry_run = dry_run
        self.submitting: set[str] = set()
        """Fragments whose intent is committed and whose job may not exist yet."""
        self.is_closed = False
        """Whether nothing is launched any more."""

    def carry_out(self, plan_id: int, observed: Observed) -> int:
        """Release what the plan no longer grants and launch what it newly grants; returns the launches."""
        if self._dry_run:
            return 0
        with self._lease.writing() as session:
            if self._holds(session) or _taken_since(session, observed.snapshot.taken_at):
                return 0
            plan = session.get_one(PlanRecord, plan_id)
            grants = {node: trainer for trainer, given in plan.allocations.items() for node in given["nodes"]}
            _release(session, grants, observed.snapshot)
            launches = _intend(session, plan_id, grants, observed.snapshot)
            # Before the commit: from then on a snapshot without the job must not be taken for its end.
            self.submitting.update(launch.fragment for launch in launches)
        try:
            for group in self._groups(launches):
                self._submit(group, observed.snapshot.taken_at)
                self.submitting.difference_update(launch.fragment for launch in group)
        finally:
            self.submitting.difference_update(launch.fragment for launch in launches)
        return len(launches)

    def _groups(self, launches: Sequence[Launch]) -> Iterator[Sequence[Launch]]:
        """What is submitted at once: many of one trainer where the scheduler takes them so, else one by one."""
        by_trainer: dict[str, list[Launch]] = {}
        for launch in launches:
            by_trainer.setdefault(launch.trainer, []).append(launch)
        for group in by_trainer.values():
            most = 1
            if isinstance(self._scheduler, ArrayScheduler) and len(group) >= self._scheduler.array_from:
                most = self._scheduler.array_most
            for begin in range(0, len(group), most):
                yield group[begin : begin + most]

    def _submit(self, group: Sequence[Launch], seen_at: float) -> None:
        """Submit the group of one trainer's fragments to nodes that were idle at `seen_at`."""
        configs: list[FragmentConfig] = []
        with self._lease.writing() as session:
            if not self._holds(session) and not _taken_since(session, seen_at):  # since the plan was made
                trainer = session.get_one(Trainer, group[0].trainer)
                configs = [self._configs.make(each.fragment, trainer, each.node, each.address) for each in group]
        job_ids: Mapping[str, str] = {}
        try:
            job_ids = self._start(configs)
        except SchedulerError as error:
            _log.info("fragments on %s were not started: %s", ", ".join(each.node for each in group), error)
        with self._lease.writing() as session:
            for launch in group:
                self._settle(session, launch.fragment, job_ids.get(launch.fragment))

    def _holds(self, session: Session) -> bool:
        return self.is_closed or hold.current(session) is not None

    def _start(self, configs: Sequence[FragmentConfig]) -> Mapping[str, str]:
        if len(configs) > 1:
            assert isinstance(self._scheduler, ArrayScheduler)
            return self._scheduler.submit_any(configs)
        return {config.fragment: self._scheduler.submit(config) for config in configs}

    def _settle(self, session: Session, fragment_id: str, job_id: str | None) -> None:
        """Write down how the submission went. Without a job the node was taken meanwhile: plan anew."""
        fragment = session.get_one(Fragment, fragment_id)
        if fragment.state == FragmentState.ENDED:
            if job_id is not None:
                self._scheduler.cancel(fragment_id)
            return
        fragment.job_id = job_id
        fragment.state = FragmentState.LIVE if job_id is not None else FragmentState.ENDED
        if job_id is None:
            fragment.ended_at, fragment.cause = time.time(), "never started"
            return
        trainer = session.get_one(Trainer, fragment.trainer_id)
        journal.record(
            session, "fragment.launched", trainer.name, f"{fragment.node}: launched", node=fragment.node
        )

    def cancel(self, fragments: list[str]) -> None:
        """Have the scheduler end the jobs of these fragments."""
        if self._dry_run:
            return
        for fragment in dict.fromkeys(fragments):
            self._scheduler.cancel(fragment)

    def strangers(self, session: Session, snapshot: Snapshot) -> list[str]:
        """Own jobs that no live fragment stands for: what a crash left behind, or a submission that was accepted
        without a word."""
        rows = session.execute(select(Fragment.id).where(Fragment.state != FragmentState.ENDED)).scalars()
        known = {*rows, *self.submitting}
        return [job.fragment for job in snapshot.own_jobs if job.fragment not in known]


def _taken_since(session: Session, seen_at: float) -> bool:
    """Whether the scheduler has told a fragment to go since: it may count on nodes that were idle then, too."""
    rows = session.execute(
        select(Report.body)
        .join(Fragment, Fragment.id == Report.fragment_id)
        .where(Fragment.state != FragmentState.ENDED)
    ).scalars()
    return any((body.get("signalled_at") or 0.0) > seen_at for body in rows)


def _live(session: Session) -> list[Fragment]:
    rows = session.execute(select(Fragment).where(Fragment.state != FragmentState.ENDED)).scalars()
    return list(rows)


def _release(session: Session, grants: dict[str, str], snapshot: Snapshot) -> None:
    """Let go of what the plan gives to nobody or to others. A node that the scheduler takes is its own affair."""
    for fragment in _live(session):
        node = snapshot.node(fragment.node)
        taken = node is not None and node.state is not NodeState.HOLE
        if fragment.released or taken or grants.get(fragment.node) == fragment.trainer_id:
            continue
        fragment.released = True
        trainer = session.get_one(Trainer, fragment.trainer_id)
        trainer.revision += 1


def _intend(session: Session, plan_id: int, grants: dict[str, str], snapshot: Snapshot) -> list[Launch]:
    """Commit the intent to launch on every granted node that is idle and free of our own jobs."""
    busy = {fragment.node for fragment in _live(session)} | {job.node for job in snapshot.own_jobs}
    launches = []
    for node, trainer in grants.items():
        state = snapshot.node(node)
        if node in busy or state is None or state.state is not NodeState.HOLE:
            continue
        launch = Launch(str(uuid.uuid4()), trainer, node, state.address)
        session.add(
            Fragment(
                id=launch.fragment,
                trainer_id=trainer,
                node=node,
                plan_id=plan_id,
                state=FragmentState.INTENDED,
                launched_at=time.time(),
            )
        )
        launches.append(launch)
    return launches
