"""Intake: what the agents' reports say for the first time, written down.

A report says all that its agent knows, again and again, and may come late. Where two disagree about training, the
one of the newer generation counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.control.accounts import Account
from oakum_service.control.decide import is_unplanned
from oakum_service.control.durations import START_UP, with_another
from oakum_service.control.endings import end, finish
from oakum_service.control.observe import count_crash
from oakum_service.control.rates import RateKeeper
from oakum_service.db.models import Fragment, GenerationRecord, ProgressSample, Report, Trainer
from oakum_service.states import STALLS, TimeUse, TrainerState
from oakum_solver.exploration import Exploration
from oakum_worker.protocol import Failure, FragmentReport, Phase, Progress, Switch

_MOST_FAILURES = 3
_NOT_FORMED_IN_A_ROW = 20
"""Generations looked back over for what a stall was about."""
_FROM_DISK = ("checkpoint", "scratch")


class ReportIntake:
    """Reads reports. Remembers only which ones it has read, and rates that are not written yet."""

    def __init__(self, exploration: Exploration) -> None:
        self._taken: dict[str, int] = {}
        self._rates = RateKeeper(exploration)

    def news_of(self, live: Mapping[str, int]) -> list[str]:
        """Of live fragments and their reports' numbers, those that have not been read; others are forgotten."""
        self._taken = {fragment: taken for fragment, taken in self._taken.items() if fragment in live}
        return [fragment for fragment, sequence in live.items() if sequence > self._taken.get(fragment, -1)]

    def forget_trainers_but(self, trainers: Collection[str]) -> None:
        """Forget trainers that have ended."""
        self._rates.forget_all_but(trainers)

    def take(self, session: Session, trainer: Trainer, fragment: Fragment, row: Report) -> None:
        """Write down whatever the fragment's report says for the first time."""
        self._taken[fragment.id] = row.sequence
        report = FragmentReport.model_validate(row.body)
        now = time.time()
        if fragment.ready_at is None and report.startup_s is not None:
            fragment.ready_at = now
            trainer.durations = with_another(trainer.durations, START_UP, report.startup_s)
            journal.record(
                session, "fragment.ready", trainer.name, f"{fragment.node}: ready after {report.startup_s:.1f} s"
            )
        if fragment.training_at is None and report.generation > 0:
            fragment.training_at = now
        for switch in report.switches:
            _take_switch(session, trainer, fragment, switch)
        if report.progress is not None:
            _take_checkpoint(session, trainer, report.progress.checkpoint_step)
            if _take_progress(session, trainer, fragment, report.progress):
                self._rates.take(session, trainer.id, report.progress)
        # After the checkpoints: which of the two came first is not known, and a warning must not get lost.
        _take_warnings(session, trainer, fragment, report.warnings)
        if report.failure is not None and not fragment.cause:
            fragment.cause = "failed"
            _count_failure(session, trainer, report.failure)
        elif report.phase is Phase.FINISHED and _is_told_to_its_end(trainer):
            finish(session, trainer)


def _is_told_to_its_end(trainer: Trainer) -> bool:
    """Other ranks may say that they have finished before rank 0 says with what."""
    return trainer.state != TrainerState.FINISHED and bool(trainer.progress.get("final"))


def _take_warnings(session: Session, trainer: Trainer, fragment: Fragment, warnings: Sequence[str]) -> None:
    """What went wrong without stopping training is the trainer's condition until its next checkpoint."""
    for warning in _new(fragment.warnings, warnings):
        trainer.message = warning
        journal.record(session, "trainer.warning", trainer.name, f"{fragment.node}: {warning}")
    if fragment.warnings != [*warnings]:
        fragment.warnings = [*warnings]


def _new(known: Sequence[str], newest: Sequence[str]) -> Sequence[str]:
    """What of the newest few follows those that are known; the oldest of these are told no more."""
    for overlap in range(min(len(known), len(newest)), 0, -1):
        if [*known[-overlap:]] == [*newest[:overlap]]:
            return newest[overlap:]
    return newest


def _take_checkpoint(session: Session, trainer: Trainer, step: int | None) -> None:
    """A rank 0 that is new knows of fewer checkpoints than the one before it."""
    if step is None or (trainer.checkpoint_step is not None and step <= trainer.checkpoint_step):
        return
    trainer.checkpoint_step, trainer.checkpoint_at = step, time.time()
    if not TrainerState(trainer.state).ended:
        trainer.message = ""
    journal.record(session, "checkpoint.written", trainer.name, f"durable checkpoint of step {step}")


def _take_progress(session: Session, trainer: Trainer, fragment: Fragment, progress: Progress) -> bool:
    """Whether it is news: not what a former rank 0 still says, or anyone of a generation that never was."""
    last = Progress.model_validate(trainer.progress) if trainer.progress else None
    if progress.generation > trainer.generation:
        return False
    if last is not None:
        if (progress.generation, progress.step) < (last.generation, last.step):
            return False
        kept = {"metrics": last.metrics, "predicted_curve": last.predicted_curve}
        untold = {key: old for key, old in kept.items() if not getattr(progress, key)}
        progress = progress.model_copy(update=untold)
        if progress == last:
            return False
    _count_steps(session, trainer, last, progress)
    if progress.step > trainer.crashed_step:
        trainer.crashes = 0
    now = time.time()
    if (account := Account.of(trainer.account)) is not None:
        account = account.stepped(progress.generation, last.step if last is not None else 0, now)
        if fragment.id in trainer.members:
            account = account.turn_to(TimeUse.TRAINING, now)
        trainer.account = account.document()
    trainer.progress = progress.model_dump()
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
    return True


def _count_steps(session: Session, trainer: Trainer, last: Progress | None, progress: Progress) -> None:
    """Count the steps since the last word at the sizes they were taken at, those taken again included."""
    begin = last.step if last is not None else 0
    done = {}
    if last is not None and progress.generation > last.generation:
        row = session.get(GenerationRecord, (trainer.id, progress.generation))
        if row is not None and row.step is not None:
            done[str(last.nodes)] = row.step - begin
            begin = row.step
    size = str(progress.nodes)
    done[size] = max(0, done.get(size, 0)) + progress.step - begin
    counted = {size: trainer.steps_at_size.get(size, 0) + max(0, steps) for size, steps in done.items()}
    trainer.steps_at_size = trainer.steps_at_size | counted


def _take_switch(session: Session, trainer: Trainer, fragment: Fragment, switch: Switch) -> None:
    row = session.get(GenerationRecord, (trainer.id, switch.generation))
    if row is None or row.formed_at is not None or not row.nodes:
        return
    now = time.time()
    stall_s = _stall_s(trainer, row, switch)
    cause = _cause_of_stall(session, row, switch)
    row.formed_at, row.step, row.stall_s, row.source = now, switch.step, stall_s, switch.source
    if stall_s is not None:
        trainer.stall_s += stall_s
        trainer.last_stall_s = stall_s
        if cause in STALLS:
            trainer.durations = with_another(trainer.durations, cause, stall_s)
    if switch.source in _FROM_DISK and (step := switch.step or None) != trainer.checkpoint_step:
        trainer.checkpoint_step, trainer.checkpoint_at = step, None
    _charge(trainer, fragment, switch, cause, stall_s, now)
    _tell(session, trainer, row, switch)


def _charge(
    trainer: Trainer, fragment: Fragment, switch: Switch, cause: TimeUse, stall_s: float | None, now: float
) -> None:
    """Account for the time and the steps that the switch has cost."""
    account = Account.of(trainer.account)
    if account is None:
        return
    if account.use is TimeUse.TRAINING:
        account = account.stalled(cause, account.silent_s(now) if stall_s is None else stall_s, now)
    elif fragment.id in trainer.members:
        account = account.turn_to(TimeUse.TRAINING, now)
    account = account.stepped(switch.generation, trainer.progress.get("step", 0), now)
    step_s = _step_s(trainer) or 0.0
    trainer.account = account.went_back_to(switch.step, switch.generation, step_s, now).document()


def _stall_s(trainer: Trainer, row: GenerationRecord, switch: Switch) -> float | None:
    """Seconds that the switch cost: those without a finished step, less what the first one takes in any case.

    A first step may take longer than others, for connections, allocators or a compiler: that is part of the cost.
    """
    if switch.stall_s is None:
        return None
    longest_s = max(0.0, time.time() - (trainer.started_at or 0.0))
    usual_s = _step_s(trainer)
    if usual_s is not None:
        usual_s *= trainer.progress["nodes"] / len(row.nodes)
    step_s = min(switch.step_s or 0.0, math.inf if usual_s is None else usual_s)
    return max(0.0, min(switch.stall_s, longest_s) - step_s)


def _step_s(trainer: Trainer) -> float | None:
    """Seconds of a step at the last word's size; None where it had no rate."""
    rate = trainer.progress.get("samples_per_s")
    batch = trainer.progress.get("global_batch") or trainer.spec["global_batch"]
    return batch / rate if rate is not None and rate > 0 else None


def _cause_of_stall(session: Session, row: GenerationRecord, switch: Switch) -> TimeUse:
    """What has happened since the last generation that trained; several may have been published since."""
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


def _tell(session: Session, trainer: Trainer, row: GenerationRecord, switch: Switch) -> None:
    known = {
        "survivor": "goes on",
        "memory": "goes on from a copy in memory",
        "checkpoint": "resumes from its checkpoint",
        "scratch": "begins",
    }
    where = known.get(switch.source, f"goes on from {switch.source}")
    stall = "" if row.stall_s is None else f", stall {row.stall_s:.2f} s"
    journal.record(
        session,
        "generation.formed",
        trainer.name,
        f"generation {switch.generation} ({row.cause}): {where} at step {switch.step} "
        f"on {len(row.nodes)} node{'s' * (len(row.nodes) != 1)}{stall}",
        generation=switch.generation,
        nodes=row.nodes,
        stall_s=row.stall_s,
    )


def _count_failure(session: Session, trainer: Trainer, failure: Failure) -> None:
    """A task that cannot be built will not be built by another try; a failing step may be the node's fault."""
    trainer.message = failure.message
    if failure.stage == "load":
        end(session, trainer, TrainerState.FAILED, failure.message)
        return
    count_crash(trainer, failure.step)
    if trainer.crashes >= _MOST_FAILURES:
        text = f"training failed {trainer.crashes} times at step {failure.step}: {failure.message}"
        end(session, trainer, TrainerState.FAILED, text)
