"""/v1/plans: the plans that were made, with their reasons."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from oakum_service.api.auth import Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.plans import PlanList, PlanView
from oakum_service.api.views import current_plan, plan_view
from oakum_service.db.models.base import LARGEST_ID
from oakum_service.db.models.plans import PlanRecord
from oakum_service.errors import NotFound

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.get("")
def list_plans(context: InContext, _: Viewer, limit: Annotated[int, Query(ge=1, le=500)] = 20) -> PlanList:
    """List the newest plans, the newest first."""
    with context.readers.begin() as session:
        rows = session.execute(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(limit)).scalars().all()
        return PlanList(plans=[plan_view(session, row) for row in rows])


@router.get("/current")
def show_current(context: InContext, _: Viewer) -> PlanView:
    """Show the plan in force."""
    with context.readers.begin() as session:
        plan = current_plan(session)
        if plan is None:
            raise NotFound("no plan has been made yet: one is made as soon as a trainer is submitted")
        return plan_view(session, plan)


@router.get("/{plan_id}")
def show_plan(plan_id: Annotated[int, Path(ge=1, le=LARGEST_ID)], context: InContext, _: Viewer) -> PlanView:
    """Show one plan."""
    with context.readers.begin() as session:
        plan = session.get(PlanRecord, plan_id)
        if plan is None:
            raise NotFound(f"there is no plan {plan_id}: `GET /v1/plans` lists the newest")
        return plan_view(session, plan)
