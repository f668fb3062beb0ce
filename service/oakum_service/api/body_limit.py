"""Limits the size of request bodies, which are read before the sender is known: their bytes, and the values in
them, each of which costs a hundred times what its bytes do."""

from __future__ import annotations

import re
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
MOST_VALUES = 25_000
"""Most values of a body. 1,000 reports of hooks, the largest that anyone has to send, have 13,000."""
_REFUSAL = "the body is larger than {:,} bytes: pass the name of a file instead of its content"
_TOO_MANY = f"the body has more than {MOST_VALUES:,} values: pass the name of a file instead of its content"
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class BodyLimit:
    """Middleware that refuses request bodies above a limit: at once if Content-Length says so, otherwise when too
    much has been read. FastAPI's own limit would answer in plain text; every refusal here is a problem
    document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while counting the bytes of its body, and at its end the values in it. A body that
        grows beyond a limit is answered with status 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("Content-Length", "")
        is_state = scope["path"] == STATE_PATH
        largest = LARGEST_STATE_BYTES if is_state else LARGEST_BODY_BYTES
        # A number too long for int() is refused by length alone.
        if length.isdecimal() and (len(length) > 18 or int(length) > largest):
            refusal = problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _REFUSAL.format(largest))
            await refusal(scope, receive, send)
            return
        num_bytes, parts = 0, []

        async def count() -> Message:
            nonlocal num_bytes
            message = await receive()
            part = message.get("body", b"")
            num_bytes += len(part)
            if num_bytes > largest:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _REFUSAL.format(largest))
            if part and not is_state:
                parts.append(part)
                if not message.get("more_body", False) and num_values(b"".join(parts)) > MOST_VALUES:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_MANY)
            return message

        await self._app(scope, count, send)


def num_values(body: bytes) -> int:
    """Number of values in a body of JSON, or more: each begins the body, a list or an object, or follows a
    comma."""
    num_marks = _num_marks(body)
    # JSON in UTF-8 has no zero byte, and in another encoding a text cannot be told from what follows it.
    if num_marks > MOST_VALUES and b"\0" not in body:
        num_marks = _num_marks(_TEXT.sub(b"", body))
    return num_marks + 1


def _num_marks(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")
