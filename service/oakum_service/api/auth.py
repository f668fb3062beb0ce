"""Who may do what: bearer tokens, stored as hashes, each with one role; the dashboard's sessions, in a cookie;
accounts at the Unix socket; and agents' tokens, each for one fragment."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import State

from oakum_service.api.context import Context, InContext
from oakum_service.api.rate_limit import RateLimit
from oakum_service.api.request_ids import present_request
from oakum_service.api.session_cookie import session_text
from oakum_service.api.token_uses import TokenUses
from oakum_service.db.models.callers import ApiToken
from oakum_service.errors import Forbidden, Unauthorized
from oakum_service.identity.accounts import account_at_socket
from oakum_service.identity.audit import Actor
from oakum_service.identity.tokens import digest, is_valid, short_id
from oakum_service.network.connections import uid_of

_bearer = HTTPBearer(auto_error=False, description="A token from `oakum token`")
_REMEMBERED_S = 5.0
"""Seconds for which a hook's token may still be accepted after it was revoked."""
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Role(IntEnum):
    """A role includes all lower ones, except that only `HOOK` and `ADMIN` may speak for the main scheduler."""

    HOOK = 0
    """Posts what hooks and collectors of the main scheduler report; reads nothing."""
    VIEWER = 1
    """Reads everything of all trainers."""
    USER = 2
    """Submits trainers; changes, cancels and reads its own, and sees of others' which nodes they have."""
    ADMIN = 3
    """Everything."""


@dataclass(frozen=True)
class Principal:
    """Whoever sends a request: name and role."""

    name: str
    role: Role
    digest: str = field(default="", compare=False, repr=False)
    """The hash of the token that came with the request, or of what else shows who sends it."""
    uid: int | None = field(default=None, compare=False, repr=False)
    """The account at the Unix socket; None for a request with a token."""

    @property
    def bearer(self) -> str:
        """What shows who sends the request, for messages."""
        return "this token" if self.uid is None else f"the account {self.name}"

    @property
    def actor(self) -> Actor:
        """The holder, as the audit log names whoever sends the present request."""
        origin = present_request()
        return Actor(
            self.name,
            self.role.name.lower(),
            short_id(self.digest) if self.uid is None else "",
            "" if origin is None else origin.id,
            "" if origin is None else origin.address,
        )


def _principal(context: InContext, credentials: _Credentials, request: Request) -> Principal:
    uid = uid_of(request.scope)
    if credentials is not None:
        return principal_of(context, credentials.credentials, request)
    if (text := session_text(request)) is not None:
        return _in_session(context, text, request)
    if uid is not None:
        return _counted(_account(context, uid), request)
    raise Unauthorized("no token: send `Authorization: Bearer <token>`; `oakum serve` prints one at its start")


def _in_session(context: Context, text: str, request: Request) -> Principal:
    try:
        return principal_of(context, text, request)
    except Unauthorized as error:
        raise Unauthorized(
            "this session has ended, or the browser has another one by now: load the page again, or sign in"
        ) from error


def principal_of(context: Context, text: str, request: Request) -> Principal:
    """The holder of the token or session with this text, to whom the request is counted. Raises `Unauthorized` if
    it is unknown or has expired, and `TooManyRequests`."""
    return _counted(_holder(context, text, request), request)


def _counted(principal: Principal, request: Request) -> Principal:
    """The principal, to whom the request was counted. Raises `TooManyRequests`."""
    request.state.principal = principal  # for whoever records a refusal
    if principal.role in (Role.VIEWER, Role.USER):
        limit: RateLimit = request.app.state.rate_limit
        limit.count(principal.digest)
    return principal


def _account(context: Context, uid: int) -> Principal:
    """The account that calls over the Unix socket. Raises `Forbidden` where the settings do not let it in."""
    account = account_at_socket(uid, context.settings)
    return Principal(account.name, Role[account.role.upper()], digest(f"uid {uid}"), uid)


def _holder(context: Context, text: str, request: Request) -> Principal:
    """The holder of a token or session. Raises `Unauthorized` if it is unknown or has expired."""
    now, key = time.time(), digest(text)
    with context.readers.begin() as session:
        row = session.get(ApiToken, key)
    if row is None:
        raise Unauthorized("the token is not known here: `oakum token create` makes one")
    if row.expires_at is not None and not is_valid(row, now):
        ended = datetime.fromtimestamp(row.expires_at, UTC).isoformat(" ", "seconds")
        raise Unauthorized(
            f"the token expired at {ended}: ask an administrator for another (`oakum token create`)"
        )
    uses: TokenUses = request.app.state.token_uses
    uses.note(key, row.used_at, now)
    return Principal(row.name, Role[row.role.upper()], key)


def is_still_valid(context: Context, principal: Principal) -> bool:
    """Whether what the principal came with still opens the service: a token that has been neither revoked nor
    expired, or an account that the settings let in."""
    if principal.uid is not None:
        try:
            return account_at_socket(principal.uid, context.settings).name == principal.name
        except Forbidden:
            return False
    with context.readers.begin() as session:
        return is_valid(session.get(ApiToken, principal.digest), time.time())


def _at_least(role: Role, principal: Principal, request: Request) -> Principal:
    if principal.role < role:
        raise Forbidden(
            f"{request.method} {request.url.path} needs the role {role.name.lower()}; "
            f"{principal.bearer} has {principal.role.name.lower()}"
        )
    return principal


def _viewer(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.VIEWER, principal, request)


def _user(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.USER, principal, request)


def _admin(principal: Annotated[Principal, Depends(_principal)], request: Request) -> Principal:
    return _at_least(Role.ADMIN, principal, request)


async def hook_or_admin(context: InContext, credentials: _Credentials, request: Request) -> Principal:
    """The holder of the request's token if its role is hook or admin. Raises `Unauthorized` for no or an unknown
    token, and `Forbidden` for another role.

    Thousands of hooks may call at once, so a valid token is remembered for 5 s instead of being looked up each
    time.
    """
    known: dict[str, tuple[Principal, float]] = request.app.state.recent_hook_tokens
    key = "" if credentials is None else digest(credentials.credentials)
    principal, until = known.get(key, (None, 0.0))
    if principal is None or time.monotonic() > until:
        principal = await asyncio.to_thread(_principal, context, credentials, request)
        known.clear()
        # Without a token there is no key: an account at the Unix socket is asked for each time.
        if key and principal.role in (Role.HOOK, Role.ADMIN):
            known[key] = (principal, time.monotonic() + _REMEMBERED_S)
    if principal.role not in (Role.HOOK, Role.ADMIN):
        raise Forbidden(
            f"{request.method} {request.url.path} needs the role hook or admin; "
            f"{principal.bearer} has {principal.role.name.lower()}"
        )
    return principal


Viewer = Annotated[Principal, Depends(_viewer)]
User = Annotated[Principal, Depends(_user)]
Admin = Annotated[Principal, Depends(_admin)]
HookOrAdmin = Annotated[Principal, Depends(hook_or_admin)]
"""The caller may speak for the main scheduler."""


def check_fragment(context: Context, fragment: str, credentials: HTTPAuthorizationCredentials | None) -> None:
    """Raise `Unauthorized` unless the token is the one made for this fragment's agent."""
    expected = context.configs.token(fragment)
    if credentials is None or not hmac.compare_digest(credentials.credentials.encode(), expected.encode()):
        raise Unauthorized("this call is for the fragment's own agent")


def admit_fragment(state: State, fragment: str, credentials: HTTPAuthorizationCredentials | None) -> None:
    """Count a request of the fragment's agent. Raises `Unauthorized` unless the token is the one made for it, and
    `TooManyRequests`. `state` is that of the app."""
    check_fragment(state.context, fragment, credentials)
    # The trainer's code can read this token. Counted in memory: what is refused costs no access to the database.
    limit: RateLimit = state.fragment_limit
    limit.count(fragment)


async def _fragment(fragment_id: str, credentials: _Credentials, request: Request) -> str:
    admit_fragment(request.app.state, fragment_id, credentials)
    return fragment_id


OwnFragment = Annotated[str, Depends(_fragment)]
