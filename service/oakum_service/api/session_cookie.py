"""The dashboard's cookie: where its text is in a request, and how it is set and cleared.

A browser sends a host's cookies to every port of that host, and with every request that any page there makes. So
the cookie has the port in its name, holds a session instead of the user's token, and changes nothing unless the
request has a header that a page from elsewhere cannot send: before a browser sends such a header, it asks the
server, which never agrees.
"""

from __future__ import annotations

from fastapi import Request, Response

from oakum_service.errors import Forbidden, Unauthorized
from oakum_service.identity.tokens import digest, short_id

GUARD_HEADER = "X-Oakum-Dashboard"
"""Header that requests of the dashboard have: `1`, or the id of the session that the page was signed in with."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


def cookie_name(request: Request) -> str:
    """The cookie's name, which differs between services on one host."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"oakum-session-{port}"


def session_text(request: Request) -> str | None:
    """The session's text in the request's cookie; None if there is none. Raises `Forbidden` if the request would
    change something and may come from a page of another site, and `Unauthorized` if it comes from a page that was
    signed in with another session: all pages of a browser share the cookie of the newest."""
    text = request.cookies.get(cookie_name(request))
    if text is None:
        return None
    if request.method not in _READING:
        require_guard(request)
    if request.headers.get(GUARD_HEADER, "1") not in ("1", session_id(text)):
        raise Unauthorized("this page was signed in with another session than the browser has now: load it again")
    return text


def session_id(text: str) -> str:
    """The id of the session with this text, which tells nobody the text."""
    return short_id(digest(text))


def require_guard(request: Request) -> None:
    """Raise `Forbidden` for a request that a page of another site could make a browser send."""
    if GUARD_HEADER not in request.headers:
        raise Forbidden(
            f"a change that is signed in by a cookie needs the header {GUARD_HEADER}: send {GUARD_HEADER}: 1"
        )


def keep_session(request: Request, response: Response, text: str, lifetime_s: float) -> None:
    """Set the session's cookie to `text` for `lifetime_s` seconds. Scripts cannot read it, and other sites' pages
    do not send it."""
    response.set_cookie(
        cookie_name(request),
        text,
        max_age=max(1, int(lifetime_s)),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def drop_session(request: Request, response: Response) -> None:
    """Clear the session's cookie."""
    secure = request.url.scheme == "https"
    response.delete_cookie(cookie_name(request), path="/", secure=secure, httponly=True, samesite="strict")
