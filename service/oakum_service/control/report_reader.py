"""Reads agents' reports and records what each says for the first time.

A report repeats all that its agent knows and may arrive late. If two reports disagree about training, the one of
the newer generation counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service import instruments
from oakum_service.control import attempts, idle_time, launch_records
from oakum_service.control.attempts import TrainerCrash
from oakum_service.control.decide import is_unplanned
from oakum_service.control.endings import diverge, end, finish, keep_checkpoint
from oakum_service.control.ledger import charge
from oakum_service.control.rates import RateRecorder
from oakum_service.db import event_log
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.progress import EvaluationRecord, ProgressSample
from oakum_service.db.models.trainers import GenerationRecord, Trainer
from oakum_service.documents.crash import NewestCrash
from oakum_service.documents.durations import START_UP, with_another
from oakum_service.states import STALLS, TimeUse, TrainerState
from oakum_solver.exploration import Exploration
from oakum_solver.wording import counted
from oakum_worker.protocol import Crash, Failure, FragmentReport, Phase, Switch, TrainingProgress

_NOT_FORMED_IN_A_ROW = 20
"""Number of earlier generations searched for the causes of a stall; several in a row may never have formed."""
_JOINS_WITHIN_S = 60.0
"""A fragment that trains no sooner after it was ready was a spare, whose wait was no part of its start-up."""
_FROM_DISK = ("checkpoint", "scratch")


class ReportReader:
    """Reads reports. Keeps in memory which reports it has read, and rates that are not written yet."""

    def __init__(self, exploration: Exploration) -> None:
        self._read_up_to: dict[str, int] = {}
        self._rates = RateRecorder(exploration)

    def unread(self, live: Mapping[str, int]) -> list[str]:
        """The fragments whose newest report has not been read, of `live` (fragment -> number of its newest
        report). Other fragments are forgotten."""
        self._read_up_to = {fragment: taken for fragment, taken in self._read_up_to.items() if fragment in live}
        return [fragment for fragment, sequence in live.items() if sequence > self._read_up_to.get(fragment, -1)]

    def forget_trainers_but(self, trainers: Collection[str]) -> None:
        """Drop what is remembered of trainers that are not among `trainers`: they have ended."""
        self._rates.forget_all_but(trainers)

    def read(self, session: Session, trainer: Trainer, fragment: Fragment, row: Report, now: float) -> None:
        """Record what the fragment's report says for the first time: start-up, progress, checkpoint, warnings,
        crashes, a failure, the end. A failure or the end may end the trainer.

        Of an ended trainer only warnings and a new durable checkpoint are recorded: its rank 0 may still have been
        writing one.
        """
        self._read_up_to[fragment.id] = row.sequence
        report = row.body
        if TrainerState(trainer.state).ended:
            if report.progress is not None:
                _record_checkpoint(session, trainer, report.progress.checkpoint_step, now)
            _record_warnings(session, trainer, fragment, report.warnings)
            return
        is_ready = fragment.ready_at is None and report.startup_s is not None
        launch_records.note_begun(session, trainer, fragment, is_ready=is_ready)
        if fragment.ready_at is None and report.startup_s is not None:
            fragment.ready_at = now
            ready_s = max(report.startup_s, now - fragment.launched_at)
            event_log.record(
                session, "fragment.ready", trainer.name, f"{fragment.node}: ready after {ready_s:.1f} s"
            )
        if fragment.training_at is None and report.generation > 0:
            fragment.training_at = now
            # The scheduler's part counts as well as the wait for a step boundary: the node stood idle.
            start_up_s = max(0.0, now - fragment.launched_at)
            idle_time.lose(session, now, start_up_node_s=fragment.num_slots * start_up_s)
            if fragment.ready_at is not None and now - fragment.ready_at <= _JOINS_WITHIN_S:
                trainer.durations = with_another(trainer.durations, START_UP, start_up_s)
        for switch in report.switches:
            _record_switch(session, trainer, fragment, switch, now)
        if (
            report.pace is not None
            and trainer.members[:1] == (fragment.id,)
            and report.generation == trainer.generation
        ):
            trainer.pace = report.pace
        if report.progress is not None:
            _record_checkpoint(session, trainer, report.progress.checkpoint_step, now)
            progress = _in_slots(session, trainer, report.progress)
            if _record_progress(session, trainer, fragment, progress, now):
                self._rates.take(session, trainer.id, progress)
        # After the checkpoint, which clears the message: their order is unknown, and a warning must not get lost.
        _record_warnings(session, trainer, fragment, report.warnings)
        for crash in report.crashes:
            _record_crash(session, trainer, fragment, crash, now)
        if report.failure is not None and not fragment.cause:
            fragment.cause = "failed"
            _record_failure(session, trainer, fragment, report, report.failure, now)
        elif report.phase is Phase.FINISHED and _has_final_progress(trainer):
            finish(session, trainer, now)


def _in_slots(session: Session, trainer: Trainer, progress: TrainingProgress) -> TrainingProgress:
    """The progress with a number of nodes that counts slots: agents count the members of their generation."""
    if trainer.slots_per_fragment == 1:
        return progress
    row = session.get(GenerationRecord, (trainer.id, progress.generation))
    return progress if row is None or not row.nodes else progress.model_copy(update={"nodes": len(row.nodes)})


def _has_final_progress(trainer: Trainer) -> bool:
    """Whether rank 0 has reported the final progress; other ranks may report their end before that."""
    return trainer.state != TrainerState.FINISHED and trainer.progress is not None and trainer.progress.final


def _record_warnings(session: Session, trainer: Trainer, fragment: Fragment, warnings: Sequence[str]) -> None:
    """Record the warnings that are new, as events. The last one becomes the trainer's message until its next
    durable checkpoint; of an ended trainer the message stays."""
    for warning in _new(fragment.warnings, warnings):
        if not TrainerState(trainer.state).ended:
            trainer.message = warning
        event_log.record(session, "trainer.warning", trainer.name, f"{fragment.node}: {warning}")
    fragment.warnings = tuple(warnings)


def _new(earlier: Sequence[str], newest: Sequence[str]) -> Sequence[str]:
    """The warnings in `newest` that are not in `earlier`. Both lists hold only the newest few, so they overlap at
    the end of `earlier`."""
    for overlap in range(min(len(earlier), len(newest)), 0, -1):
        if [*earlier[-overlap:]] == [*newest[:overlap]]:
            return newest[overlap:]
    return newest


def _record_checkpoint(session: Session, trainer: Trainer, step: int | None, now: float) -> None:
    """Record a durable checkpoint that is newer than the known one. A new rank 0 may know only older ones."""
    if step is None or (trainer.checkpoint_step is not None and step <= trainer.checkpoint_step):
        return
    keep_checkpoint(trainer, step, now)
    event_log.record(session, "checkpoint.written", trainer.name, f"durable checkpoint of step {step:,}")


def _record_progress(
    session: Session, trainer: Trainer, fragment: Fragment, progress: TrainingProgress, now: float
) -> bool:
    """Record the progress and what follows from it: a chart point, steps, evaluations, the time account, and
    whether crashes are forgiven. Returns False, and records nothing, if the progress is not news: repeated,
    from an earlier rank 0, or of a generation that was never published."""
    last = trainer.progress
    if progress.generation > trainer.generation:
        return False
    if last is not None:
        if (progress.generation, progress.step) < (last.generation, last.step):
            return False
        kept = ("metrics", "predicted_curve", "gain_together", "best")
        earlier = {name: getattr(last, name) for name in kept}
        unreported: dict[str, Any] = {key: old for key, old in earlier.items() if not getattr(progress, key)}
        if progress.loss is None and not progress.final:
            unreported["loss"] = last.loss  # a rank that has finished no step yet knows no loss
        progress = progress.model_copy(update=unreported)
        if progress == last:
            return False
    _count_steps(session, trainer, last, progress)
    attempts.forgive(session, trainer, progress, now)
    silent_s = 0.0 if trainer.account is None else trainer.account.silent_s(now)
    if (account := trainer.account) is not None:
        account = account.stepped(progress.generation, last.step if last is not None else 0, now)
        if fragment.id in trainer.members:
            account = account.turn_to(TimeUse.TRAINING, now)
        trainer.account = account
    trainer.progress = progress
    taken = _Taken(0 if last is None else last.step, progress.step, silent_s, now)
    _record_evaluations(session, trainer, last, progress, taken)
    if trainer.members:  # else its charts have fallen to 0 already: a rank that left reported late
        _record_point(session, trainer, progress, now)
    return True


def _record_point(session: Session, trainer: Trainer, progress: TrainingProgress, now: float) -> None:
    session.add(
        ProgressSample(
            trainer_id=trainer.id,
            at=now,
            step=progress.step,
            nodes=progress.nodes,
            loss=progress.loss,
            samples_per_s=progress.samples_per_s,
        )
    )


class _Taken(NamedTuple):
    """The steps that were taken between two reports."""

    first: int
    """The step that the report before told of."""
    newest: int
    seconds: float
    """For how long they were taken."""
    now: float
    """When the newest was told, in Unix seconds."""

    def at(self, step: int) -> float:
        """The Unix time at which `step` was finished, supposing that all steps between the two reports took
        equally long."""
        if self.newest <= self.first:
            return self.now
        share = (self.newest - max(self.first, step)) / (self.newest - self.first)
        return self.now - self.seconds * max(0.0, share)


def _record_evaluations(
    session: Session, trainer: Trainer, last: TrainingProgress | None, progress: TrainingProgress, taken: _Taken
) -> None:
    """Record the evaluations of the progress, unless an earlier one has told them with the same metrics."""
    known = () if last is None else last.evaluations  # the newest few are told again and again
    for evaluation in progress.evaluations:
        if evaluation in known:
            continue
        before = session.get(EvaluationRecord, (trainer.id, evaluation.step))
        if not evaluation.metrics or (before is not None and before.metrics == evaluation.metrics):
            continue
        at = taken.at(evaluation.step)
        row = EvaluationRecord(trainer_id=trainer.id, step=evaluation.step, at=at, metrics=evaluation.metrics)
        session.merge(row)


def _count_steps(
    session: Session, trainer: Trainer, last: TrainingProgress | None, progress: TrainingProgress
) -> None:
    """Count the steps since the last progress at the number of nodes they were taken on, repeated steps
    included."""
    begin = last.step if last is not None else _first_step(session, trainer)
    done = {}
    if last is not None and progress.generation > last.generation:
        row = session.get(GenerationRecord, (trainer.id, progress.generation))
        if row is not None and row.step is not None:
            done[last.nodes] = row.step - begin
            begin = row.step
    size = progress.nodes
    done[size] = max(0, done.get(size, 0)) + progress.step - begin
    steps_at_size = {size: trainer.steps_at_size.get(size, 0) + max(0, steps) for size, steps in done.items()}
    trainer.steps_at_size = trainer.steps_at_size | steps_at_size


def _first_step(session: Session, trainer: Trainer) -> int:
    """The step from which the first generation trained: above 0 if it began from another trainer's state.

    Later generations may have formed before the first progress is heard.
    """
    begun = select(func.min(GenerationRecord.step)).where(GenerationRecord.trainer_id == trainer.id)
    return session.scalar(begun) or 0


def _record_switch(session: Session, trainer: Trainer, fragment: Fragment, switch: Switch, now: float) -> None:
    row = session.get(GenerationRecord, (trainer.id, switch.generation))
    if row is None or row.formed_at is not None or not row.nodes:
        return
    stall_s = _stall_s(trainer, row, switch, now)
    cause = _cause_of_stall(session, row, switch)
    row.formed_at, row.step, row.stall_s, row.source = now, switch.step, stall_s, switch.source
    attempts.resumed(trainer, switch.step, switch.source)
    if stall_s is not None:
        trainer.stall_s += stall_s
        trainer.last_stall_s = stall_s
        if cause in STALLS:
            trainer.durations = with_another(trainer.durations, cause, stall_s)
            after_commit(session, partial(_count_stall, cause, stall_s, len(row.nodes)))
            charge(session, trainer.user_name, now, **{f"{cause}_node_s": stall_s * len(row.nodes)})
            idle_time.lose(session, now, stalled_node_s=stall_s * len(row.nodes))
    if switch.source in _FROM_DISK and (step := switch.step or None) != trainer.checkpoint_step:
        trainer.checkpoint_step, trainer.checkpoint_at = step, None
    redone_s = 0.0 if trainer.account is None else trainer.account.redone_s
    _charge(trainer, fragment, switch, cause, stall_s, now)
    if trainer.account is not None and trainer.account.redone_s > redone_s:
        lost_node_s = (trainer.account.redone_s - redone_s) * len(row.nodes)
        after_commit(session, partial(instruments.LOST_NODE_S.labels("repeated").inc, lost_node_s))
        charge(session, trainer.user_name, now, repeated_node_s=lost_node_s)
        idle_time.lose(session, now, stalled_node_s=lost_node_s)
    _log_switch(session, trainer, row, switch)


def _count_stall(cause: TimeUse, seconds: float, nodes: int) -> None:
    """Count a stall in the metrics."""
    instruments.STALL_S.labels(cause).observe(seconds)
    instruments.LOST_NODE_S.labels(cause).inc(seconds * nodes)


def _charge(
    trainer: Trainer, fragment: Fragment, switch: Switch, cause: TimeUse, stall_s: float | None, now: float
) -> None:
    """Record in the trainer's time account what a switch cost: `stall_s` seconds for `cause` (None: the time since
    the last reported step), and steps that have to be repeated."""
    account = trainer.account
    if account is None:
        return
    step_s = _step_s(trainer) or 0.0
    if account.use is TimeUse.TRAINING:
        account = account.stalled(cause, account.silent_s(now) if stall_s is None else stall_s, now)
    elif fragment.id in trainer.members:
        account = account.turn_to(TimeUse.TRAINING, now)
        if trainer.progress is not None:  # its rate is of before the time without nodes
            trainer.progress = trainer.progress.model_copy(update={"samples_per_s": None})
    account = account.stepped(switch.generation, trainer.reported_step, now)
    trainer.account = account.went_back_to(switch.step, switch.generation, step_s, now)


def _stall_s(trainer: Trainer, row: GenerationRecord, switch: Switch, now: float) -> float | None:
    """Seconds that the switch cost: the time without a finished step, less the usual duration of one step.

    The first step after a switch may take longer than others, for connections, allocators or a compiler. That part
    belongs to the cost.
    """
    if switch.stall_s is None:
        return None
    longest_s = max(0.0, now - (trainer.started_at or 0.0))
    usual_s = _step_s(trainer)
    if usual_s is not None and trainer.progress is not None:
        usual_s *= trainer.progress.nodes / len(row.nodes)
    step_s = min(switch.step_s or 0.0, math.inf if usual_s is None else usual_s)
    return max(0.0, min(switch.stall_s, longest_s) - step_s)


def _step_s(trainer: Trainer) -> float | None:
    """Seconds of one step at the size of the last progress; None if that had no rate."""
    rate = trainer.reported_rate
    return trainer.present_batch / rate if rate is not None and rate > 0 else None


def _cause_of_stall(session: Session, row: GenerationRecord, switch: Switch) -> TimeUse:
    """Why training stalled: what happened since the last generation that formed. Several may have been
    published since."""
    if switch.source in _FROM_DISK and switch.stall_s is None:
        return TimeUse.COLD_START
    before = session.execute(
        select(GenerationRecord)
        .where(GenerationRecord.trainer_id == row.trainer_id, GenerationRecord.number < row.number)
        .order_by(GenerationRecord.number.desc())
        .limit(_NOT_FORMED_IN_A_ROW)
    ).scalars()
    causes, size_before = [row.cause], 0
    for record in before:
        if record.formed_at is not None:
            size_before = len(record.nodes)
            break
        causes.append(record.cause)
    if any(is_unplanned(cause) for cause in causes):
        return TimeUse.LOSS
    return TimeUse.SHRINK if len(row.nodes) < size_before else TimeUse.GROW


def _log_switch(session: Session, trainer: Trainer, row: GenerationRecord, switch: Switch) -> None:
    origins = {
        "survivor": "goes on",
        "memory": "goes on from a copy in memory",
        "checkpoint": "resumes from its checkpoint",
        "scratch": "begins",
    }
    where = origins.get(switch.source, f"goes on from {switch.source}")
    stall = "" if row.stall_s is None else f", stall {row.stall_s:.2f} s"
    event_log.record(
        session,
        "generation.formed",
        trainer.name,
        f"generation {switch.generation} ({row.cause}): {where} at step {switch.step:,} "
        f"on {counted(len(row.nodes), 'node')}{stall}",
        generation=switch.generation,
        nodes=row.nodes,
        stall_s=row.stall_s,
    )


def _record_crash(session: Session, trainer: Trainer, fragment: Fragment, crash: Crash, now: float) -> None:
    """Record a crash on a node whose agent is still able to report, unless it is recorded already or the trainer
    has ended."""
    if crash.number <= fragment.crashes:
        return
    fragment.crashes = crash.number
    if TrainerState(trainer.state).ended:
        return
    began_at = attempts.began_at(session, trainer, fragment.launched_at, crash.generation)
    # The agent knows what its rank died of; rank 0's progress tells how far training had come.
    step = crash.step if crash.identity else max(crash.step, trainer.reported_step)
    most = attempts.MOST_OF_ERRORS if crash.is_explained else attempts.MOST_OF_DEATHS
    message = crash.message
    if not crash.identity:
        message += f" ({fragment.node}; its last lines are in `oakum logs {trainer.name}`)"
    record = TrainerCrash(step, message, began_at, error=crash.identity, traceback=crash.traceback, most=most)
    event_log.record(session, "fragment.crashed", trainer.name, f"{fragment.node}: {crash.message}")
    attempts.record_crash(session, trainer, record, now)


def _record_failure(
    session: Session,
    trainer: Trainer,
    fragment: Fragment,
    report: FragmentReport,
    failure: Failure,
    now: float,
) -> None:
    """Record why a fragment failed, unless the trainer has ended.

    A failed step counts as a crash, which may be the node's fault: the trainer tries again until it has crashed
    too often. A task that cannot be built ends the trainer as failed; while other nodes have built it and train,
    it does so only on the second node. A loss, gradient or weight that is not finite ends it as diverged.
    """
    if TrainerState(trainer.state).ended:
        return  # ended by another fragment's report in this turn
    if failure.stage == "diverged":
        diverge(session, trainer, failure.message, now)
    elif failure.stage == "load" and set(trainer.members) - {fragment.id}:
        launch_records.note_unloaded(session, trainer, fragment, failure.message, now)
    elif failure.stage == "load":
        trainer.crash = NewestCrash(traceback=failure.traceback)
        end(session, trainer, TrainerState.FAILED, failure.message, now)
    else:
        began_at = attempts.began_at(session, trainer, fragment.launched_at, report.generation)
        crash = TrainerCrash(
            failure.step,
            failure.message,
            began_at,
            error=failure.identity or failure.message,
            traceback=failure.traceback,
            most=attempts.MOST_OF_ERRORS,
        )
        attempts.record_crash(session, trainer, crash, now)
