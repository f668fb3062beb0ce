"""/v1/tokens: who has tokens, and how to make, replace and revoke them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.orm import Session

from oakum_service.api.auth import Admin, Principal, Role, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.tokens import NewToken, RotateRequest, TokenList, TokenRequest, TokenView
from oakum_service.db import event_log
from oakum_service.db.models.callers import ApiToken
from oakum_service.errors import Conflict, Forbidden, NotFound
from oakum_service.identity import audit, tokens

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])

TokenId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="`id` of the token in the list")]


@router.get("")
def list_tokens(context: InContext, viewer: Viewer) -> TokenList:
    """List the caller's tokens; an administrator's list has everybody's. No answer has a token's text."""
    name = None if viewer.role is Role.ADMIN else viewer.name
    with context.readers.begin() as session:
        own = tokens.short_id(viewer.digest)
        return TokenList(tokens=[_view(row, own) for row in tokens.listed(session, name)])


@router.post("", status_code=HTTPStatus.CREATED)
def create_token(request: TokenRequest, context: InContext, admin: Admin) -> NewToken:
    """Make a token for a user. The answer has its text, which is not stored and cannot be asked for again. A
    user who is signed in by a session cannot make a token that ends later than the one that began the session."""
    with context.sessions.begin() as session:
        _check_end(session, admin, request.expires_in_s)
        text = tokens.create(session, admin.actor, request.name, request.role, request.label, request.expires_in_s)
        event_log.record(session, "token.created", request.name, f"{admin.name} makes a {_called(request)}")
        return _new(session, text)


@router.post("/{token_id}/rotate", status_code=HTTPStatus.CREATED)
def rotate_token(token_id: TokenId, request: RotateRequest, context: InContext, viewer: Viewer) -> NewToken:
    """Make a token in place of one, which stays valid for `overlap_s`. Users replace their own tokens,
    administrators all. The answer has the new token's text. With a token its sessions end, and no session is
    replaced."""
    with context.sessions.begin() as session:
        row = _own(session, token_id, viewer)
        if tokens.is_session(row):
            raise Conflict(f"{token_id} is a session of the dashboard: sign in again instead of replacing it")
        _check_end(session, viewer, tokens.lifetime_s(row))
        now = time.time()
        if not tokens.is_valid(row, now):
            raise Conflict(f"{token_id} has expired: an administrator makes another token")
        text = tokens.rotate(session, row, request.overlap_s, now)
        event_log.record(session, "token.rotated", row.name, f"{viewer.name} replaces a {_called(row)}")
        audit.record(session, viewer.actor, "token.rotated", row.name, row.name, id=token_id)
        new_token = _new(session, text)
    context.news_for_readers.notify()  # event streams look whether their tokens are still valid
    return new_token


@router.delete("/{token_id}", status_code=HTTPStatus.NO_CONTENT)
def revoke_token(token_id: TokenId, context: InContext, viewer: Viewer) -> Response:
    """Revoke a token and the sessions begun with it: at once for the API, within 5 s for hooks. Users revoke their
    own tokens, administrators all."""
    with context.sessions.begin() as session:
        row = _own(session, token_id, viewer)
        event_log.record(session, "token.revoked", row.name, f"{viewer.name} revokes a {_called(row)}")
        audit.record(session, viewer.actor, "token.revoked", row.name, row.name, id=token_id)
        tokens.end_sessions(session, row)
        session.delete(row)
    context.news_for_readers.notify()  # event streams look whether their tokens are still valid
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _own(session: Session, token_id: str, viewer: Principal) -> ApiToken:
    row = tokens.with_id(session, token_id)
    if row is None or (viewer.role is not Role.ADMIN and row.name != viewer.name):
        raise NotFound(f"there is no token {token_id} of yours: `GET /v1/tokens` lists them")
    return row


def _check_end(session: Session, caller: Principal, lifetime_s: float | None) -> None:
    """Raise `Forbidden` if the caller has a session, and a token of that lifetime would outlast the token which
    the session was begun with."""
    row = session.get(ApiToken, caller.digest)
    latest = None if row is None else tokens.latest_end(session, row)
    if latest is None or (lifetime_s is not None and time.time() + lifetime_s <= latest):
        return
    ends = datetime.fromtimestamp(latest, UTC).isoformat(" ", "seconds")
    raise Forbidden(
        f"you have signed in with a token that ends at {ends}, and what is made with a session ends no later: "
        "choose an earlier end, or send that token itself, as `Authorization: Bearer <token>`"
    )


def _called(token: ApiToken | TokenRequest) -> str:
    return f"token of the role {token.role}" + (f" for {token.label}" if token.label else "")


def _new(session: Session, text: str) -> NewToken:
    session.flush()
    row = session.get_one(ApiToken, tokens.digest(text))
    return NewToken(token=text, **_view(row).model_dump())


def _view(row: ApiToken, own: str = "") -> TokenView:
    """The token's document; `own` is the id of the one with which the request came."""
    return TokenView(
        id=tokens.id_of(row),
        name=row.name,
        role=row.role,
        label=row.label,
        created_at=row.created_at,
        expires_at=row.expires_at,
        used_at=row.used_at,
        is_session=tokens.is_session(row),
        is_own=tokens.id_of(row) == own,
    )
