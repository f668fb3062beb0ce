"""POST /v1/plans/preview: the plan that would be made now, or under other circumstances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from oakum_service.api.acceptance import check_size
from oakum_service.api.auth import Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.plans import SupposedAllocation, SupposedChange, WhatIfRequest, WhatIfView
from oakum_service.api.views import find_trainer
from oakum_service.control.what_if import Hypothesis, Outcome, foresee, outcome
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict
from oakum_service.orders import hold
from oakum_service.orders.live_settings import current
from oakum_service.states import LIVE_STATES
from oakum_solver.errors import ProblemError
from oakum_solver.objectives import Objective, parse_objective
from oakum_solver.plan import Allocation
from oakum_worker.spec import TrainerSpec, explain

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.post("/preview")
def preview_plan(context: InContext, viewer: Viewer, request: WhatIfRequest) -> WhatIfView:
    """Show which plan would be made now, also if trainers were added, removed or changed, nodes drained, or the
    objective were another one. Has no effect. One plan is computed at a time."""
    try:
        with context.trial_plans.one():
            with context.readers.begin() as session:
                hypothesis = _hypothesis(session, request)
                posed = foresee(session, current(session, context.settings), hypothesis, viewer.name)
                held = hold.held(session) is not None
            return _view(outcome(*posed), held=held)
    except ProblemError as error:
        raise Conflict(f"no plan can be made so: {error}") from error


def _hypothesis(session: Session, request: WhatIfRequest) -> Hypothesis:
    live = _live(session, {*request.remove, *(change.trainer for change in request.change)})
    return Hypothesis(
        added=[_spec(document, number) for number, document in enumerate(request.add)],
        removed={live[ref] for ref in request.remove},
        changed=_changed(session, live, request.change),
        drained=set(request.drain),
        num_drained=request.drain_count,
        objective=None if request.objective is None else _objective(request.objective),
    )


def _changed(
    session: Session, live: Mapping[str, str], changes: Sequence[SupposedChange]
) -> dict[str, dict[str, Any]]:
    """Trainer's id -> what would be otherwise. Other sizes bring bounds of their own, as in a change that is
    carried out. Raises `RequestValidationError` for sizes that the trainer cannot have."""
    changed = {
        live[change.trainer]: change.model_dump(exclude_none=True, exclude={"trainer"}) for change in changes
    }
    sized = {live[change.trainer]: (at, change) for at, change in enumerate(changes) if change.sizes is not None}
    specs = select(Trainer.id, Trainer.spec).where(Trainer.id.in_(sized))
    for trainer, spec in session.execute(specs).all() if sized else []:
        at, change = sized[trainer]
        try:
            then = change.applied_to(spec)
        except ValidationError as error:
            raise _invalid(error, "change", at) from error
        changed[trainer] |= {
            "sizes": then.listed_sizes,
            "min_nodes": then.min_nodes,
            "max_nodes": then.max_nodes,
        }
    return changed


def _invalid(error: ValidationError, *place: str | int) -> RequestValidationError:
    lines = explain(error)
    return RequestValidationError(
        [{"loc": ("body", *place), "msg": line, "type": "value_error"} for line in lines]
    )


def _live(session: Session, refs: Set[str]) -> dict[str, str]:
    """Name or id, as it was given, -> the live trainer's id. Raises `NotFound` or `Conflict` where there is
    none."""
    meant = or_(Trainer.id.in_(refs), Trainer.name.in_(refs)) & Trainer.state.in_(LIVE_STATES)
    rows = session.execute(select(Trainer.id, Trainer.name).where(meant)).all() if refs else []
    known = {name: id_ for id_, name in rows} | {id_: id_ for id_, _ in rows}
    for ref in refs - known.keys():
        trainer = find_trainer(session, ref)
        raise Conflict(f"trainer {trainer.name!r} is {trainer.state}: only live trainers have a part in plans")
    return known


def _spec(document: dict[str, Any], number: int) -> TrainerSpec:
    try:
        spec = TrainerSpec.model_validate(document)
    except ValidationError as error:
        raise _invalid(error, "add", number) from error
    check_size(spec)
    return spec


def _objective(text: str) -> Objective:
    try:
        return parse_objective(text)
    except ProblemError as error:
        wrong = {"loc": ("body", "objective"), "msg": str(error), "type": "value_error"}
        raise RequestValidationError([wrong]) from error


def _view(found: Outcome, *, held: bool) -> WhatIfView:
    plan = found.plan
    return WhatIfView(
        objective=str(found.problem.objective),
        num_idle=found.problem.num_nodes,
        value=plan.value,
        bound=plan.bound,
        optimal=plan.optimal,
        solver=plan.solver,
        solve_s=plan.solve_s,
        look_ahead_s=found.problem.look_ahead_s,
        look_ahead_reason=found.problem.look_ahead_reason,
        held=held,
        allocations=[_allocation(found, allocation) for allocation in plan.allocations],
    )


def _allocation(found: Outcome, allocation: Allocation) -> SupposedAllocation:
    now = found.nodes_now.get(allocation.trainer, ())
    return SupposedAllocation(
        trainer=found.labels[allocation.trainer],
        is_new=allocation.trainer in found.new,
        nodes_now=len(now),
        nodes_then=len(allocation.nodes),
        gained=sorted(set(allocation.nodes) - set(now)),
        lost=sorted(set(now) - set(allocation.nodes)),
        why=allocation.reason.why,
        reason=allocation.reason.text,
    )
