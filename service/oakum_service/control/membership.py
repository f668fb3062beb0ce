"""Membership: reads the agents' reports, moves trainers on, and publishes their next generations."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.control.decide import SAID_GOODBYE, Decision, FragmentView, Membership, decide
from oakum_service.control.observe import count_crash
from oakum_service.control.rates import RateKeeper
from oakum_service.db.models import (
    Fragment,
    FragmentState,
    GenerationRecord,
    ProgressSample,
    Report,
    Trainer,
)
from oakum_service.states import LIVE_STATES, TrainerState
from oakum_solver.exploration import Exploration
from oakum_worker.protocol import Failure, FragmentReport, Phase, Progress, Switch
from oakum_worker.spec import TrainerSpec

_MOST_CRASHES = 5
_MOST_FAILURES = 3


class MembershipKeeper:
    """Turns reports into generations. Remembers only which reports it has already taken in."""

    def __init__(
        self,
        regroup_timeout_s: float,
        warm_up_timeout_s: float,
        exploration: Exploration = Exploration(share=0.0),
    ) -> None:
        self._regroup_timeout_s = regroup_timeout_s
        self._warm_up_timeout_s = warm_up_timeout_s
        self._taken: dict[str, int] = {}
        self._warned: dict[str, tuple[str, ...]] = {}
        self._rates = RateKeeper(exploration)

    def turn(self, session: Session, silent: list[str]) -> list[str]:
        """Bring every live trainer up to date; returns the fragments whose jobs are to be cancelled."""
        to_cancel = list(silent)
        self._forget_ended(session)
        trainers = session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES))).scalars().all()
        self._rates.forget_all_but({trainer.id for trainer in trainers})
        for trainer in trainers:
            rows = session.execute(
                select(Fragment, Report)
                .outerjoin(Report, Report.fragment_id == Fragment.id)
                .where(Fragment.trainer_id == trainer.id, Fragment.state != FragmentState.ENDED)
            ).all()
            reports = {
                fragment.id: FragmentReport.model_validate(report.body)
                for fragment, report in rows
                if report is not None
            }
            fragments = [fragment for fragment, _ in rows]
            for fragment in fragments:
                if fragment.id in reports:
                    self._take_in(session, trainer, fragment, reports[fragment.id])
            self._fail_if_hung(session, trainer, fragments)
            self._move_on(session, trainer, fragments)
            if TrainerState(trainer.state).ended:
                continue
            decision = self._decide(trainer, fragments, reports, silent)
            if decision is not None:
                _publish(session, trainer, fragments, decision)
                _give_up([fragment for fragment in fragments if fragment.id in decision.lost], reports)
                to_cancel.extend(decision.lost)
            self._move_on(session, trainer, fragments)
        return to_cancel

    def _forget_ended(self, session: Session) -> None:
        live = set(session.execute(select(Fragment.id).where(Fragment.state != FragmentState.ENDED)).scalars())
        self._taken = {fragment: taken for fragment, taken in self._taken.items() if fragment in live}
        self._warned = {fragment: warned for fragment, warned in self._warned.items() if fragment in live}

    def _take_in(self, session: Session, trainer: Trainer, fragment: Fragment, report: FragmentReport) -> None:
        """Whatever a report says for the first time."""
        before = self._taken.get(fragment.id, -1)
        if report.sequence <= before:
            return
        self._taken[fragment.id] = report.sequence
        now = time.time()
        if fragment.ready_at is None and report.startup_s is not None:
            fragment.ready_at = now
            trainer.startup_s = report.startup_s
            journal.record(
                session, "fragment.ready", trainer.name, f"{fragment.node}: ready after {report.startup_s:.1f} s"
            )
        if fragment.training_at is None and report.generation > 0:
            fragment.training_at = now
        self._take_warnings(session, trainer, fragment, report)
        if report.progress is not None:
            _take_progress(session, trainer, report.progress)
            self._rates.take(session, trainer.id, report.progress)
        for switch in report.switches:
            _take_switch(session, trainer, switch)
        if report.failure is not None and not fragment.cause:
            fragment.cause = "failed"
            _take_failure(session, trainer, report.failure)
        elif report.phase is Phase.FINISHED and trainer.state != TrainerState.FINISHED:
            _end(session, trainer, TrainerState.FINISHED, _finish_message(trainer))

    def _take_warnings(
        self, session: Session, trainer: Trainer, fragment: Fragment, report: FragmentReport
    ) -> None:
        """What went wrong without stopping training is the trainer's condition until its next checkpoint."""
        known = self._warned.get(fragment.id, ())
        for warning in report.warnings:
            if warning not in known:
                trainer.message = warning
                journal.record(session, "trainer.warning", trainer.name, f"{fragment.node}: {warning}")
        self._warned[fragment.id] = report.warnings

    def _fail_if_hung(self, session: Session, trainer: Trainer, fragments: list[Fragment]) -> None:
        for fragment in fragments:
            waited_s = time.time() - fragment.launched_at
            if fragment.ready_at is None and waited_s > self._warm_up_timeout_s:
                text = (
                    f"the task was not built and loaded within {self._warm_up_timeout_s:g} s on {fragment.node}: "
                    f"see `oakum logs {trainer.name}`, or raise OAKUM_WARM_UP_TIMEOUT_S"
                )
                _end(session, trainer, TrainerState.FAILED, text)
                return

    def _move_on(self, session: Session, trainer: Trainer, fragments: list[Fragment]) -> None:
        """The trainer's state follows from its membership and its fragments."""
        if TrainerState(trainer.state).ended:
            return
        if trainer.crashes > _MOST_CRASHES:
            text = f"{trainer.crashes} fragments in a row died without a step; see `oakum logs {trainer.name}`"
            _end(session, trainer, TrainerState.FAILED, text)
            return
        state = TrainerState.WAITING
        if trainer.members:
            state = TrainerState.RUNNING
        elif any(not fragment.released for fragment in fragments):
            state = TrainerState.STARTING
        if state != trainer.state:
            _change_state(session, trainer, state)

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


def _view(
    trainer: Trainer, fragment: Fragment, report: FragmentReport, *, silent: bool, late: bool
) -> FragmentView:
    # A planned switch waits for a step to end, however long the step; an unplanned one has nothing to wait for.
    unplanned = trainer.over >= trainer.generation - 1 and trainer.over > 0
    answered = report.generation >= trainer.generation or report.broken >= trainer.generation
    return FragmentView(
        id=fragment.id,
        phase=report.phase,
        alive=report.phase not in SAID_GOODBYE and not silent and not fragment.cause,
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
    released = {fragment.id for fragment in fragments if fragment.released}
    if trainer.started_at is None:
        trainer.started_at = time.time()
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


def _take_progress(session: Session, trainer: Trainer, progress: Progress) -> None:
    last = Progress.model_validate(trainer.progress) if trainer.progress else None
    if last == progress:
        return
    if last is None or progress.step >= last.step:
        size = str(progress.nodes)
        done = progress.step - (last.step if last else 0)
        trainer.steps_at_size = trainer.steps_at_size | {size: trainer.steps_at_size.get(size, 0) + done}
    if progress.checkpoint_step is not None and (last is None or progress.checkpoint_step != last.checkpoint_step):
        trainer.message = ""
        journal.record(
            session, "checkpoint.written", trainer.name, f"durable checkpoint of step {progress.checkpoint_step}"
        )
    if progress.step > trainer.crashed_step:
        trainer.crashes = 0
    trainer.progress = progress.model_dump()
    session.add(
        ProgressSample(
            trainer_id=trainer.id,
            at=time.time(),
            step=progress.step,
            nodes=progress.nodes,
            loss=progress.loss,
            samples_per_s=progress.samples_per_s,
        )
    )


def _take_switch(session: Session, trainer: Trainer, switch: Switch) -> None:
    row = session.get(GenerationRecord, (trainer.id, switch.generation))
    if row is None or row.formed_at is not None:
        return
    row.formed_at, row.step, row.stall_s, row.source = time.time(), switch.step, switch.stall_s, switch.source
    if switch.stall_s is not None:
        trainer.stall_s += switch.stall_s
        trainer.last_stall_s = switch.stall_s
    known = {"survivor": "goes on", "checkpoint": "resumes from its checkpoint", "scratch": "begins"}
    where = known.get(switch.source, f"goes on from {switch.source}")
    stall = "" if switch.stall_s is None else f", stall {switch.stall_s:.2f} s"
    journal.record(
        session,
        "generation.formed",
        trainer.name,
        f"generation {switch.generation} ({row.cause}): {where} at step {switch.step} "
        f"on {len(row.nodes)} node{'s' * (len(row.nodes) != 1)}{stall}",
        generation=switch.generation,
        nodes=row.nodes,
        stall_s=switch.stall_s,
    )


def _take_failure(session: Session, trainer: Trainer, failure: Failure) -> None:
    """A task that cannot be built will not be built by another try; a failing step may be the node's fault."""
    trainer.message = failure.message
    if failure.stage == "load":
        _end(session, trainer, TrainerState.FAILED, failure.message)
        return
    count_crash(trainer, failure.step)
    if trainer.crashes >= _MOST_FAILURES:
        text = f"training failed {trainer.crashes} times at step {failure.step}: {failure.message}"
        _end(session, trainer, TrainerState.FAILED, text)


def _finish_message(trainer: Trainer) -> str:
    progress = trainer.progress
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in progress.get("metrics", {}).items())
    loss = "" if progress.get("loss") is None else f", loss {progress['loss']:.4g}"
    return f"finished after {progress.get('step', 0)} steps{loss}{', ' + metrics if metrics else ''}"


def _change_state(session: Session, trainer: Trainer, state: TrainerState) -> None:
    trainer.state = state
    words = {
        TrainerState.WAITING: "waits for a node",
        TrainerState.STARTING: "warms up its first nodes",
        TrainerState.RUNNING: "trains",
    }
    journal.record(session, f"trainer.{state}", trainer.name, words[state])


def _end(session: Session, trainer: Trainer, state: TrainerState, message: str) -> None:
    """Nothing more will happen to the trainer: an empty generation sends its fragments away."""
    trainer.state, trainer.message, trainer.ended_at = state, message, time.time()
    if state == TrainerState.FAILED:
        trainer.over = trainer.generation
    trainer.generation += 1
    trainer.members, trainer.closer = [], None
    trainer.revision += 1
    journal.record(session, f"trainer.{state}", trainer.name, message)


def cancel_requested(session: Session) -> None:
    """End the trainers whose users do not want them any more."""
    rows = session.execute(
        select(Trainer).where(Trainer.cancel_requested.is_(True), Trainer.state.in_(LIVE_STATES))
    )
    for trainer in rows.scalars():
        _end(session, trainer, TrainerState.CANCELLED, "cancelled by its user")
