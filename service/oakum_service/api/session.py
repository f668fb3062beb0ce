"""/v1/session: who the caller is; signing in to the dashboard and out of it."""

from __future__ import annotations

import time
from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from oakum_service.api.auth import Principal, Role, Viewer, principal_of
from oakum_service.api.context import Context, InContext
from oakum_service.api.schemas.tokens import SessionRequest, SessionView
from oakum_service.api.session_cookie import (
    drop_session,
    keep_session,
    page_key,
    require_guard,
    session_id,
)
from oakum_service.db.models.callers import ApiToken
from oakum_service.errors import Forbidden
from oakum_service.identity import audit, tokens
from oakum_service.identity.tokens import short_id

router = APIRouter(prefix="/v1/session", tags=["session"])

SESSION_S = 12 * 3600.0
"""Most seconds for which one stays signed in to the dashboard."""


@router.get("")
def show_session(context: InContext, viewer: Viewer) -> SessionView:
    """Tell the caller's name and role, and until when the session or token is valid."""
    with context.readers.begin() as session:
        row = session.get(ApiToken, viewer.digest)
        return _view(context, viewer, short_id(viewer.digest), None if row is None else row.expires_at)


@router.post("", status_code=HTTPStatus.CREATED)
def sign_in(asked: SessionRequest, context: InContext, request: Request, response: Response) -> SessionView:
    """Begin a session with a token of the role viewer, user or admin: the answer sets a cookie, and tells the key
    that opens the service together with it, for 12 hours at most and not longer than the token. Needs the header
    `X-Oakum-Dashboard`."""
    require_guard(request)
    principal = principal_of(context, asked.token.strip(), request)
    if principal.role < Role.VIEWER:
        raise Forbidden("a token of the role hook opens no dashboard: use one of the role viewer, user or admin")
    now = time.time()
    with context.sessions.begin() as session:
        row = session.get_one(ApiToken, principal.digest)
        text, expires_at = tokens.begin_session(session, row, now, SESSION_S)
        audit.record(session, principal.actor, "session.begun", principal.name, principal.name)
    keep_session(request, response, text, expires_at - now)
    return _view(context, principal, session_id(text), expires_at, page_key(text))


@router.delete("", status_code=HTTPStatus.NO_CONTENT)
def sign_out(context: InContext, viewer: Viewer, request: Request) -> Response:
    """End the session that the request came with, and clear its cookie. A token that is no session stays
    valid."""
    with context.sessions.begin() as session:
        row = session.get(ApiToken, viewer.digest)
        if row is not None and tokens.is_session(row):
            session.delete(row)
            audit.record(session, viewer.actor, "session.ended", viewer.name, viewer.name)
    context.news_for_readers.notify()  # event streams look whether their sessions are still valid
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    drop_session(request, response)
    return response


def _view(
    context: Context, principal: Principal, id_: str, expires_at: float | None, key: str | None = None
) -> SessionView:
    trusted = principal.role is Role.ADMIN or context.settings.users_may_submit
    return SessionView(
        id=id_,
        name=principal.name,
        role=principal.role.name.lower(),
        expires_at=expires_at,
        key=key,
        may_submit=principal.role >= Role.USER and trusted,
    )
