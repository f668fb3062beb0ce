"""Limits the size of request bodies, which are read before the sender is known."""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oakum_service.api.problems import problem_response

LARGEST_BODY_BYTES = 1_000_000
LARGEST_STATE_BYTES = 100_000_000
"""Limit for a posted state of a whole cluster, whose sender is checked before the body is read; 20,000 jobs are
7 MB."""
STATE_PATH = "/v1/cluster/snapshots"
_REFUSAL = "the body is larger than {:,} bytes: pass the name of a file instead of its content"


class BodyLimit:
    """Middleware that refuses request bodies above a limit: at once if Content-Length says so, otherwise when too
    much has been read. FastAPI's own limit would answer in plain text; every refusal here is a problem
    document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while counting the bytes of its body. A body that grows beyond the limit is answered
        with status 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("Content-Length", "")
        largest = LARGEST_STATE_BYTES if scope["path"] == STATE_PATH else LARGEST_BODY_BYTES
        # A number too long for int() is refused by length alone.
        if told.isdecimal() and (len(told) > 18 or int(told) > largest):
            refusal = problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _REFUSAL.format(largest))
            await refusal(scope, receive, send)
            return
        num_bytes = 0

        async def count() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > largest:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _REFUSAL.format(largest))
            return message

        await self._app(scope, count, send)
