"""Answers the calls of agents ahead of the routes: of a large cluster's requests they are nearly all."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Sequence

from fastapi.security import HTTPAuthorizationCredentials
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oakum_service.api.auth import admit_fragment
from oakum_service.api.fragments import LONGEST_WAIT_S, next_directive, report_interval
from oakum_service.errors import ServiceError
from oakum_worker.protocol import REPORT_INTERVAL, FragmentReport

_CALL = re.compile(r"/v1/fragments/([^/]+)/(report|directive)")
_QUESTION = re.compile(rb"after=(?P<after>-?[0-9]{1,18})&wait_s=(?P<wait_s>[0-9]{1,3}(?:\.[0-9]{1,6})?)")
"""The query by which an agent asks for a directive."""
_USUAL_BYTES = 65_536
"""Largest report that is read here."""


class AgentCalls:
    """Middleware that takes reports and hands out directives: by the routes of the same paths, each takes four
    times as long. A call that is not in order is passed on to these, which say what is wrong with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request if it is such a call."""
        call = _CALL.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if call is None:
            await self._app(scope, receive, send)
            return
        fragment, kind = call.groups()
        state: State = scope["app"].state
        received: list[Message] = []
        try:
            admit_fragment(state, fragment, _credentials(scope))
            if (scope["method"], kind) == ("POST", "report"):
                answer = await _take_report(state, fragment, receive, received)
            elif (scope["method"], kind) == ("GET", "directive"):
                answer = await _wait_for_directive(state, fragment, scope)
            else:
                answer = None
        except (ServiceError, SQLAlchemyError, ValueError):
            answer = None
        if answer is None:
            await self._app(scope, _again(received, receive), send)
            return
        for message in answer:
            await send(message)


async def _take_report(
    state: State, fragment: str, receive: Receive, received: list[Message]
) -> Sequence[Message] | None:
    """The answer to a report, whose messages are put into `received`; None if it is passed on."""
    body = b""
    while not received or received[-1].get("more_body", False):
        received.append(await receive())
        body += received[-1].get("body", b"")
        if len(body) > _USUAL_BYTES or received[-1]["type"] != "http.request":
            return None
    report = FragmentReport.model_validate_json(body)
    if not await asyncio.wrap_future(state.reports.submit(fragment, report)):
        return None
    return _answer(204, b"", {REPORT_INTERVAL: report_interval(state.reports, report)})


async def _wait_for_directive(state: State, fragment: str, scope: Scope) -> Sequence[Message] | None:
    """The answer to a question for a directive; None if it is passed on."""
    question = _QUESTION.fullmatch(scope["query_string"])
    if question is None or float(question["wait_s"]) > LONGEST_WAIT_S:
        return None
    until_s = time.monotonic() + float(question["wait_s"])
    directive = await next_directive(state.context, state.revisions, fragment, int(question["after"]), until_s)
    if directive is None:
        return _answer(204, b"", {})
    return _answer(200, directive.model_dump_json(by_alias=True).encode(), {"content-type": "application/json"})


def _credentials(scope: Scope) -> HTTPAuthorizationCredentials | None:
    scheme, _, token = Headers(scope=scope).get("Authorization", "").partition(" ")
    return HTTPAuthorizationCredentials(scheme=scheme, credentials=token) if scheme.lower() == "bearer" else None


def _answer(status: int, body: bytes, fields: dict[str, str]) -> Sequence[Message]:
    if status != 204:
        fields = {**fields, "content-length": str(len(body))}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


def _again(received: Sequence[Message], receive: Receive) -> Receive:
    """A receiver of the messages that have been received, and then of those that come."""
    waiting = deque(received)

    async def next_message() -> Message:
        return waiting.popleft() if waiting else await receive()

    return next_message
