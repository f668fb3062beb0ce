"""Execute: makes the cluster match the plan. Repeating it changes nothing; it takes no decisions of its own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.control import idle_time, launch_records
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.giving_back import release
from oakum_service.control.hosts import in_bundles
from oakum_service.control.observe import Observation
from oakum_service.control.renewal import endings
from oakum_service.control.submissions import Submissions
from oakum_service.db import event_log
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.fragments import Fragment, FragmentState, Report, live_fragments
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.slots import bundle_name, node_of, slots_in
from oakum_service.errors import SchedulerError, SubmissionRefused
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.logs.fields import about
from oakum_service.orders import hold
from oakum_service.schedulers.port import ArrayScheduler, Scheduler, Snapshot
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig

_log = logging.getLogger("oakum")


@dataclass(frozen=True)
class LaunchIntent:
    """A fragment whose row is committed and whose job is not submitted yet."""

    fragment: str
    trainer_id: str
    node: str
    address: str


class Executor:
    """Launches, releases and cancels fragments as a plan says."""

    def __init__(
        self, lease: LeaseHolder, scheduler: Scheduler, configs: FragmentConfigs, *, dry_run: bool = False
    ) -> None:
        """With `dry_run` nothing is launched, released or cancelled."""
        self._lease = lease
        self._scheduler = scheduler
        self._configs = configs
        self._dry_run = dry_run
        self.submissions = Submissions()
        self.is_closed = False
        """Whether launching has stopped for good because the service is shutting down."""

    def carry_out(self, plan_id: int, observed: Observation) -> int:
        """Release the fragments whose nodes the plan no longer grants and launch on newly granted nodes. Returns
        the number of launches.

        Does nothing and returns 0 in a dry run, during a hold, while launching is closed, and if a live fragment
        was told to leave after the snapshot was taken. A trainer whose last launches came to nothing is launched
        when the next one is due.
        """
        if self._dry_run:
            return 0
        now = clock.now()
        with self._lease.writing() as session:
            if self._is_held(session) or _taken_since(session, observed.snapshot.taken_at):
                return 0
            plan = session.get_one(PlanRecord, plan_id)
            grants = {node: trainer_id for trainer_id, grant in plan.allocations.items() for node in grant.nodes}
            _release(session, grants, observed.snapshot, now)
            launches = _intend(session, plan_id, grants, observed.snapshot, now)
            # Before the commit: after it, a snapshot without the job must not be taken for the fragment's end.
            self.submissions.begin(launch.fragment for launch in launches)
        try:
            for group in self._groups(launches):
                self._submit(group, observed.snapshot)
                self.submissions.end(launch.fragment for launch in group)
        finally:
            self.submissions.end(launch.fragment for launch in launches)
        return len(launches)

    def _groups(self, launches: Sequence[LaunchIntent]) -> Iterator[Sequence[LaunchIntent]]:
        """The launches grouped into submissions: many fragments of one trainer at once if the scheduler offers
        that, else one by one."""
        by_trainer: dict[str, list[LaunchIntent]] = {}
        for launch in launches:
            by_trainer.setdefault(launch.trainer_id, []).append(launch)
        for group in by_trainer.values():
            most = 1
            if isinstance(self._scheduler, ArrayScheduler) and len(group) >= self._scheduler.array_from:
                most = self._scheduler.array_most
            for begin in range(0, len(group), most):
                yield group[begin : begin + most]

    def _submit(self, group: Sequence[LaunchIntent], snapshot: Snapshot) -> None:
        """Submit one trainer's fragments to nodes that were idle in the snapshot, and record for each fragment
        what came of it. If a hold has begun, the scheduler has told a fragment to leave since then, or has
        refused two submissions of the trainer, nothing is submitted and the fragments are recorded as not
        started."""
        nodes = [each.node for each in group]
        configs: list[FragmentConfig] = []
        with self._lease.writing() as session:
            trainer = session.get_one(Trainer, group[0].trainer_id)
            # Checked again: the plan may be older.
            is_wanted = not self._is_held(session) and not _taken_since(session, snapshot.taken_at)
            if is_wanted and launch_records.may_launch(session, trainer, nodes, snapshot, clock.now()):
                configs = [self._configs.make(each.fragment, trainer, each.node, each.address) for each in group]
        job_ids: Mapping[str, str] = {}
        refused = ""
        try:
            job_ids = self._start(configs)
        except SubmissionRefused as error:
            refused = str(error)
        except SchedulerError as error:
            _log.info("fragments on %s were not started: %s", ", ".join(nodes), error)
        answered_at = clock.now()  # a submission may have taken long
        with self._lease.writing() as session:
            for launch in group:
                with about(trainer=launch.trainer_id, fragment=launch.fragment):
                    self._settle(session, launch.fragment, job_ids.get(launch.fragment), answered_at)
            trainer = session.get_one(Trainer, group[0].trainer_id)
            if refused:
                launch_records.note_refusal(session, trainer, nodes, snapshot, refused, answered_at)
            elif job_ids:
                launch_records.note_acceptance(trainer, [e.node for e in group if e.fragment in job_ids])

    def _is_held(self, session: Session) -> bool:
        return self.is_closed or hold.current(session) is not None

    def _start(self, configs: Sequence[FragmentConfig]) -> Mapping[str, str]:
        if len(configs) > 1:
            assert isinstance(self._scheduler, ArrayScheduler)
            return self._scheduler.submit_any(configs)
        return {config.fragment: self._scheduler.submit(config) for config in configs}

    def _settle(self, session: Session, fragment_id: str, job_id: str | None, now: float) -> None:
        """Record the outcome of a submission. Without a job id it failed, as when the node was taken meanwhile;
        a later plan tries again."""
        fragment = session.get_one(Fragment, fragment_id)
        if fragment.state == FragmentState.ENDED:
            if job_id is not None:
                self._scheduler.cancel(fragment_id)
            return
        fragment.job_id = job_id
        if job_id is None:
            fragment.cause = "never started"
            end_fragment(session, fragment, now)
            return
        fragment.state = FragmentState.LIVE
        trainer = session.get_one(Trainer, fragment.trainer_id)
        event_log.record(
            session, "fragment.launched", trainer.name, f"{fragment.node}: launched", node=fragment.node
        )

    def cancel(self, fragments: list[str]) -> None:
        """Tell the scheduler to end the jobs of these fragments. Does nothing in a dry run."""
        if self._dry_run:
            return
        for fragment in dict.fromkeys(fragments):
            self._scheduler.cancel(fragment)

    def orphans(self, session: Session, snapshot: Snapshot) -> list[str]:
        """Ids of our jobs that have no live fragment in the database. A crash left them behind, or a scheduler
        accepted them and its answer was lost."""
        live = session.scalars(select(Fragment.id).where(Fragment.is_live))
        expected = set(live) | self.submissions.under_way()
        return [job.fragment for job in snapshot.own_jobs if job.fragment not in expected]


def _taken_since(session: Session, seen_at: float) -> bool:
    """Whether the scheduler has told any live fragment to leave since a snapshot that was taken at `seen_at`.

    The foreground job that the fragment makes room for may also start on nodes that are idle in the snapshot, so
    nothing is launched on the word of the snapshot.
    """
    rows = session.execute(
        select(Report.body)
        .join(Fragment, Fragment.id == Report.fragment_id)
        .where(Fragment.is_live, Report.received_at > seen_at)
    ).scalars()
    return any((body.signalled_at or 0.0) > seen_at for body in rows)


def _release(session: Session, grants: dict[str, str], snapshot: Snapshot, now: float) -> None:
    """Release each fragment whose node the plan no longer grants to its trainer, unless the scheduler itself
    takes the node. One that reaches its time limit soon trains on until all that its trainer is granted is
    ready: its successor, too. None leaves a node on which nothing may begin yet: that would stand idle, and the
    next plan, which could not count on it, would take another."""
    live = live_fragments(session)
    begun = [each for each in live if each.ready_at is not None and not each.released and not each.cause]
    ready = {slot for each in begun for slot in each.slots}
    unready = {trainer for node, trainer in grants.items() if node not in ready}
    ending = endings(session, snapshot, now)
    for fragment in live:
        node = snapshot.node(fragment.node)
        taken = node is not None and node.state is not NodeState.HOLE
        is_granted = all(grants.get(slot) == fragment.trainer_id for slot in fragment.slots)
        is_closed = node_of(fragment.node) in snapshot.handing_over
        if fragment.released or taken or is_granted or is_closed:
            continue
        if fragment.node in ending and fragment.trainer_id in unready:
            continue
        release(fragment, session.get_one(Trainer, fragment.trainer_id))


def _intend(
    session: Session, plan_id: int, grants: dict[str, str], snapshot: Snapshot, now: float
) -> list[LaunchIntent]:
    """Add a fragment's row for each node in `grants` (node -> trainer id) that is idle and free of our jobs, or
    for as many slots together as the trainer's fragments have; returns the launches to submit once the caller has
    committed the rows. None while the scheduler begins no job of ours."""
    if snapshot.closed:
        return []
    names = [fragment.node for fragment in live_fragments(session)]
    names += [job.node for job in snapshot.own_jobs if job.node is not None]
    busy = {slot for name in names for slot in slots_in(name)}
    free: dict[str, list[Node]] = {}
    for name, trainer_id in grants.items():
        node = snapshot.node(name)
        if name not in busy and node is not None and node.state is NodeState.HOLE:
            free.setdefault(trainer_id, []).append(node)
    launches = []
    for trainer_id, bundle in _bundles(session, free, snapshot):
        trainer, name = session.get_one(Trainer, trainer_id), bundle_name([node.name for node in bundle])
        if not launch_records.may_launch(session, trainer, [name], snapshot, now):
            continue
        launch = LaunchIntent(str(uuid.uuid4()), trainer_id, name, bundle[0].address)
        session.add(
            Fragment(
                id=launch.fragment,
                trainer_id=trainer_id,
                node=name,
                plan_id=plan_id,
                state=FragmentState.INTENDED,
                launched_at=now,
            )
        )
        launches.append(launch)
    idle_time.note_launches(session, [slot for launch in launches for slot in slots_in(launch.node)], now)
    return launches


def _bundles(
    session: Session, free: Mapping[str, Sequence[Node]], snapshot: Snapshot
) -> Iterator[tuple[str, Sequence[Node]]]:
    """(trainer's id, nodes) for each fragment that can be launched on the nodes that are `free` for each
    trainer."""
    for trainer_id, nodes in free.items():
        slots = session.get_one(Trainer, trainer_id).slots_per_fragment
        yield from ((trainer_id, bundle) for bundle in in_bundles(nodes, snapshot.nodes, slots))
