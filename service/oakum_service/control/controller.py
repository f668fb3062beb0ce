"""The controller: two loops over one database, running while this process holds the lease.

The membership loop is short and answers every report and every change of the cluster at once: a node that has
to leave waits for it. The planning loop may take as long as the solver is allowed to; what it decides is carried
out only while the snapshot is fresh, and the next turn corrects it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control import hold, journal
from oakum_service.control.endings import cancel_requested
from oakum_service.control.execute import Executor
from oakum_service.control.hub import Hub
from oakum_service.control.lease import TERM_S, LeaseHolder
from oakum_service.control.membership import MembershipKeeper
from oakum_service.control.observe import Observed, end_fragments, place_fragments, write_snapshot
from oakum_service.control.planner import Planner
from oakum_service.control.retention import EVERY_S, forget, remove_folders
from oakum_service.control.waits import WaitKeeper
from oakum_service.db.engine import Sessions
from oakum_service.db.models import Fragment, FragmentState, Trainer
from oakum_service.errors import LeaseLost, SchedulerError
from oakum_service.fragment_configs import FragmentConfigs
from oakum_service.schedulers.port import Scheduler

_log = logging.getLogger("oakum")
Result = TypeVar("Result")
_AGAIN_S = 5.0


class Controller:
    """Observes, forecasts, plans and executes."""

    def __init__(
        self,
        settings: Settings,
        sessions: Sessions,
        readers: Sessions,
        scheduler: Scheduler,
        configs: FragmentConfigs,
        lease: LeaseHolder,
        inbox: Hub,
        outbox: Hub,
    ) -> None:
        """`inbox` is raised when there is something to look at; `outbox` when others have."""
        self._settings = settings
        self._sessions = sessions
        self._readers = readers
        self._scheduler = scheduler
        self._lease = lease
        self._planner = Planner(settings, readers, lease)
        self._executor = Executor(lease, scheduler, configs, dry_run=settings.dry_run)
        self._keeper = MembershipKeeper(
            settings.regroup_timeout_s, settings.warm_up_timeout_s, settings.exploration
        )
        self._waits = WaitKeeper(settings.starvation_guard)
        self._inbox = inbox
        self._outbox = outbox
        self._replan = Hub()
        self._closing = Hub()
        self._observed: Observed | None = None
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="controller")
        self._watching = False
        self._listening_since = self._turned_at = time.time()
        self._held = False
        self._stopping = False

    async def run(self) -> None:
        """Turn both loops until `stop`; wait for the lease first, and again when it is lost."""
        while not self._stopping:
            if not await self._in_thread(self._lease.acquire):
                await self._inbox.wait(self._inbox.version, TERM_S / 3)
                continue
            self._listening_since = self._turned_at = time.time()
            self._waits.begin()
            if not self._watching:
                self._scheduler.start(self._inbox.notify)
                self._watching = True
            if not await self._has_begun():
                await self._inbox.wait(self._inbox.version, _AGAIN_S)
                continue
            try:
                async with asyncio.TaskGroup() as loops:
                    poll_s = self._settings.poll_s
                    loops.create_task(self._repeat(self._inbox, self._membership_turn, poll_s))
                    loops.create_task(self._repeat(self._replan, self._planning_turn, poll_s))
                    loops.create_task(self._repeat(self._closing, self._tidy, EVERY_S))
            except* LeaseLost:
                _log.warning("another controller has taken over; this process only answers requests")

    async def _has_begun(self) -> bool:
        """Look around for the first time; a scheduler that does not answer yet is asked again later."""
        try:
            await self._in_thread(self._begin)
        except SchedulerError as error:
            _log.warning("the scheduler: %s", error)
            return False
        return True

    async def stop(self) -> None:
        """End the loops."""
        self._stopping = True
        self._inbox.close()
        self._replan.close()
        self._closing.close()

    async def drain(self, timeout_s: float) -> None:
        """Send every fragment away with its last checkpoint, and launch none; returns when they have gone."""
        self._executor.is_closed = True
        try:
            await self._in_thread(self._release_all)
        except LeaseLost:
            return  # the fragments are another controller's by now
        self._inbox.notify()
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            seen = self._outbox.version
            if not await self._in_thread(self._num_live):
                return
            await self._outbox.wait(seen, 0.2)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in a thread of the controller's own: readers of the API must not make it wait."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _repeat(self, hub: Hub, turn: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Take a turn whenever the hub is raised, and at the latest every so many seconds."""
        while not self._stopping:
            seen = hub.version
            try:
                await turn()
            except LeaseLost:
                raise
            except SchedulerError as error:
                _log.warning("the scheduler: %s", error)
            except Exception:
                # A locked database or a full disk passes; nodes have to be given back also while it lasts.
                _log.exception("a turn of the control loop failed; the next one tries again")
            await hub.wait(seen, every_s)

    async def _tidy(self) -> None:
        await self._in_thread(self._forget)

    def _forget(self) -> None:
        with self._lease.writing() as session:
            ended = forget(session)
        remove_folders(self._settings.fragments_dir, ended)

    async def _membership_turn(self) -> None:
        if await self._in_thread(self._observe_and_decide):
            self._replan.notify()

    async def _planning_turn(self) -> None:
        await asyncio.sleep(self._settings.debounce_s)
        if not self._executor.is_closed and not self._held:
            await self._in_thread(self._plan_and_execute)

    def _begin(self) -> None:
        """What a crash may have left behind: intents whose job is unknown, jobs whose fragment is."""
        snapshot = self._scheduler.snapshot()
        with self._lease.writing() as session:
            place_fragments(session, snapshot)
            self._keeper.hear(session)
            end_fragments(
                session, snapshot, self._settings.heartbeat_timeout_s, listening_since=self._listening_since
            )
            strangers = self._executor.strangers(session, snapshot)
            self._executor.cancel(strangers)
            adopted = len(snapshot.own_jobs) - len(strangers)
            journal.record(
                session,
                "service.started",
                self._scheduler.name,
                f"controller {self._lease.name} watches {len(snapshot.nodes)} nodes; "
                f"{adopted} fragments adopted, {len(strangers)} orphans cancelled",
            )

    def _observe_and_decide(self) -> bool:
        """One short turn; returns whether a new plan is called for."""
        if not self._lease.acquire():
            raise LeaseLost(f"{self._lease.name} could not renew the controller's lease")
        now = time.time()
        if now - self._turned_at > self._settings.heartbeat_timeout_s / 2:
            # This process was stopped for a while: whoever reported meanwhile was not heard.
            self._listening_since = now
        self._turned_at = now
        submitting = frozenset(self._executor.submitting)
        snapshot = self._scheduler.snapshot()
        with self._lease.writing() as session:
            before = self._fingerprint(session)
            observed = write_snapshot(session, snapshot, self._observed)
            place_fragments(session, snapshot)
            self._keeper.hear(session)
            silent = end_fragments(
                session,
                snapshot,
                self._settings.heartbeat_timeout_s,
                submitting=submitting,
                now=now,
                listening_since=self._listening_since,
                warm_up_timeout_s=self._settings.warm_up_timeout_s,
            )
            cancel_requested(session)
            self._held = hold.current(session) is not None
            if self._held:
                hold.release_all(session)
            to_cancel = self._keeper.turn(session, silent)
            to_cancel += self._executor.strangers(session, snapshot)
            self._waits.turn(session, now)
            changed = self._fingerprint(session) != before
        stale = self._observed is None or observed.number != self._observed.number
        self._observed = observed
        self._executor.cancel(to_cancel)
        self._outbox.notify()
        return changed or stale

    def _fingerprint(self, session: Session) -> tuple[object, ...]:
        """What a plan depends on beside the nodes."""
        trainers = session.execute(select(Trainer.id, Trainer.state).order_by(Trainer.id)).all()
        live = session.execute(
            select(Fragment.id).where(Fragment.state != FragmentState.ENDED).order_by(Fragment.id)
        ).scalars()
        return (*trainers, *live)

    def _plan_and_execute(self) -> None:
        observed = self._observed
        if observed is None or self._is_stale(observed):
            return
        plan_id = self._planner.plan(observed)
        if plan_id is None or self._is_stale(observed):
            return  # the solver took its time: the next turn plans on what is true by now
        if self._executor.carry_out(plan_id, observed):
            self._inbox.notify()
        self._outbox.notify()

    def _is_stale(self, observed: Observed) -> bool:
        """Whether the snapshot is too old: nothing is launched on it any more."""
        oldest_s = 2 * self._settings.poll_s + self._scheduler.max_age_s
        return time.time() - observed.snapshot.taken_at > oldest_s

    def _release_all(self) -> None:
        with self._lease.writing() as session:
            told = hold.release_all(session)
            journal.record(
                session, "service.stopping", self._scheduler.name, f"{told} fragments checkpoint and leave"
            )

    def _num_live(self) -> int:
        with self._readers.begin() as session:
            count = session.execute(
                select(func.count()).select_from(Fragment).where(Fragment.state != FragmentState.ENDED)
            )
            return count.scalar_one()
