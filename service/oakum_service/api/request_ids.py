"""Gives every request an id, which the answer, the log and the audit log name."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oakum_service.logs.fields import about
from oakum_service.network.connections import uid_of

HEADER = "X-Request-ID"
_KEY = "oakum.request_id"
_ACCEPTABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class RequestOrigin:
    """The request that is being handled: its id, and the address it came from; for one over the Unix socket,
    `uid` and the caller's uid."""

    id: str
    address: str


_PRESENT: ContextVar[RequestOrigin | None] = ContextVar("request that is being handled", default=None)


def present_request() -> RequestOrigin | None:
    """The request that is being handled in this context; None outside of requests."""
    return _PRESENT.get()


def id_of(scope: Scope) -> str:
    """The id that `RequestIds` gave the request of this ASGI scope; empty if the request never came so far."""
    return str(scope.get(_KEY, ""))


class RequestIds:
    """Middleware that gives each request an id: the one that a client or proxy sent as `X-Request-ID` if it has at
    most 64 characters, all of them letters, digits, dots, hyphens or underscores; otherwise a new one. The answer
    has it as a header of that name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request within a context in which `present_request` tells of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = sent if _ACCEPTABLE.fullmatch(sent) else secrets.token_hex(8)
        scope[_KEY] = request_id
        uid, client = uid_of(scope), scope.get("client")
        address = (client[0] if client else "") if uid is None else f"uid {uid}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        before = _PRESENT.set(RequestOrigin(request_id, address))
        try:
            with about(request=request_id):
                await self._app(scope, receive, send_with_id)
        finally:
            _PRESENT.reset(before)
