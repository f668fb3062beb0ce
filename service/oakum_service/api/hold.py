"""/v1/hold: the kill switch."""

from __future__ import annotations

from fastapi import APIRouter

from oakum_service.api.auth import Admin, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas import HoldRequest, HoldView
from oakum_service.control import hold
from oakum_service.db.models import Hold

router = APIRouter(prefix="/v1/hold", tags=["cluster"])


def hold_view(row: Hold | None) -> HoldView:
    """The hold, as it is shown."""
    if row is None:
        return HoldView(held=False)
    return HoldView(held=True, reason=row.reason, by=row.by_name, since=row.since)


@router.get("")
def show_hold(context: InContext, _: Viewer) -> HoldView:
    """Whether Oakum is held."""
    with context.readers.begin() as session:
        return hold_view(hold.current(session))


@router.put("")
def begin_hold(request: HoldRequest, context: InContext, admin: Admin) -> HoldView:
    """Send every fragment away with its last checkpoint and launch none until the hold ends."""
    with context.sessions.begin() as session:
        view = hold_view(hold.begin(session, request.reason, admin.name))
    context.inbox.notify()
    return view


@router.delete("")
def end_hold(context: InContext, admin: Admin) -> HoldView:
    """Let the planner launch again; does nothing where nothing is held."""
    with context.sessions.begin() as session:
        hold.end(session, admin.name)
    context.inbox.notify()
    return HoldView(held=False)
