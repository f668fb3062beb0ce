"""/v1/forecast: how long nodes are expected to stay idle, and what administrators tell of that."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter
from sqlalchemy.orm import Session

from oakum_service.api.auth import Admin, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.forecast import ForecastRequest, ForecastView
from oakum_service.control.forecast import past_holes
from oakum_service.identity import audit
from oakum_service.orders import given_forecast

router = APIRouter(prefix="/v1/forecast", tags=["plans"])

_AGES_S = (0.0, 3600.0)


@router.get("")
def show_forecast(context: InContext, _: Viewer) -> ForecastView:
    """Say how long nodes are expected to stay idle, and what that is learnt from."""
    with context.readers.begin() as session:
        return _view(session)


@router.put("")
def tell_forecast(request: ForecastRequest, context: InContext, admin: Admin) -> ForecastView:
    """Tell how long nodes stay idle here, in place of what was told before. It counts until the service has seen
    500 idle times end itself."""
    with context.sessions.begin() as session:
        given_forecast.give(session, request.source, request.lengths_s, admin.name)
        audit.record(
            session, admin.actor, "forecast.told", "service", source=request.source, lengths=len(request.lengths_s)
        )
        view = _view(session)
    context.news_for_controller.notify()
    return view


@router.delete("")
def withdraw_forecast(context: InContext, admin: Admin) -> ForecastView:
    """Let only what the service has seen count; no error if nothing was told."""
    with context.sessions.begin() as session:
        if given_forecast.withdraw(session):
            audit.record(session, admin.actor, "forecast.withdrawn", "service")
        view = _view(session)
    context.news_for_controller.notify()
    return view


def _view(session: Session) -> ForecastView:
    past, told = past_holes(session), given_forecast.given(session)
    forecast = past.forecast()
    new_s, old_s = forecast.remaining_s(np.array(_AGES_S)).tolist() if forecast.learned else (None, None)
    return ForecastView(
        seen=len(past.seen_s),
        told=len(past.given_s),
        source=None if told is None else told.source,
        by=None if told is None else told.by_name,
        at=None if told is None else told.at,
        new_hole_s=new_s,
        old_hole_s=old_s,
    )
