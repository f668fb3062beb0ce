"""Membership: reads the agents' reports, moves trainers on, and publishes their next generations."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import event, or_, select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.control.accounts import Account
from oakum_service.control.decide import SAID_GOODBYE, Decision, FragmentView, Membership, decide, is_unplanned
from oakum_service.control.endings import end
from oakum_service.control.intake import ReportIntake
from oakum_service.db.models import Fragment, FragmentState, GenerationRecord, Report, Trainer
from oakum_service.states import LIVE_STATES, TimeUse, TrainerState
from oakum_solver.exploration import Exploration
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.spec import TrainerSpec

_MOST_CRASHES = 5
_ON_ITS_WAY = (Phase.WARMING, Phase.READY)


class MembershipKeeper:
    """Turns reports into generations. Remembers only which reports have been taken in already."""

    def __init__(
        self,
        regroup_timeout_s: float,
        warm_up_timeout_s: float,
        exploration: Exploration = Exploration(share=0.0),
    ) -> None:
        self._regroup_timeout_s = regroup_timeout_s
        self._warm_up_timeout_s = warm_up_timeout_s
        self._exploration = exploration
        self._intake = ReportIntake(exploration)

    def hear(self, session: Session) -> None:
        """Take in what live trainers' fragments say for the first time.

        Before any is marked as ended: last words may come since the last turn, and the job be over by this one.
        """
        event.listen(session, "after_rollback", self._forget, once=True)
        heard = select(Report.fragment_id, Report.sequence).join(Fragment, Fragment.id == Report.fragment_id)
        live = session.execute(heard.where(Fragment.state != FragmentState.ENDED))
        news = self._intake.news_of(dict(live.all()))
        rows = session.execute(
            select(Trainer, Fragment, Report)
            .join(Fragment, Fragment.trainer_id == Trainer.id)
            .join(Report, Report.fragment_id == Fragment.id)
            .where(Trainer.state.in_(LIVE_STATES), Fragment.id.in_(news))
        )
        for trainer, fragment, report in rows:
            self._intake.take(session, trainer, fragment, report)

    def turn(self, session: Session, silent: list[str]) -> list[str]:
        """Bring every live trainer up to date with what was heard; returns the fragments whose jobs are to be
        cancelled."""
        to_cancel = list(silent)
        trainers = session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES))).scalars().all()
        for trainer in trainers:
            to_cancel.extend(self._turn_of(session, trainer, silent))
        self._intake.forget_trainers_but({trainer.id for trainer in trainers})
        return to_cancel

    def _forget(self, _: Session) -> None:
        """What was heard has not been written down: hear it again."""
        self._intake = ReportIntake(self._exploration)

    def _turn_of(self, session: Session, trainer: Trainer, silent: list[str]) -> tuple[str, ...]:
        """Bring one trainer up to date; returns those of its members that are lost."""
        known, reports = _read(session, trainer)
        fragments = [fragment for fragment in known if fragment.state != FragmentState.ENDED]
        self._fail_if_hung(session, trainer, fragments)
        _move_on(session, trainer, fragments, reports)
        if TrainerState(trainer.state).ended:
            return ()
        decision = self._decide(trainer, known, reports, silent)
        lost = () if decision is None else decision.lost
        if decision is not None:
            _publish(session, trainer, fragments, decision)
            _give_up([fragment for fragment in fragments if fragment.id in lost], reports)
        _move_on(session, trainer, fragments, reports)
        _keep_account(trainer, unplanned=decision is not None and is_unplanned(decision.cause))
        return lost

    def _fail_if_hung(self, session: Session, trainer: Trainer, fragments: list[Fragment]) -> None:
        for fragment in fragments:
            waited_s = time.time() - fragment.launched_at
            if fragment.ready_at is None and waited_s > self._warm_up_timeout_s:
                text = (
                    f"the task was not built and loaded within {self._warm_up_timeout_s:g} s on {fragment.node}: "
                    f"see `oakum logs {trainer.name}`, or raise OAKUM_WARM_UP_TIMEOUT_S"
                )
                end(session, trainer, TrainerState.FAILED, text)
                return

    def _decide(
        self,
        trainer: Trainer,
        fragments: list[Fragment],
        reports: dict[str, FragmentReport],
        silent: list[str],
    ) -> Decision | None:
        late = time.time() - trainer.published_at > self._regroup_timeout_s
        views = tuple(
            _view(trainer, fragment, reports[fragment.id], silent=fragment.id in silent, late=late)
            for fragment in fragments
            if fragment.id in reports
        )
        now = Membership(trainer.generation, tuple(trainer.members), trainer.over)
        return decide(now, views, TrainerSpec.model_validate(trainer.spec).min_nodes)


def _read(session: Session, trainer: Trainer) -> tuple[list[Fragment], dict[str, FragmentReport]]:
    """The trainer's fragments and what they have reported: the live ones, and those whose job has ended since the
    newest generation was published. One of these may have vanished while no controller was looking."""
    rows = session.execute(
        select(Fragment, Report)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(
            Fragment.trainer_id == trainer.id,
            or_(Fragment.state != FragmentState.ENDED, Fragment.ended_at >= trainer.published_at),
        )
    ).all()
    reports = {
        fragment.id: FragmentReport.model_validate(report.body) for fragment, report in rows if report is not None
    }
    return [fragment for fragment, _ in rows], reports


def _move_on(
    session: Session, trainer: Trainer, fragments: list[Fragment], reports: Mapping[str, FragmentReport]
) -> None:
    """The trainer's state follows from its membership and its fragments."""
    if TrainerState(trainer.state).ended:
        return
    if trainer.crashes > _MOST_CRASHES:
        text = f"{trainer.crashes} fragments in a row died without a step; see `oakum logs {trainer.name}`"
        end(session, trainer, TrainerState.FAILED, text)
        return
    state = TrainerState.WAITING
    if trainer.members:
        state = TrainerState.RUNNING
    elif any(_is_on_its_way(fragment, reports.get(fragment.id)) for fragment in fragments):
        state = TrainerState.STARTING
    if state != trainer.state:
        _change_state(session, trainer, state)


def _is_on_its_way(fragment: Fragment, report: FragmentReport | None) -> bool:
    wanted = not fragment.released and not fragment.cause
    return wanted and (report is None or report.phase in _ON_ITS_WAY)


def _keep_account(trainer: Trainer, *, unplanned: bool) -> None:
    """What the trainer's time goes into follows from its state; the first step after a cold start is heard of."""
    if trainer.started_at is None:
        return
    now = time.time()
    before = Account.of(trainer.account) or Account(began_at=now, since=now)
    account = before
    if trainer.state == TrainerState.RUNNING:
        if account.use is not TimeUse.TRAINING:
            account = account.turn_to(TimeUse.COLD_START, now)
    else:
        if account.use is TimeUse.TRAINING and unplanned:
            # Its last step ended some time before anyone knew that nobody was left to take another.
            account = account.stalled(TimeUse.LOSS, account.silent_s(now), now)
        starting = trainer.state == TrainerState.STARTING
        account = account.turn_to(TimeUse.COLD_START if starting else TimeUse.WAITING, now)
    if account is not before or not trainer.account:
        trainer.account = account.document()


def _view(
    trainer: Trainer, fragment: Fragment, report: FragmentReport, *, silent: bool, late: bool
) -> FragmentView:
    # A planned switch waits for a step to end, however long the step; an unplanned one has nothing to wait for.
    unplanned = trainer.over >= trainer.generation - 1 and trainer.over > 0
    ended = fragment.state == FragmentState.ENDED
    answered = report.generation >= trainer.generation or report.broken >= trainer.generation
    return FragmentView(
        id=fragment.id,
        phase=report.phase,
        alive=report.phase not in SAID_GOODBYE and not silent and not fragment.cause and not ended,
        released=fragment.released,
        formed=report.generation,
        broken=report.broken,
        ready_at=fragment.ready_at or 0.0,
        overdue=late and unplanned and not answered,
    )


def _publish(session: Session, trainer: Trainer, fragments: list[Fragment], decision: Decision) -> None:
    """Make a decision the word that the trainer's fragments obey."""
    trainer.over = max(trainer.over, decision.over)
    trainer.revision += 1
    trainer.published_at = time.time()
    if decision.members is None:
        return
    gained = set(decision.members) - set(trainer.members)
    left = set(trainer.members) - set(decision.members)
    released = {fragment.id for fragment in fragments if fragment.released and not fragment.preempted}
    if trainer.started_at is None:
        trainer.started_at = trainer.published_at
        trainer.account = Account(began_at=trainer.started_at, since=trainer.started_at).document()
    else:
        trainer.nodes_gained += len(gained)
    trainer.nodes_lost += len(left - released)
    trainer.rescales += bool(trainer.members)
    trainer.generation += 1
    trainer.members = list(decision.members)
    trainer.closer = decision.closer
    nodes = {fragment.id: fragment.node for fragment in fragments}
    session.add(
        GenerationRecord(
            trainer_id=trainer.id,
            number=trainer.generation,
            nodes=[nodes[member] for member in decision.members],
            cause=decision.cause,
            published_at=trainer.published_at,
        )
    )


def _give_up(fragments: list[Fragment], reports: Mapping[str, FragmentReport]) -> None:
    """A member that did not answer is not taken back, whatever it says until its job has ended."""
    for fragment in fragments:
        if reports[fragment.id].phase not in SAID_GOODBYE and not fragment.cause:
            fragment.cause = "lost"


def _change_state(session: Session, trainer: Trainer, state: TrainerState) -> None:
    trainer.state = state
    words = {
        TrainerState.WAITING: "waits for a node",
        TrainerState.STARTING: "warms up its first nodes",
        TrainerState.RUNNING: "trains",
    }
    journal.record(session, f"trainer.{state}", trainer.name, words[state])
