"""Membership: reads the agents' reports, updates the trainers' states, and publishes their next generations."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import event, func, select
from sqlalchemy.orm import Session

from oakum_service.control.chart_points import record_idle
from oakum_service.control.decide import Decision, decide, is_unplanned
from oakum_service.control.endings import end
from oakum_service.control.fragment_view import SAID_GOODBYE, Known, Late, Membership, view
from oakum_service.control.report_reader import ReportReader
from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import GenerationRecord, Trainer, trainers_of
from oakum_service.documents.time_account import TimeAccount
from oakum_service.logs.fields import about
from oakum_service.states import LIVE_STATES, TimeUse, TrainerState
from oakum_solver.exploration import Exploration
from oakum_worker.protocol import FragmentReport, Phase

_ON_ITS_WAY = (Phase.WARMING, Phase.READY)
_FragmentRow = tuple[Fragment, Report | None]


class MembershipUpdater:
    """Turns agents' reports into trainers' states and generations. Keeps in memory only which reports it has
    read."""

    def __init__(
        self,
        regroup_timeout_s: float,
        warm_up_timeout_s: float,
        exploration: Exploration = Exploration(share=0.0),
    ) -> None:
        self._regroup_timeout_s = regroup_timeout_s
        self._warm_up_timeout_s = warm_up_timeout_s
        self._exploration = exploration
        self._reports = ReportReader(exploration)

    def begin(self) -> None:
        """Forget what was read of reports: another process may have been the controller meanwhile."""
        self._reports = ReportReader(self._exploration)

    def read_reports(self, session: Session, now: float) -> None:
        """Record what reports of live fragments say for the first time.

        To be called before fragments are marked as ended: a last report may have arrived since the last turn
        although its job is over by now.
        """
        event.listen(session, "after_rollback", self._forget, once=True)
        heard = select(Report.fragment_id, Report.sequence).join(Fragment, Fragment.id == Report.fragment_id)
        live = session.execute(heard.where(Fragment.is_live))
        news = self._reports.unread(dict(live.all()))
        rows = session.execute(
            select(Fragment, Report).join(Report, Report.fragment_id == Fragment.id).where(Fragment.id.in_(news))
        ).all()
        trainers = trainers_of(session, {fragment.trainer_id for fragment, _ in rows})
        for fragment, report in rows:
            trainer = trainers[fragment.trainer_id]
            with about(trainer=trainer.id, fragment=fragment.id):
                self._reports.read(session, trainer, fragment, report, now)

    def turn(self, session: Session, silent: list[str], now: float) -> list[str]:
        """Update every live trainer from the reports that were read; returns the fragments whose jobs have to
        be cancelled."""
        to_cancel = list(silent)
        trainers = session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES))).scalars().all()
        rows_by_trainer = _read(session)
        for trainer in trainers:
            with about(trainer=trainer.id):
                to_cancel.extend(self._turn_of(session, trainer, rows_by_trainer.get(trainer.id, []), silent, now))
        self._reports.forget_trainers_but({trainer.id for trainer in trainers})
        return to_cancel

    def _forget(self, _: Session) -> None:
        """Read all reports again after a rollback, since what was read has not been written."""
        self.begin()

    def _turn_of(
        self, session: Session, trainer: Trainer, rows: list[_FragmentRow], silent: list[str], now: float
    ) -> tuple[str, ...]:
        """Update one trainer's state, and publish its next generation if its fragments' reports call for one.
        Returns its lost members, whose jobs have to be cancelled."""
        all_fragments = [fragment for fragment, _ in rows]
        reports = {fragment.id: report.body for fragment, report in rows if report is not None}
        fragments = [fragment for fragment in all_fragments if fragment.is_live]
        self._fail_if_hung(session, trainer, [each for each in fragments if each.id in reports], now)
        _move_on(session, trainer, fragments, reports, now)
        if TrainerState(trainer.state).ended:
            return ()
        decision = self._decide(trainer, all_fragments, reports, silent, now)
        lost = () if decision is None else decision.lost
        if decision is not None:
            _publish(session, trainer, fragments, decision, now)
            _give_up([fragment for fragment in fragments if fragment.id in lost], reports)
        _move_on(session, trainer, fragments, reports, now)
        _keep_account(trainer, now, unplanned=decision is not None and is_unplanned(decision.cause))
        return lost

    def _fail_if_hung(self, session: Session, trainer: Trainer, fragments: list[Fragment], now: float) -> None:
        """End the trainer as failed if one of these fragments, which have reported, does not get ready."""
        for fragment in fragments:
            waited_s = now - fragment.launched_at
            if fragment.ready_at is None and waited_s > self._warm_up_timeout_s:
                text = (
                    f"the task was not built and loaded within {self._warm_up_timeout_s:g} s on {fragment.node}: "
                    f"see `oakum logs {trainer.name}`, or raise OAKUM_WARM_UP_TIMEOUT_S"
                )
                end(session, trainer, TrainerState.FAILED, text, now)
                return

    def _decide(
        self,
        trainer: Trainer,
        fragments: list[Fragment],
        reports: dict[str, FragmentReport],
        silent: list[str],
        now: float,
    ) -> Decision | None:
        membership = Membership(trainer.generation, trainer.members, trainer.ended_through)
        waited_s = now - trainer.published_at
        views = []
        for fragment in fragments:
            if (report := reports.get(fragment.id)) is not None:
                late = Late(
                    answer=waited_s > self._regroup_timeout_s,
                    # Twice its first start-up, which read its files without any cache.
                    recall=waited_s > max(self._regroup_timeout_s, 2 * (report.startup_s or 0.0)),
                )
                views.append(view(membership, _known(fragment, silent=fragment.id in silent), report, late))
        spec = trainer.spec
        return decide(membership, tuple(views), spec.min_nodes, spec.listed_sizes, spec.max_nodes)


def _read(session: Session) -> dict[str, list[_FragmentRow]]:
    """The fragments of each live trainer with their reports: live ones and those whose jobs ended after the
    trainer's newest generation was published, since a member may have vanished while no controller was running."""
    of_live = (
        select(Fragment, Report)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(Trainer.state.in_(LIVE_STATES))
    )
    rows_by_trainer: dict[str, list[_FragmentRow]] = {}
    # Two queries: one with both conditions would read all fragments that the trainers have ever had.
    for which in (Fragment.ended_at.is_(None), Fragment.ended_at > Trainer.published_at):
        for fragment, report in session.execute(of_live.where(which)):
            rows_by_trainer.setdefault(fragment.trainer_id, []).append((fragment, report))
    return rows_by_trainer


def _move_on(
    session: Session,
    trainer: Trainer,
    fragments: list[Fragment],
    reports: Mapping[str, FragmentReport],
    now: float,
) -> None:
    """Set the state of a trainer that has not ended: running if it has members, starting if fragments are on their
    way, else waiting."""
    if TrainerState(trainer.state).ended:
        return
    state = TrainerState.WAITING
    if trainer.members:
        state = TrainerState.RUNNING
    elif any(_is_on_its_way(fragment, reports.get(fragment.id)) for fragment in fragments):
        state = TrainerState.STARTING
    if state != trainer.state:
        _change_state(session, trainer, state, now)


def _is_on_its_way(fragment: Fragment, report: FragmentReport | None) -> bool:
    wanted = not fragment.released and not fragment.cause
    return wanted and (report is None or report.phase in _ON_ITS_WAY)


def _keep_account(trainer: Trainer, now: float, *, unplanned: bool) -> None:
    """Set what the trainer's time is spent on, which follows from its state. Only the report of a first step ends
    a cold start. Does nothing before the trainer's first start."""
    if trainer.started_at is None:
        return
    before = trainer.account or TimeAccount(began_at=now, since=now)
    account = before
    if trainer.state == TrainerState.RUNNING:
        if account.use is not TimeUse.TRAINING:
            account = account.turn_to(TimeUse.COLD_START, now)
    else:
        if account.use is TimeUse.TRAINING and unplanned:
            # Training stopped at the last step, some time before the service noticed that no member was left.
            account = account.stalled(TimeUse.LOSS, account.silent_s(now), now)
        starting = trainer.state == TrainerState.STARTING
        account = account.turn_to(TimeUse.COLD_START if starting else TimeUse.WAITING, now)
    trainer.account = account


def _known(fragment: Fragment, *, silent: bool) -> Known:
    return Known(
        id=fragment.id,
        ready_at=fragment.ready_at or 0.0,
        slots=fragment.num_slots,
        released=fragment.released,
        preempted=fragment.preempted,
        ended=fragment.state == FragmentState.ENDED,
        given_up=bool(fragment.cause),
        silent=silent,
    )


def _publish(
    session: Session, trainer: Trainer, fragments: list[Fragment], decision: Decision, now: float
) -> None:
    """Carry a decision out: write what has ended and, if the decision names members, the new generation into
    the trainer's row, from which its fragments' directives are read. Counts the rescale with its gained and
    lost nodes, and adds a row for the generation."""
    trainer.ended_through = max(trainer.ended_through, decision.ended_through)
    trainer.revision += 1
    trainer.published_at = now
    if decision.members is None:
        return
    gained = set(decision.members) - set(trainer.members)
    removed = set(trainer.members) - set(decision.members)
    released = {fragment.id for fragment in fragments if fragment.released and not fragment.preempted}
    if trainer.started_at is None:
        trainer.started_at = trainer.published_at
        trainer.account = TimeAccount(began_at=trainer.started_at, since=trainer.started_at)
    else:
        trainer.nodes_gained += _num_slots(session, trainer, gained)
    trainer.nodes_lost += _num_slots(session, trainer, removed - released - set(decision.left_out))
    trainer.rescales += bool(trainer.members)
    trainer.generation += 1
    trainer.members = decision.members
    trainer.pace = None  # that of other nodes says nothing of these
    trainer.saver, trainer.has_state = decision.saver, decision.has_state
    slots = {fragment.id: fragment.slots for fragment in fragments}
    session.add(
        GenerationRecord(
            trainer_id=trainer.id,
            number=trainer.generation,
            nodes=tuple(slot for member in decision.members for slot in slots[member]),
            cause=decision.cause,
            published_at=trainer.published_at,
        )
    )


def _num_slots(session: Session, trainer: Trainer, fragments: Collection[str]) -> int:
    """How many slots these fragments of the trainer have together, whether they still run or have ended."""
    if trainer.slots_per_fragment == 1 or not fragments:
        return len(fragments)
    return session.scalar(select(func.sum(Fragment.num_slots)).where(Fragment.id.in_(fragments))) or 0


def _give_up(fragments: list[Fragment], reports: Mapping[str, FragmentReport]) -> None:
    """Mark lost members as given up. None of them becomes a member again, whatever it reports until its job has
    ended."""
    for fragment in fragments:
        if reports[fragment.id].phase not in SAID_GOODBYE and not fragment.cause:
            fragment.cause = "lost"


def _change_state(session: Session, trainer: Trainer, state: TrainerState, now: float) -> None:
    if TrainerState.RUNNING in (state, trainer.state) and trainer.started_at is not None:
        record_idle(session, trainer, now)
    trainer.state = state
    if state != TrainerState.RUNNING:
        trainer.pace = None
    words = {
        TrainerState.WAITING: "waits for a node",
        TrainerState.STARTING: "warms up its first nodes",
        TrainerState.RUNNING: "trains",
    }
    event_log.record(session, f"trainer.{state}", trainer.name, words[state])
