"""/v1/settings and /v1/objectives: what administrators may change while the service runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.orm import Session

from oakum_service.api.auth import Admin, Principal, Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.preconditions import ETAG, IfMatch, require_match
from oakum_service.api.rescale_costs import rescale_costs
from oakum_service.api.schemas.settings import (
    ObjectiveList,
    ObjectiveView,
    PlanningView,
    SettingChange,
    SettingList,
    SettingView,
)
from oakum_service.db import event_log
from oakum_service.identity import audit
from oakum_service.orders.live_settings import change, current, live_settings, reset
from oakum_solver.expressions import QUANTITIES
from oakum_solver.named_objectives import DESCRIPTIONS

router = APIRouter(prefix="/v1", tags=["settings"])

_Name = Annotated[str, Path(max_length=63, pattern=r"^[a-z0-9_.]+$", description="the setting's name")]


@router.get("/settings")
def list_settings(context: InContext, _: Viewer) -> SettingList:
    """List the settings that may be changed while the service runs: what holds now, and what held at its start.
    `planning` has all that decides plans beside trainers and nodes."""
    with context.readers.begin() as session:
        return SettingList(settings=_views(session, context), planning=_planning(session, context))


@router.put("/settings/{name}")
def change_setting(
    name: _Name,
    given: SettingChange,
    context: InContext,
    admin: Admin,
    response: Response,
    if_match: IfMatch = None,
) -> SettingView:
    """Change a setting from the next plan on, for every process of the service and over its restarts."""
    with context.sessions.begin() as session:
        before = _known(session, context, name)
        if before is not None:
            require_match(if_match, _etag(before), f"setting {name}")
        change(session, name, given.value, admin.name)
        after = _changed(session, context, name, admin, before)
    context.news_for_controller.notify()
    response.headers[ETAG] = _etag(after)
    return after


@router.delete("/settings/{name}")
def reset_setting(
    name: _Name, context: InContext, admin: Admin, response: Response, if_match: IfMatch = None
) -> SettingView:
    """Let what the service was started with hold again; no error if it does."""
    with context.sessions.begin() as session:
        before = _known(session, context, name)
        if before is not None:
            require_match(if_match, _etag(before), f"setting {name}")
        if reset(session, name):
            after = _changed(session, context, name, admin, before)
        else:
            assert before is not None
            after = before
    context.news_for_controller.notify()
    response.headers[ETAG] = _etag(after)
    return after


@router.get("/objectives")
def list_objectives(context: InContext, _: Viewer) -> ObjectiveList:
    """List the objectives that have a name, the quantities that an expression may use, and the objective that
    plans follow now. To choose another one, change the setting `objective`."""
    with context.readers.begin() as session:
        objective = _known(session, context, "objective")
    assert objective is not None
    return ObjectiveList(
        current=str(objective.value),
        objectives=[ObjectiveView(name=name, description=text) for name, text in DESCRIPTIONS.items()],
        quantities=dict(QUANTITIES),
    )


def _planning(session: Session, context: Context) -> PlanningView:
    settings = current(session, context.settings)
    rules, costs = settings.planning_rules, rescale_costs(session, settings)
    return PlanningView(
        objective=str(rules.objective),
        look_ahead_s=rules.look_ahead_s,
        groups=rules.groups,
        starvation_guard_s=rules.guard.wait_s if rules.guard.wait_s < math.inf else None,
        starvation_quantum_s=rules.guard.quantum_s,
        user_cap=rules.user_cap,
        milp_solver=rules.milp_solver,
        solver_limit_s=rules.time_limit_s,
        stall_s=costs.stall_s,
        start_up_s=costs.start_up_s,
        explore_share=settings.explore_share,
    )


def _views(session: Session, context: Context) -> list[SettingView]:
    return [SettingView(**dataclasses.asdict(one)) for one in live_settings(session, context.settings)]


def _known(session: Session, context: Context, name: str) -> SettingView | None:
    return next((view for view in _views(session, context) if view.name == name), None)


def _changed(
    session: Session, context: Context, name: str, admin: Principal, before: SettingView | None
) -> SettingView:
    """The setting after a change, which is recorded."""
    after = _known(session, context, name)
    assert before is not None
    assert after is not None
    audit.record(session, admin.actor, "setting.changed", name, before=before.value, after=after.value)
    text = f"is {_value_text(after)} now, it was {_value_text(before)}: changed by {admin.name}"
    event_log.record(session, "setting.changed", name, text)
    return after


def _value_text(view: SettingView) -> str:
    return view.value if isinstance(view.value, str) else json.dumps(view.value)


def _etag(view: SettingView) -> str:
    facts = json.dumps([view.name, view.value, view.at])
    return f'"{hashlib.sha256(facts.encode()).hexdigest()[:20]}"'
