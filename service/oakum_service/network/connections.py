"""Keeps room for whoever has something to say: limits connections that hold a file but bring no request.

uvicorn waits without limit for a request's end, so some thousand clients that never finish theirs would use up
the process's file descriptors, and nobody else could connect. Here connections without a whole request are the
first to be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
import struct
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 60.0
"""Longest time in seconds until a request's end, from its first byte on or, before that, from the connection's
beginning."""
_SHARE = 2
"""One part in so many of the process's file descriptors is for connections without a whole request."""

_UID = "oakum.uid"
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7))."""


class WaitingConnections:
    """The connections that have not sent a whole request, in the order in which they began to wait.

    When they hold more than half of the file descriptors that the process may have open, the one that has waited
    longest is closed. A working client sends its request within milliseconds; one whose idle connection is closed
    opens another.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: Connection) -> None:
        """Count the connection as the newest one that waits. Closes the one that has waited longest if there are
        too many."""
        self.discard(connection)
        self._waiting[connection] = None
        if len(self._waiting) > _most_open_files() // _SHARE:
            oldest, _ = self._waiting.popitem(last=False)
            oldest.abort()

    def discard(self, connection: Connection) -> None:
        """No longer count the connection: its request has come, or it is closed."""
        self._waiting.pop(connection, None)


class Connection(HttpToolsProtocol):
    """One client's connection. It is closed when a request takes longer than 60 s to arrive, or when too many
    connections wait."""

    def __init__(self, waiting: WaitingConnections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Close the connection at once, without an answer."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when a client has connected: the connection waits for its first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is closed: it is no longer counted as waiting."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Called when a request's first byte has come: the 60 s for the whole request begin."""
        super().on_message_begin()
        self._set_deadline()

    def on_message_complete(self) -> None:
        """Called when a whole request has come: the connection no longer counts as waiting. If the request was
        answered before its end, as a refused one is, the connection waits for the next request instead."""
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._wait_no_longer()
        elif not self.transport.is_closing():
            self._wait()

    def on_response_complete(self) -> None:
        """Called when a request has been answered: the connection waits for the next one."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self.pipeline:
            self._waiting.add(self)

    def _wait(self) -> None:
        self._set_deadline()
        self._waiting.add(self)

    def _wait_no_longer(self) -> None:
        self._waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_S, self.abort)


class AccountConnection(Connection):
    """A connection over the service's Unix socket, whose requests carry the caller's uid as the kernel knows it.

    The uid is an entry of the ASGI scope, beside the headers, so nothing that a client sends can make it.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when a client has connected: asks the kernel who it is."""
        super().connection_made(transport)
        credentials = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, self._uid, _ = _CREDENTIALS.unpack(credentials)

    def on_message_begin(self) -> None:
        """Called when a request's first byte has come: notes the caller's uid in its scope."""
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[_UID] = self._uid


def uid_of(scope: MutableMapping[str, Any]) -> int | None:
    """The uid of the account that has sent the request of this ASGI scope over the Unix socket; None for a request
    over the network."""
    return scope.get(_UID)


def guarded_protocol() -> type[asyncio.Protocol]:
    """A factory of `Connection`s for uvicorn; they share one `WaitingConnections`."""
    factory: Any = functools.partial(Connection, WaitingConnections())
    protocol: type[asyncio.Protocol] = factory
    return protocol


class GuardedServer(uvicorn.Server):
    """uvicorn's server, which also listens on a Unix socket, without TLS there."""

    def __init__(self, config: uvicorn.Config, unix: socket.socket | None = None) -> None:
        """`unix`: the bound socket, which is closed with the server; None for none."""
        super().__init__(config)
        self._unix = unix

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen on the given sockets, and on the Unix socket."""
        await super().startup(sockets)
        if self._unix is None:
            return
        waiting = WaitingConnections()

        def connection() -> asyncio.Protocol:
            accepted: asyncio.Protocol = AccountConnection(
                waiting, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return accepted

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_unix_server(connection, sock=self._unix))


def allow_most_open_files() -> None:
    """Raise the limit of open files, often 1,024, to what the system allows this process: each agent keeps two
    connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # not on systems whose hard limit is above the kernel's own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _most_open_files() -> int:
    """Number of files that the process may have open. Read anew each time, as `prlimit` may change it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1_000_000
