"""Who may do what: bearer tokens, kept as hashes, each with one role; and fragments, each for itself alone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.orm import Session

from oakum_service.api.context import Context, InContext
from oakum_service.db.models import ApiToken
from oakum_service.errors import Forbidden, Unauthorized

_bearer = HTTPBearer(auto_error=False, description="A token from `oakum token`")
_REMEMBERED_S = 5.0
"""How long a revoked token of a hook may still be taken."""
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Role(IntEnum):
    """Each role may do all that a lower one may; but only `HOOK` and `ADMIN` speak for the main scheduler."""

    HOOK = 0
    """Posts what hooks and collectors of the main scheduler have to tell, and reads nothing."""
    VIEWER = 1
    """Reads everything."""
    USER = 2
    """Submits, scales and cancels trainers."""
    ADMIN = 3
    """Everything."""


@dataclass(frozen=True)
class Principal:
    """Whoever sent the request."""

    name: str
    role: Role


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def create_token(session: Session, name: str, role: Role) -> str:
    """Make a token; its text is returned once and never stored."""
    token = "oakum-" + secrets.token_urlsafe(24)
    session.add(ApiToken(digest=digest(token), name=name, role=role.name.lower(), created_at=time.time()))
    return token


def _principal(context: InContext, credentials: _Credentials) -> Principal:
    if credentials is None:
        raise Unauthorized("no token: send `Authorization: Bearer <token>`; `oakum serve` prints one at its start")
    with context.readers.begin() as session:
        row = session.get(ApiToken, digest(credentials.credentials))
    if row is None:
        raise Unauthorized("the token is not known here: `oakum token create` makes one")
    return Principal(row.name, Role[row.role.upper()])


def _at_least(role: Role, principal: Principal, request: Request) -> Principal:
    if principal.role < role:
        raise Forbidden(
            f"{request.method} {request.url.path} needs the role {role.name.lower()}; "
            f"this token has {principal.role.name.lower()}"
        )
    return principal


def _viewer(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.VIEWER, principal, request)


def _user(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.USER, principal, request)


def _admin(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.ADMIN, principal, request)


async def _poster(context: InContext, credentials: _Credentials, request: Request) -> Principal:
    """Thousands of hooks may come at once: a token that was good a moment ago is not looked up again."""
    known: dict[str, tuple[Principal, float]] = request.app.state.posters
    key = "" if credentials is None else digest(credentials.credentials)
    principal, until = known.get(key, (None, 0.0))
    if principal is None or time.monotonic() > until:
        principal = await asyncio.to_thread(_principal, context, credentials)
        known.clear()
        if principal.role in (Role.HOOK, Role.ADMIN):
            known[key] = (principal, time.monotonic() + _REMEMBERED_S)
    if principal.role not in (Role.HOOK, Role.ADMIN):
        raise Forbidden(
            f"{request.method} {request.url.path} needs the role hook or admin; "
            f"this token has {principal.role.name.lower()}"
        )
    return principal


Viewer = Annotated[Principal, Depends(_viewer)]
User = Annotated[Principal, Depends(_user)]
Admin = Annotated[Principal, Depends(_admin)]
Poster = Annotated[Principal, Depends(_poster)]
"""What may speak for the main scheduler."""


def check_fragment(context: Context, fragment: str, credentials: HTTPAuthorizationCredentials | None) -> None:
    """Raise `Unauthorized` unless the token is that fragment's own."""
    expected = context.configs.token(fragment)
    if credentials is None or not hmac.compare_digest(credentials.credentials.encode(), expected.encode()):
        raise Unauthorized("this call is for the fragment's own agent")


def _fragment(fragment_id: str, context: InContext, credentials: _Credentials) -> str:
    check_fragment(context, fragment_id, credentials)
    return fragment_id


OwnFragment = Annotated[str, Depends(_fragment)]
