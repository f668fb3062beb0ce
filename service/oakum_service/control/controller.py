"""The controller: its loops over one database, which run while this process holds the lease.

The membership loop is short and answers every report and every change of the cluster at once, because a node that
has to leave waits for the answer. The planning loop may take as long as the solver may. Its plan is carried out
only while its snapshot is fresh, and the next turn corrects it. Two more loops delete old rows and send notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from oakum_service import clock, instruments
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control.chart_points import record_gap
from oakum_service.control.endings import cancel_requested
from oakum_service.control.execute import Executor
from oakum_service.control.giving_back import release_wanted
from oakum_service.control.limits import LimitWatch
from oakum_service.control.membership import MembershipUpdater
from oakum_service.control.meter import ClusterMeter
from oakum_service.control.node_preference import NodePreferenceTracker
from oakum_service.control.observe import (
    Observation,
    end_fragments,
    newest_observation,
    place_fragments,
    write_snapshot,
)
from oakum_service.control.planner import Planner
from oakum_service.control.retention import EVERY_S, HISTORY_S, forget, remove_folders
from oakum_service.control.scheduler_news import note_scheduler
from oakum_service.control.usage import complete_hours
from oakum_service.control.waiting_times import WaitingTimes
from oakum_service.db import event_log
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import TERM_S, LeaseHolder
from oakum_service.db.loaded_rows import keep_loaded
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.writability import Writability
from oakum_service.errors import LeaseLost, SchedulerError
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.fragments.logs import last_lines
from oakum_service.logs.fields import about
from oakum_service.node_history.stored_hours import hours_to_store
from oakum_service.notices.sender import EVERY_S as SEND_EVERY_S
from oakum_service.notices.sender import NoticeSender
from oakum_service.orders import hold, pause
from oakum_service.orders.live_settings import current
from oakum_service.schedulers.port import Scheduler, too_old_s
from oakum_service.standing import ActiveHold, hold_sentence
from oakum_service.states import LIVE_STATES
from oakum_service.turn_clock import TurnClock
from oakum_solver.wording import counted

_log = logging.getLogger("oakum")
_TAKEN_OVER = "another controller has taken over; this process only answers requests"
Result = TypeVar("Result")
_AGAIN_S = 4.0
"""Seconds until a controller that could not begin tries again; less than the lease's term."""
_REST, _LONGEST_REST_S = 0.5, 0.5
"""After a turn of the membership loop: share of the time that it took, and seconds."""
_LOG_LINES = 60
"""Lines of the log of a fragment that never reported among which the reason is looked for."""
_LOOK_S = 1.0
"""Seconds between two looks at a lease that another process holds."""


class Controller:
    """Runs the service's loops: observe the cluster, decide memberships, plan, execute, tidy up, send notices."""

    def __init__(
        self,
        settings: Settings,
        sessions: Sessions,
        readers: Sessions,
        scheduler: Scheduler,
        configs: FragmentConfigs,
        lease: LeaseHolder,
        news_for_controller: ChangeSignal,
        news_for_readers: ChangeSignal,
        writability: Writability | None = None,
        turns: TurnClock | None = None,
    ) -> None:
        """`news_for_controller` wakes this controller; the controller notifies `news_for_readers`, which wakes
        whoever waits for directives or events. `turns` gets to know of every turn."""
        self._turns = turns or TurnClock()
        self._writability = writability or Writability("the database")
        self._settings = self._now = settings
        self._sessions = sessions
        self._readers = readers
        self._scheduler = scheduler
        self._lease = lease
        self._planner = Planner(settings, readers, lease)
        self._executor = Executor(lease, scheduler, configs, dry_run=settings.dry_run)
        self._membership = MembershipUpdater(
            settings.regroup_timeout_s, settings.warm_up_timeout_s, settings.exploration
        )
        self._waits = WaitingTimes(settings.starvation_guard)
        self._notices = NoticeSender(settings.notices, configs.url, readers, lease)
        self._preference = NodePreferenceTracker()
        self._news_for_controller = news_for_controller
        self._news_for_readers = news_for_readers
        self._replan = ChangeSignal()
        self._closing = ChangeSignal()
        self._observed: Observation | None = None
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="controller")
        self._watching = False
        self._listening_since = self._turned_at = self._starts_since = clock.now()
        self._held: ActiveHold | None = None
        self._meter = ClusterMeter()
        self._limits = LimitWatch()
        self._stopping = self._is_turning = False
        self._folders_to = 0.0

    async def run(self) -> None:
        """Run the loops until `stop`. They begin once this process holds the lease and the scheduler has
        answered, and begin again after the lease was lost and regained."""
        while not self._stopping:
            self._turns.forget()
            if not await self._has_taken_over():
                if self._watching and not self._lease.is_held:
                    await self._stand_down()
                await self._news_for_controller.wait(self._news_for_controller.version, _LOOK_S)
                continue
            self._listening_since = self._turned_at = clock.now()
            self._waits.begin()
            self._meter.begin()
            self._preference.begin()
            self._membership.begin()
            self._observed = None
            if not self._watching:
                await self._in_thread(lambda: self._scheduler.start(self._news_for_controller.notify))
                self._watching = True
            if not await self._has_begun():
                await self._news_for_controller.wait(self._news_for_controller.version, _AGAIN_S)
                continue
            try:
                async with asyncio.TaskGroup() as loops:
                    news = self._news_for_controller
                    loops.create_task(self._repeat("lease", self._closing, self._renew, lambda: TERM_S / 6))
                    loops.create_task(self._repeat("membership", news, self._membership_turn, self._poll_s))
                    loops.create_task(self._repeat("planning", self._replan, self._planning_turn, self._poll_s))
                    loops.create_task(self._repeat("tidying", self._closing, self._tidy, lambda: EVERY_S))
                    loops.create_task(
                        self._repeat("notices", self._closing, self._notices.turn, lambda: SEND_EVERY_S)
                    )
            except* LeaseLost:
                _log.warning(_TAKEN_OVER)
                await self._stand_down()

    async def _stand_down(self) -> None:
        """Have the adapter stop watching: it cancels jobs, which is for the present controller to do, and what it
        knows grows old until this process is the controller again."""
        if not self._scheduler.ends_with_service:
            await self._in_thread(lambda: self._scheduler.stop(leave_fragments=True))
            self._watching = False

    async def _has_taken_over(self) -> bool:
        """Take the lease or renew it. Returns False if another process holds it, or if the database does not
        answer or a file cannot be written; the caller tries again later."""
        try:
            return await self._in_thread(self._lease.acquire)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("this process cannot become the controller: %s", error)
            return False

    async def _has_begun(self) -> bool:
        """Do the work of a controller's start. Returns False if the scheduler or the database does not answer yet,
        or if another controller has taken over meanwhile; the caller tries again later."""
        beginning = asyncio.create_task(self._in_thread(self._begin))
        # The scheduler's first answer may take longer than the lease's term.
        while not (await asyncio.wait({beginning}, timeout=TERM_S / 6))[0]:
            with suppress(SQLAlchemyError, OSError):
                if self._lease.needs_renewal:
                    await self._in_thread(self._lease.acquire)
        try:
            await beginning
        except SchedulerError as error:
            _log.warning("the scheduler: %s", error)
            return False
        except SQLAlchemyError as error:
            _log.warning("the controller cannot begin: %s", error)
            return False
        except LeaseLost:
            _log.warning(_TAKEN_OVER)
            await self._stand_down()
            return False
        return True

    async def stop(self) -> None:
        """End the loops."""
        self._stopping = True
        self._news_for_controller.close()
        self._replan.close()
        self._closing.close()
        self._notices.stop()

    async def drain(self, timeout_s: float) -> None:
        """Tell every fragment to checkpoint and leave, and launch none; return when all have left or after
        `timeout_s` seconds."""
        self._executor.is_closed = True
        try:
            await self._in_thread(self._release_all)
        except LeaseLost:
            return  # another controller is in charge of the fragments
        self._news_for_controller.notify()
        deadline_s = clock.steady_s() + timeout_s
        while clock.steady_s() < deadline_s:
            version = self._news_for_readers.version
            if not await self._in_thread(self._num_live):
                return
            await self._news_for_readers.wait(version, 0.2)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in a thread of the controller's own pool and return its result. So it never waits for
        threads that serve API requests."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _repeat(
        self, loop: str, changes: ChangeSignal, turn: Callable[[], Awaitable[None]], every_s: Callable[[], float]
    ) -> None:
        """Call `turn` whenever `changes` counts a change, and at least every `every_s()` seconds, until the
        controller stops. Errors are counted as those of `loop` and logged, except `LeaseLost`, which is raised."""
        while not self._stopping:
            version = changes.version
            try:
                await turn()
            except LeaseLost:
                raise
            except SchedulerError as error:
                instruments.TURN_FAILURES.labels(loop).inc()
                _log.warning("the scheduler: %s", error)
            except Exception:
                instruments.TURN_FAILURES.labels(loop).inc()
                # A locked database or a full disk passes, and meanwhile nodes still have to be given back.
                if self._writability.fault is None:  # otherwise that fault was logged already
                    _log.exception("a turn of the control loop failed; the next one tries again")
            await changes.wait(version, every_s())

    async def _tidy(self) -> None:
        with instruments.TURN_S.labels("tidying").time():
            await self._in_thread(self._forget)

    def _forget(self) -> None:
        """Add up the hours that are over, and delete what is too old, in short transactions: agents and hooks wait
        for each of them."""
        now = clock.now()
        with self._readers.begin() as session:
            hours = complete_hours(session, now)
            observed = newest_observation(session)
            nodes = [] if observed is None else [node.name for node in observed.snapshot.nodes]
            pictures = hours_to_store(session, nodes, now - HISTORY_S, now)
        with self._lease.writing() as session:
            session.add_all([*hours, *pictures])
        is_all = False
        while not is_all and not self._stopping:
            with self._lease.writing() as session:
                forgotten = forget(session, clock.now(), self._folders_to)
            self._folders_to, is_all = forgotten.folders_to, forgotten.is_all
            remove_folders(self._settings.fragments_dir, forgotten.fragments)

    async def _renew(self) -> None:
        """Renew the lease between two turns. During one, what it writes does: a turn that hangs loses it."""
        if not self._is_turning and self._lease.needs_renewal:
            await self._in_thread(self._renew_or_lose)

    def _renew_or_lose(self) -> None:
        if not self._lease.acquire():
            raise LeaseLost(f"{self._lease.name} could not renew the controller's lease")

    async def _membership_turn(self) -> None:
        began_s, self._is_turning = clock.steady_s(), True
        try:
            with instruments.TURN_S.labels("membership").time():
                needs_plan = await self._in_thread(self._observe_and_decide)
        finally:
            self._is_turning = False
        self._turns.note_turn()
        if needs_plan:
            self._replan.notify()
        # Where there is always news, one turn after the other would leave no time for others to write.
        await asyncio.sleep(min(_LONGEST_REST_S, _REST * (clock.steady_s() - began_s)))

    async def _planning_turn(self) -> None:
        await asyncio.sleep(self._settings.debounce_s)
        if not self._executor.is_closed and self._held is None:
            with instruments.TURN_S.labels("planning").time():
                await self._in_thread(self._plan_and_execute)

    def _begin(self) -> None:
        """Bring the database and the scheduler together at a controller's start: read the reports, end fragments
        whose jobs are gone, cancel jobs that have no live fragment, and record the start.

        Raises `SchedulerError` where the scheduler does not answer, and `LeaseLost` if another controller has
        taken over.
        """
        snapshot = self._scheduler.snapshot()
        now = clock.now()
        with self._lease.writing() as session:
            # What has started while no controller looked has started under Oakum as well.
            self._starts_since = self._lease.snapshot_at(session) or self._starts_since
            record_gap(session, now)
            place_fragments(session, snapshot)
            self._membership.read_reports(session, now)
            end_fragments(
                session,
                snapshot,
                self._settings.heartbeat_timeout_s,
                now=now,
                listening_since=self._listening_since,
                log_of=self._log_of,
            )
            orphans = self._executor.orphans(session, snapshot)
            self._executor.cancel(orphans)
            adopted = len(snapshot.own_jobs) - len(orphans)
            event_log.record(
                session,
                "service.started",
                self._scheduler.name,
                f"is watched by controller {self._lease.name}: {counted(len(snapshot.nodes), 'node')}; "
                f"{counted(adopted, 'fragment')} adopted, {counted(len(orphans), 'orphan')} cancelled",
            )

    def _observe_and_decide(self) -> bool:
        """One turn of the membership loop: read the scheduler, the reports and the hold, and publish what follows.
        Returns whether a new plan is needed. Raises `LeaseLost` where another process holds the lease."""
        self._renew_or_lose()
        now = clock.now()
        was_stopped = now - self._turned_at > self._settings.heartbeat_timeout_s / 2
        if was_stopped:
            # This process was stopped for a while and received no reports meanwhile.
            self._listening_since = now
        self._turned_at = now
        # Until the rows are read: a submission may begin or end while the scheduler or the database is waited for.
        with self._executor.submissions.watched() as submitting:
            snapshot = self._scheduler.snapshot().with_starts_since(max(self._starts_since, now - HISTORY_S))
            with self._lease.writing() as session:
                keep_loaded(session)
                if was_stopped:
                    record_gap(session, now)
                self._now = current(session, self._settings)
                before = self._fingerprint(session)
                observed = self._preference.ordered(session, write_snapshot(session, snapshot, self._observed))
                note_scheduler(session, self._lease, self._scheduler, snapshot)
                place_fragments(session, snapshot)
                self._membership.read_reports(session, now)
                silent = end_fragments(
                    session,
                    snapshot,
                    self._settings.heartbeat_timeout_s,
                    submitting=submitting,
                    now=now,
                    listening_since=self._listening_since,
                    warm_up_timeout_s=self._settings.warm_up_timeout_s,
                    log_of=self._log_of,
                )
                cancel_requested(session, now)
                release_wanted(session, snapshot)
                held = hold.held(session)
                if held is not None:
                    hold.release_all(session)
                pause.release_paused(session)
                to_cancel = self._membership.turn(session, silent, now)
                to_cancel += self._executor.orphans(session, snapshot)
                self._waits.turn(session, now)
                self._meter.read(session, snapshot, now)
                self._limits.read(session, self._now, now)
                changed = self._fingerprint(session) != before
        stale = self._observed is None or observed.number != self._observed.number
        self._observed = observed
        self._take_hold(held)
        self._executor.cancel(to_cancel)
        self._news_for_readers.notify()
        return changed or stale

    def _log_of(self, fragment: str) -> Sequence[str]:
        return last_lines(self._settings.fragments_dir, fragment, _LOG_LINES)

    def _take_hold(self, held: ActiveHold | None) -> None:
        """Remember the hold, during which nothing is planned, and log its beginning and its end."""
        if held is not None and held != self._held:
            _log.warning("%s", hold_sentence(held))
        elif held is None and self._held is not None:
            _log.warning("The hold has ended: the planner launches again.")
        self._held = held
        instruments.HELD.set(held is not None)

    def _fingerprint(self, session: Session) -> tuple[object, ...]:
        """The trainers and fragments that a plan depends on: a change calls for a new plan."""
        trainers = session.execute(
            select(Trainer.id, Trainer.state, Trainer.pause).where(Trainer.state.in_(LIVE_STATES))
        )
        fragments = session.execute(select(Fragment.id).where(Fragment.is_live)).scalars()
        return (*sorted(map(tuple, trainers)), *sorted(fragments))

    def _plan_and_execute(self) -> None:
        observed = self._observed
        if observed is None or self._is_stale(observed):
            return
        plan_id = self._planner.plan(observed)
        if plan_id is None or self._is_stale(observed):
            return  # the solver took too long: the next turn plans on a newer snapshot
        with about(plan=plan_id):
            launched = self._executor.carry_out(plan_id, observed)
        if launched:
            self._news_for_controller.notify()
        self._news_for_readers.notify()

    def _poll_s(self) -> float:
        """Seconds between two turns without an event, as the settings are now."""
        return self._now.poll_s

    def _is_stale(self, observed: Observation) -> bool:
        """Whether the snapshot is too old to launch anything on it."""
        # A plan would take nodes from trainers, and while the scheduler is silent nobody could be given them.
        if self._scheduler.silence() is not None:
            return True
        return clock.now() - observed.snapshot.taken_at > too_old_s(self._scheduler, self._poll_s())

    def _release_all(self) -> None:
        with self._lease.writing() as session:
            number = hold.release_all(session)
            leave = "1 fragment checkpoints" if number == 1 else f"{number} fragments checkpoint"
            event_log.record(session, "service.stopping", self._scheduler.name, f"is left: {leave} and leave")

    def _num_live(self) -> int:
        with self._readers.begin() as session:
            count = session.execute(select(func.count()).select_from(Fragment).where(Fragment.is_live))
            return count.scalar_one()
