"""API tokens: who holds them, how long they are valid, and how one replaces another without a gap."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.callers import ApiToken
from oakum_service.identity import audit
from oakum_service.identity.audit import Actor

_ID_LENGTH = 12
LOCAL_ADMIN = "local-admin"
"""Name of the token that the CLI on the service's machine uses."""
_MOST_SESSIONS = 50
"""Most sessions that one token has at a time; one more ends the oldest."""
_SESSION = "session of "
"""How the label of a session begins; the id of its token follows."""


def digest(token: str) -> str:
    """The hash that is stored instead of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(row: ApiToken) -> str:
    """The token's id in lists: the beginning of its hash, from which nobody can derive the token."""
    return short_id(row.digest)


def short_id(digest_of_token: str) -> str:
    """The id of the token with this hash."""
    return digest_of_token[:_ID_LENGTH]


def create(
    session: Session, actor: Actor, name: str, role: str, label: str = "", lifetime_s: float | None = None
) -> str:
    """Make a token for the user `name`, tell the audit log that `actor` does, and return the token's text, which
    is never stored. `label` says what it is for; without `lifetime_s` it is valid until it is revoked."""
    details = {"role": role, "label": label, "expires_in_s": lifetime_s}
    told = {key: value for key, value in details.items() if value not in ("", None)}
    audit.record(session, actor, "token.created", name, name, **told)
    return _add(session, name, role, label, lifetime_s)


def _add(session: Session, name: str, role: str, label: str, lifetime_s: float | None) -> str:
    token, now = "oakum-" + secrets.token_urlsafe(24), time.time()
    expires_at = None if lifetime_s is None else now + lifetime_s
    row = ApiToken(
        digest=digest(token),
        name=name,
        role=role,
        label=label,
        created_at=now,
        expires_at=expires_at,
        used_at=None,
    )
    session.add(row)
    return token


def rotate(session: Session, row: ApiToken, overlap_s: float, now: float) -> str:
    """Make a token of the same user, role, label and lifetime in place of one, and return its text. The old token
    stays valid for `overlap_s`, or until it expires if that is sooner; its sessions end with it."""
    token = _add(session, row.name, row.role, row.label, lifetime_s(row))
    row.expires_at = end = min(now + overlap_s, row.expires_at or now + overlap_s)
    for begun in _sessions_of(session, row):
        begun.expires_at = min(end, begun.expires_at or end)
    return token


def lifetime_s(row: ApiToken) -> float | None:
    """For how many seconds the token was made; None: until it is revoked."""
    return None if row.expires_at is None else row.expires_at - row.created_at


def begin_session(session: Session, row: ApiToken, now: float, lifetime_s: float) -> tuple[str, float]:
    """Make a session of the dashboard: a token of the same user and role that expires after `lifetime_s`, or with
    `row` if that is sooner. Returns its text and when it expires."""
    label = _session_label(row)
    for older in [*listed(session, row.name, label)][: 1 - _MOST_SESSIONS]:
        session.delete(older)
    expires_at = min(now + lifetime_s, row.expires_at or now + lifetime_s)
    text = _add(session, row.name, row.role, label, expires_at - now)
    return text, expires_at


def end_sessions(session: Session, row: ApiToken) -> None:
    """Delete the sessions that were begun with the token."""
    for begun in _sessions_of(session, row):
        session.delete(begun)


def _sessions_of(session: Session, row: ApiToken) -> Sequence[ApiToken]:
    return listed(session, row.name, _SESSION + id_of(row))


def is_session(row: ApiToken) -> bool:
    """Whether the token is a session of the dashboard."""
    return names_session(row.label)


def names_session(label: str) -> bool:
    """Whether a token with this label is a session of the dashboard."""
    return label.startswith(_SESSION)


def latest_end(session: Session, row: ApiToken) -> float | None:
    """When a token that is made with this one has to end at the latest. With a session that is when the token
    ends that it was begun with; None: it may last."""
    if not is_session(row):
        return None
    begun_with = with_id(session, row.label.removeprefix(_SESSION))
    return row.expires_at if begun_with is None else begun_with.expires_at


def _session_label(row: ApiToken) -> str:
    return row.label if is_session(row) else _SESSION + id_of(row)


def is_valid(row: ApiToken | None, now: float) -> bool:
    """Whether the token exists and has not expired."""
    return row is not None and (row.expires_at is None or now < row.expires_at)


def listed(session: Session, name: str | None = None, label: str | None = None) -> Sequence[ApiToken]:
    """The tokens, of one user or of one label where these are given, in the order in which they were made."""
    query = select(ApiToken).order_by(ApiToken.created_at, ApiToken.digest)
    if name is not None:
        query = query.where(ApiToken.name == name)
    if label is not None:
        query = query.where(ApiToken.label == label)
    return session.execute(query).scalars().all()


def with_id(session: Session, id_: str) -> ApiToken | None:
    """The token with that id; None if there is none."""
    rows = session.execute(select(ApiToken).where(ApiToken.digest.startswith(id_, autoescape=True))).scalars()
    return next((row for row in rows if id_of(row) == id_), None)


def forget_expired(session: Session, before: float) -> None:
    """Delete the tokens that expired before that time."""
    for row in listed(session):
        if row.expires_at is not None and row.expires_at < before:
            session.delete(row)
