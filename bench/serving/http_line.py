"""A client's connection: HTTP/1.1 by hand, since a library would take the load generator more CPU time than the
service has."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from serving.measured import Measured

ANSWER_S = 20.0
"""Within which an answer has to come, beyond what the client said that it would wait."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    fields: dict[str, str]
    """Its header, with names in lower case."""
    body: bytes = field(repr=False)
    """As it was sent, perhaps compressed."""

    @property
    def document(self) -> Any:
        """The body's JSON."""
        zipped = self.fields.get("content-encoding") == "gzip"
        return json.loads(zlib.decompress(self.body, zlib.MAX_WBITS | 16) if zipped else self.body)


class Line:
    """One connection with one caller's token, opened anew when it has broken. Each answer is measured."""

    def __init__(self, url: str, token: str, measured: Measured, *, zipped: bool = True) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._head += "Accept-Encoding: gzip\r\n" if zipped else ""
        self._measured = measured
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, route: str, path: str, body: Any = None, *, waits_s: float = 0.0, expected: tuple[int, ...] = ()
    ) -> Answer | None:
        """Send a request and read its answer; None where none came. `route` is `GET /v1/trainers/{ref}`, `path`
        what is asked for. An answer that takes longer than `waits_s` is late by the rest. Counts as an error what
        is neither a success nor `expected`."""
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(ANSWER_S + waits_s):
                answer = await self._exchange(route.split()[0], path, body)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            self.close()
            self._measured.fail(route, type(error).__name__)
            return None
        took_s = asyncio.get_running_loop().time() - began_s
        if answer.status < 400 or answer.status in expected:
            self._measured.answered(route, max(0.0, took_s - waits_s) if waits_s else took_s)
        else:
            self._measured.fail(route, f"{answer.status} {answer.body[:200]!r}")
        return answer

    async def _exchange(self, method: str, path: str, body: Any) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        kind = "" if body is None else "Content-Type: application/json\r\n"
        is_new = self._streams is None
        try:
            return await self._send(method, path, kind, content)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if is_new:
                raise
            # The service closes a connection that nobody has used for a while.
            return await self._send(method, path, kind, content)

    async def _send(self, method: str, path: str, kind: str, content: bytes) -> Answer:
        reader, writer = await self._open()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}Content-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        status, fields = _read_head(await reader.readuntil(b"\r\n\r\n"))
        if fields.get("transfer-encoding") == "chunked":
            return Answer(status, fields, b"".join([chunk async for chunk in _chunks(reader)]))
        length = int(fields.get("content-length", "0"))
        return Answer(status, fields, await reader.readexactly(length) if length else b"")

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
        return self._streams

    async def events(self, route: str) -> AsyncIterator[bytes]:
        """The chunks of the event stream. It ends where the service ends it, which counts as an error."""
        try:
            reader, writer = await self._open()
            head = f"GET /v1/events HTTP/1.1\r\n{self._head}Accept: text/event-stream\r\nContent-Length: 0\r\n\r\n"
            writer.write(head.encode())
            status, _ = _read_head(await reader.readuntil(b"\r\n\r\n"))
            if status != 200:
                self._measured.fail(route, str(status))
                return
            async for chunk in _chunks(reader):
                yield chunk
            self._measured.fail(route, "ended")
        except (OSError, EOFError) as error:
            self._measured.fail(route, type(error).__name__)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split()[1]), {name.lower(): value for name, value in fields.items()}
