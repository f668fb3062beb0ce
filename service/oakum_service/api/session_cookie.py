"""The dashboard's session: one half of its text is in a cookie, the other half in a header.

A browser sends a host's cookies to every port of that host, so whoever runs another web server there gets them.
What a page stores, and the headers that it sends, it keeps for that page's host and port. So the cookie has the
port in its name, opens nothing without the page's half, and neither is the user's token. A browser asks the
server before a page from elsewhere sends the header; the server never agrees.
"""

from __future__ import annotations

from fastapi import Request, Response

from oakum_service.errors import Forbidden, Unauthorized
from oakum_service.identity.tokens import digest, short_id

GUARD_HEADER = "X-Oakum-Dashboard"
"""Header that requests of the dashboard have: the page's half of the session, or `1` to sign in."""
_HALF = 16
"""Characters of a session's text, which is random, that the page keeps."""


def cookie_name(request: Request) -> str:
    """The cookie's name, which differs between services on one host."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"oakum-session-{port}"


def session_text(request: Request) -> str | None:
    """The text of the session that the request came with; None if it has no cookie. Raises `Unauthorized` if the
    page's half is missing. With that of an older session the text is no session's: all pages of a browser share
    the cookie of the newest."""
    half = request.cookies.get(cookie_name(request))
    if half is None:
        return None
    if len(key := request.headers.get(GUARD_HEADER, "")) != _HALF:
        raise Unauthorized("a cookie opens nothing by itself: sign in on the dashboard, or send a token")
    return half + key


def page_key(text: str) -> str:
    """The page's half of a session's text."""
    return text[-_HALF:]


def session_id(text: str) -> str:
    """The id of the session with this text, which tells nobody the text."""
    return short_id(digest(text))


def require_guard(request: Request) -> None:
    """Raise `Forbidden` for a request that a page of another site could make a browser send."""
    if GUARD_HEADER not in request.headers:
        raise Forbidden(f"signing in needs the header {GUARD_HEADER}: send {GUARD_HEADER}: 1")


def keep_session(request: Request, response: Response, text: str, lifetime_s: float) -> None:
    """Set the cookie's half of the session's text for `lifetime_s` seconds. Scripts cannot read it, and other
    sites' pages do not send it."""
    response.set_cookie(
        cookie_name(request),
        text[:-_HALF],
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
