"""Events as they happen, over as many connections as that takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from oakum_client.rest.connection import Connection
from oakum_service.api.schemas.events import Event

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_SILENCE_S = 60.0
"""An event stream without any data for this many seconds, keep-alives included, counts as broken."""


def events_after(connection: Connection, after: int | None, give_up_s: float) -> Iterator[Event]:
    """Events with ids above `after`, without end; with None, those from now on.

    A broken stream is resumed where it broke; `ServiceUnreachable` is raised when this has failed for `give_up_s`
    seconds. At the start an unreachable service raises it at once.
    """
    reached_at: float | None = None
    backoff_s = _FIRST_BACKOFF_S
    while True:
        headers = {"Accept": "text/event-stream"} | ({} if after is None else {"Last-Event-ID": str(after)})
        try:
            with connection.stream("/v1/events", headers, _SILENCE_S) as answer:
                try:
                    for event in _events_in(answer, connection):
                        after, backoff_s = event.id, _FIRST_BACKOFF_S
                        yield event
                finally:
                    reached_at = time.monotonic()
        except httpx.TransportError as error:
            if reached_at is None or time.monotonic() - reached_at > give_up_s:
                raise connection.unreachable(error) from error
        time.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)


def _events_in(answer: httpx.Response, connection: Connection) -> Iterator[Event]:
    data: list[str] = []
    for line in answer.iter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield connection.parse("\n".join(data).encode(), Event)
            data = []
