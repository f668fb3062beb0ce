"""Counts HTTP requests and times their answers."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oakum_service.instruments import REQUEST_S, REQUESTS


class RequestMetrics:
    """Middleware that counts every answer by its status and measures how long it took to begin. Long polls and
    event streams are counted and not measured: they wait on purpose."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request and count its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        waits = scope["path"].endswith(("/directive", "/v1/events"))

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                REQUESTS.labels(str(message["status"])).inc()
                if not waits:
                    REQUEST_S.observe(time.monotonic() - began_s)
            await send(message)

        await self._app(scope, receive, counted_send)
