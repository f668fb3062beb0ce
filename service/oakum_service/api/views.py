"""Makes the API's documents from rows of the database."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.schemas.plans import AllocationView, PlanView
from oakum_service.api.schemas.submissions import ChangedTrainer, DryRunView
from oakum_service.api.schemas.trainers import (
    AttemptView,
    DurationView,
    Explanation,
    MeasuredRateView,
    StepCost,
    TimeSpent,
    TrainerView,
    WarmingFragment,
)
from oakum_service.control import launch_records
from oakum_service.control.dry_run import Prospect
from oakum_service.control.rates import measured_rates
from oakum_service.control.retrying import may_retry
from oakum_service.control.warm_ups import warm_up_node_s
from oakum_service.db.lease import why_closed
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.durations import START_UP, duration
from oakum_service.documents.grant import Grant
from oakum_service.documents.setback import Setback
from oakum_service.documents.slots import slots_in
from oakum_service.errors import NotFound
from oakum_service.orders import hold
from oakum_service.standing import (
    NOTHING_SPECIAL,
    PLANNED,
    Attempt,
    AvoidedNode,
    Circumstances,
    Standing,
    Status,
    TrainerSituation,
    standing,
)
from oakum_service.states import STALLS, TimeUse, TrainerState
from oakum_worker.protocol import Pace
from oakum_worker.spec import TrainerSpec

_SOON_S = 30.0
"""A launch that is due and wanted begins within so many seconds."""
_NOT_MEASURED = "not by measured rates (the setting `learn_curves` is off)"
_SPECS_CURVE = f"Plans go by its spec's curve, {_NOT_MEASURED}."
_NO_CURVE = f"Its spec has no curve, so plans count each node as much as the first, and go {_NOT_MEASURED}."
_LONG_ENOUGH_S = 5.0
"""Seconds of steps from which on their composition is reported."""


def find_trainer(session: Session, ref: str) -> Trainer:
    """The trainer of that id, or the newest of that name. Raises `NotFound`."""
    trainer = session.get(Trainer, ref)
    if trainer is None:
        by_name = select(Trainer).where(Trainer.name == ref).order_by(Trainer.submitted_at.desc()).limit(1)
        trainer = session.execute(by_name).scalar_one_or_none()
    if trainer is None:
        raise NotFound(f"no trainer has the name or id {ref!r}: `oakum ps --all` lists them")
    return trainer


def current_plan(session: Session) -> PlanRecord | None:
    """The plan in force; None if there is none."""
    return session.execute(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(1)).scalar_one_or_none()


def trainer_view(session: Session, trainer: Trainer, around: Circumstances = NOTHING_SPECIAL) -> TrainerView:
    """The API's document of one trainer. The hold is read from the database, whatever `around` says."""
    return trainer_views(session, [trainer], around)[0]


def trainer_views(
    session: Session, trainers: list[Trainer], around: Circumstances = NOTHING_SPECIAL
) -> list[TrainerView]:
    """The documents of several trainers, with few queries. The hold is read from the database, whatever
    `around` says."""
    ids = [trainer.id for trainer in trainers]
    members = [fragment for trainer in trainers for fragment in trainer.members]
    rows = session.execute(select(Fragment.id, Fragment.node).where(Fragment.id.in_(members)))
    nodes = {fragment: slots_in(node) for fragment, node in rows}
    plan = current_plan(session)
    now = time.time()
    lookups = _Lookups(
        now,
        nodes,
        plan.allocations if plan is not None else {},
        measured_rates(session, ids),
        _warming(session, ids, members),
        warm_up_node_s(session, ids, now),
        dataclasses.replace(
            around, hold=hold.held(session), avoided=_avoided(session, now), closed=why_closed(session)
        ),
    )
    return [_view(trainer, lookups) for trainer in trainers]


def _avoided(session: Session, now: float) -> tuple[AvoidedNode, ...]:
    rows = launch_records.avoided(session, now)
    return tuple(AvoidedNode(row.node, row.until_at, row.public_text) for row in rows)


@dataclass(frozen=True)
class _Lookups:
    """What the documents of several trainers need beside the trainers' rows, looked up once for all; most of it is
    by trainer id."""

    now: float
    nodes: Mapping[str, tuple[str, ...]]
    """Fragment id -> its node, or its slots."""
    grants: Mapping[str, Grant]
    rates: Mapping[str, Sequence[MeasuredRate]]
    warming: Mapping[str, Sequence[WarmingFragment]]
    warm_up_node_s: Mapping[str, float]
    around: Circumstances


def _warming(session: Session, trainers: list[str], members: Collection[str]) -> dict[str, list[WarmingFragment]]:
    rows = session.execute(
        select(Fragment)
        .where(
            Fragment.trainer_id.in_(trainers),
            Fragment.is_live,
            Fragment.training_at.is_(None),
            Fragment.released.is_(False),
            Fragment.id.not_in(members),
        )
        .order_by(Fragment.launched_at, Fragment.node)
    ).scalars()
    by_trainer: dict[str, list[WarmingFragment]] = {}
    for row in rows:
        slots = (WarmingFragment(node=slot, launched_at=row.launched_at) for slot in row.slots)
        by_trainer.setdefault(row.trainer_id, []).extend(slots)
    return by_trainer


def _standing(trainer: Trainer, lookups: _Lookups) -> Standing:
    grant = lookups.grants.get(trainer.id)
    return standing(
        TrainerSituation(
            state=TrainerState(trainer.state),
            members=tuple(slot for member in trainer.members for slot in lookups.nodes[member]),
            granted=None if grant is None else grant.nodes,
            warming=tuple(each.node for each in lookups.warming.get(trainer.id, ())),
            why="" if grant is None else grant.words,
            message=trainer.message,
            cancel_asked=trainer.cancel_requested,
            pause=trainer.pause,
            setback=_setback(trainer, lookups.now),
            name=trainer.name,
            attempt=_attempt(trainer),
            reading_share=_reading_share(trainer),
            around=lookups.around,
        )
    )


def _setback(trainer: Trainer, now: float) -> Setback | None:
    """The trainer's setback; None once it trains and nobody has wanted the next launch although it was due."""
    setback = trainer.setback
    is_over = setback is not None and trainer.members and now > setback.next_at + _SOON_S
    return None if is_over else setback


def _reading_share(trainer: Trainer) -> float | None:
    """Share of a step spent on reading; None if too little time was measured, since every step begins with
    reading."""
    if trainer.pace is None or trainer.pace.seconds < _LONG_ENOUGH_S:
        return None
    return _step_cost(trainer.pace).reading_share


def _step_cost(pace: Pace) -> StepCost:
    return StepCost(
        step_s=pace.seconds / max(1, pace.steps),
        reading_share=min(1.0, pace.reading_s / pace.seconds),
        waiting_share=None if pace.waiting_s is None else min(1.0, pace.waiting_s / pace.seconds),
    )


def _rates(trainer: Trainer) -> tuple[float | None, float | None]:
    """(samples/s of the last finished steps, upper bound of samples/s); the bound replaces the rate when the
    step in progress takes much longer. After a time without nodes, the last steps are those of before it."""
    if trainer.state != TrainerState.RUNNING:
        return None, None
    is_cold = trainer.account is not None and trainer.account.use is TimeUse.COLD_START
    rate = None if is_cold else trainer.reported_rate
    if trainer.pace is None or trainer.pace.steps:
        return rate, None
    most = trainer.present_batch / trainer.pace.seconds
    # A step that is a little slower than the last ones is no reason to drop their rate.
    return (rate, None) if rate is not None and rate < 2 * most else (None, most)


def _view(trainer: Trainer, lookups: _Lookups) -> TrainerView:
    progress = trainer.progress
    state = TrainerState(trainer.state)
    stands = _standing(trainer, lookups)
    attempt = _attempt(trainer)
    spec = trainer.spec
    rate, below = _rates(trainer)
    return TrainerView(
        id=trainer.id,
        name=trainer.name,
        state=state,
        message=trainer.message,
        attempt=None if attempt is None else AttemptView(**dataclasses.asdict(attempt)),
        traceback=trainer.crash.traceback if trainer.crash is not None and state is TrainerState.FAILED else "",
        spec=spec.model_copy(update={"notify": tuple(each.shown for each in spec.notify)}),
        user=trainer.user_name,
        submitted_at=trainer.submitted_at,
        started_at=trainer.started_at,
        ended_at=trainer.ended_at,
        waiting_since=None if state.ended or trainer.members else trainer.waiting_since,
        status_since=_status_since(trainer, stands.status, lookups),
        generation=trainer.generation,
        nodes=[slot for member in trainer.members for slot in lookups.nodes[member]],
        granted=[*stands.granted],
        warming=[] if state.ended else [*lookups.warming.get(trainer.id, ())],
        step=_step(trainer),
        total_steps=None if progress is None else progress.total_steps,
        epoch=0 if progress is None else progress.epoch,
        samples=0 if progress is None else progress.samples,
        total_samples=None if progress is None else progress.total_samples,
        global_batch=trainer.present_batch,
        learning_rate=None if progress is None else progress.learning_rate,
        loss=None if progress is None else progress.loss,
        stepped_at=_stepped_at(trainer),
        samples_per_s=rate,
        samples_per_s_below=below,
        pace=_step_cost(trainer.pace) if trainer.pace is not None and state is TrainerState.RUNNING else None,
        checkpoint_step=trainer.checkpoint_step,
        checkpoint_at=trainer.checkpoint_at,
        metrics={} if progress is None else progress.metrics,
        best=None if progress is None else progress.best,
        steps_at_size=trainer.steps_at_size,
        measured_rates=[
            MeasuredRateView(nodes=rate.nodes, samples_per_s=rate.samples / rate.seconds, seconds=rate.seconds)
            for rate in lookups.rates.get(trainer.id, ())
        ],
        nodes_lost=trainer.nodes_lost,
        nodes_gained=trainer.nodes_gained,
        rescales=trainer.rescales,
        stall_s=trainer.stall_s,
        last_stall_s=trainer.last_stall_s,
        stalls={kind: stall for kind in STALLS if (stall := _duration(trainer, kind)) is not None},
        start_up=_duration(trainer, START_UP),
        time_spent=_time_spent(trainer, lookups),
        status=stands.status,
        reason=stands.sentence,
        condition=stands.condition,
        joining=[*stands.joining],
        leaving=[*stands.leaving],
        slots_per_fragment=trainer.slots_per_fragment,
        slots_reason=trainer.slots_reason,
        curve_reason="" if lookups.around.learns_curves else _curve_reason(trainer.spec),
        may_retry=may_retry(state),
    )


def _status_since(trainer: Trainer, status: Status, lookups: _Lookups) -> float | None:
    if TrainerState(trainer.state).ended:
        return trainer.ended_at
    if status is Status.HELD:
        return None if lookups.around.hold is None else lookups.around.hold.since
    if status is Status.PAUSED:
        return None if trainer.pause is None else trainer.pause.since
    if status is Status.STARTING:
        return min((each.launched_at for each in lookups.warming.get(trainer.id, ())), default=None)
    if status is Status.WAITING:
        return trainer.waiting_since
    account = trainer.account
    return account.since if status is Status.RUNNING and account is not None else None


def _attempt(trainer: Trainer) -> Attempt | None:
    """The present attempt of a live trainer that has crashed and has not got over it; else None."""
    if TrainerState(trainer.state).ended or not trainer.crashes or trainer.crash is None:
        return None
    return Attempt(number=trainer.crashes + 1, most=trainer.crash.most, after=trainer.crash.what)


def _stepped_at(trainer: Trainer) -> float | None:
    account = trainer.account
    return None if account is None else account.stepped_at or None


def _step(trainer: Trainer) -> int:
    """Number of finished steps; for a failed trainer also steps after its last progress report."""
    step = trainer.reported_step
    return max(step, trainer.crash.step) if trainer.crash and trainer.state == TrainerState.FAILED else step


def _duration(trainer: Trainer, kind: str) -> DurationView | None:
    known = duration(trainer.durations, kind)
    return None if known is None else DurationView(**dataclasses.asdict(known))


def _time_spent(trainer: Trainer, lookups: _Lookups) -> TimeSpent | None:
    account = trainer.account
    if account is None:
        return None
    spent_s = account.spent_s(lookups.now)
    return TimeSpent(
        since_at=account.began_at,
        training_s=max(0.0, spent_s[TimeUse.TRAINING]),
        grow_s=spent_s[TimeUse.GROW],
        shrink_s=spent_s[TimeUse.SHRINK],
        loss_s=spent_s[TimeUse.LOSS],
        cold_start_s=spent_s[TimeUse.COLD_START],
        waiting_s=spent_s[TimeUse.WAITING],
        redone_s=account.redone_s,
        redone_steps=account.redone_steps,
        warm_up_node_s=lookups.warm_up_node_s.get(trainer.id, 0.0),
    )


def plan_view(session: Session, plan: PlanRecord) -> PlanView:
    """The API's document of a plan, in which trainers have names instead of ids."""
    rows = session.execute(select(Trainer.id, Trainer.name).where(Trainer.id.in_(plan.allocations)))
    names = dict(rows.all())
    return PlanView(
        id=plan.id,
        parent=plan.parent_id,
        snapshot=plan.snapshot,
        made_at=plan.made_at,
        solver=plan.solver,
        value=plan.value,
        bound=plan.bound,
        gap=max(0.0, plan.bound - plan.value) / max(abs(plan.bound), 1e-12),
        optimal=plan.optimal,
        solve_s=plan.solve_s,
        look_ahead_s=plan.look_ahead_s,
        look_ahead_reason=plan.look_ahead_reason,
        objective=plan.objective,
        allocations=[
            AllocationView(
                trainer=names.get(trainer, trainer), nodes=[*given.nodes], why=given.why, reason=given.words
            )
            for trainer, given in plan.allocations.items()
        ],
    )


def dry_run_view(name: str, prospect: Prospect, *, held: bool) -> DryRunView:
    """The API's document of a dry run's result; `name` is the trainer's, `held` tells whether there is a hold."""
    reason = prospect.given.reason
    return DryRunView(
        name=name,
        num_idle=prospect.problem.num_nodes,
        nodes=list(prospect.nodes),
        why=reason.why,
        reason=reason.text,
        start_in_s=prospect.start_in_s,
        samples_per_s=prospect.samples_per_s,
        finish_in_s=prospect.finish_in_s,
        hole_ends_in_s=prospect.hole_ends_in_s,
        changed=[
            ChangedTrainer(name=other, nodes_now=now, nodes_then=then) for other, now, then in prospect.changed
        ],
        slots_reason=prospect.slots_reason,
        held=held,
    )


def explanation(session: Session, trainer: Trainer, view: TrainerView) -> Explanation:
    """The answer to "why does this trainer have so many nodes?"; names the plan that decided it, where one did.
    `view` is the trainer's document."""
    plan = current_plan(session)
    given = plan.allocations.get(trainer.id) if plan is not None else None
    planned = plan is not None and given is not None and view.status in PLANNED
    return Explanation(
        trainer=trainer.name,
        nodes=len(view.nodes),
        granted=len(view.granted),
        why=given.why if given is not None and planned else _unplanned_why(view),
        status=view.status,
        reason=view.reason,
        condition=view.condition,
        plan=plan.id if plan is not None and planned else None,
        look_ahead_reason=plan.look_ahead_reason if plan is not None and planned else "",
        slots_reason=view.slots_reason if view.status in PLANNED else "",
        curve_reason=view.curve_reason if planned else "",
    )


def _curve_reason(spec: TrainerSpec) -> str:
    return _SPECS_CURVE if spec.curve or spec.curves_by_type else _NO_CURVE


def _unplanned_why(view: TrainerView) -> str:
    return "no_plan" if view.status in PLANNED else view.status.value
