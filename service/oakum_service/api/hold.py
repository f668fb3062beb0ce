"""/v1/hold: the kill switch."""

from __future__ import annotations

from fastapi import APIRouter

from oakum_service.api.auth import Admin, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.hold import HoldRequest, HoldView
from oakum_service.identity import audit
from oakum_service.orders import hold
from oakum_service.standing import ActiveHold, hold_sentence

router = APIRouter(prefix="/v1/hold", tags=["cluster"])


def hold_view(held: ActiveHold | None) -> HoldView:
    """The API's document of a hold; for None, that there is no hold."""
    if held is None:
        return HoldView(held=False)
    return HoldView(held=True, reason=held.reason, by=held.by, since=held.since, sentence=hold_sentence(held))


@router.get("")
def show_hold(context: InContext, _: Viewer) -> HoldView:
    """Say whether there is a hold."""
    with context.readers.begin() as session:
        return hold_view(hold.held(session))


@router.put("")
def begin_hold(request: HoldRequest, context: InContext, admin: Admin) -> HoldView:
    """Tell every fragment to checkpoint and leave, and launch none until the hold ends."""
    with context.sessions.begin() as session:
        hold.begin(session, request.reason, admin.name)
        audit.record(session, admin.actor, "service.held", "service", reason=request.reason)
        view = hold_view(hold.held(session))
    context.news_for_controller.notify()
    return view


@router.delete("")
def end_hold(context: InContext, admin: Admin) -> HoldView:
    """End the hold, so that the planner launches again; no error if there is none."""
    with context.sessions.begin() as session:
        if hold.end(session, admin.name):
            audit.record(session, admin.actor, "service.resumed", "service")
    context.news_for_controller.notify()
    return HoldView(held=False)
