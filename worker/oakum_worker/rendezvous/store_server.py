"""The key-value store at which a generation's ranks meet, served to those that prove to know its secret."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from oakum_worker.rendezvous.proofs import NONCE_BYTES, PROOF_BYTES, Seal, proof

_STRANGER_S = 10.0
"""Time for a caller to prove that it is a member."""
_MOST_STRANGERS = 512
"""Callers that have not yet proved it. Of more, the oldest is sent away; a member needs milliseconds."""
_SERVED = 2
"""Generations: while one is announced, ranks of the one before may still form groups of some of them."""
_LARGEST_BYTES = 64 << 20
HELLO = struct.Struct(f"!q{NONCE_BYTES}s{PROOF_BYTES}s")
"""A caller's first words: generation, nonce, proof. The store's nonce comes before them."""
LENGTH = struct.Struct("!I")


class StoreServer:
    """Serves the keys of the newest generations, in a thread of its own."""

    def __init__(self, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._tables: dict[int, _Table] = {}
        self._strangers: OrderedDict[asyncio.Task[Any], None] = OrderedDict()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True, name="rendezvous").start()

    def open(self, generation: int, secret: bytes) -> None:
        """From now on serve this generation, beside the one before. The keys of older ones are gone, and who waits
        for one is cut off. Does nothing where it, or a newer one, is served."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._open, generation, secret, done)
        done.wait()

    def close(self) -> None:
        """Serve nobody any more."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listening, backlog=socket.SOMAXCONN)
        )
        self._loop.run_forever()
        serving = asyncio.all_tasks(self._loop)
        for task in serving:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*serving, return_exceptions=True))
        self._listening.close()
        self._loop.close()

    def _open(self, generation: int, secret: bytes, done: threading.Event) -> None:
        if generation > max(self._tables, default=-1):
            self._tables[generation] = _Table(generation, secret)
            for old in sorted(self._tables)[:-_SERVED]:
                self._tables.pop(old).end()
        done.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._strangers[task] = None
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers.popitem(last=False)[0].cancel()
        try:
            async with asyncio.timeout(_STRANGER_S):
                member = await self._proven(reader, writer)
            self._strangers.pop(task, None)
            if member is not None:
                member.table.members.add(task)
                task.add_done_callback(member.table.members.discard)
                await member.answer_all()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.CancelledError):
            pass  # whoever it was is gone, or no member
        finally:
            self._strangers.pop(task, None)
            writer.close()

    async def _proven(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Member | None:
        """The caller, once each side has proved to know the secret; None for strangers, and for members of a
        generation that is not served yet."""
        nonce = os.urandom(NONCE_BYTES)
        writer.write(nonce)
        generation, theirs, their_proof = HELLO.unpack(await reader.readexactly(HELLO.size))
        table = self._tables.get(generation)
        if table is None:
            return None
        at = writer.get_extra_info("sockname")[:2]
        if not hmac.compare_digest(their_proof, proof(table.secret, "member", generation, at, nonce, theirs)):
            return None
        writer.write(proof(table.secret, "store", generation, at, nonce, theirs))
        return _Member(table, reader, writer, (nonce, theirs))


class _Table:
    """The keys of one generation."""

    def __init__(self, generation: int, secret: bytes) -> None:
        self.generation, self.secret = generation, secret
        self.members: set[asyncio.Task[Any]] = set()
        self._values: dict[str, str] = {}
        self._changed = asyncio.Condition()
        self._operations: dict[str, Callable[..., Any]] = {
            "set": self._values.__setitem__,
            "add": self._add,
            "append": self._append,
            "compare": self._compare,
            "has": lambda keys: all(key in self._values for key in keys),
            "delete": lambda key: self._values.pop(key, None) is not None,
            "count": lambda: len(self._values),
        }

    def end(self) -> None:
        for member in [*self.members]:
            member.cancel()

    async def answer(self, operation: str, *arguments: Any) -> Any:
        if operation == "get":
            keys = arguments[0]
            async with self._changed:
                await self._changed.wait_for(lambda: all(key in self._values for key in keys))
            return [self._values[key] for key in keys]
        answer = self._operations[operation](*arguments)
        async with self._changed:
            self._changed.notify_all()
        return answer

    def _add(self, key: str, number: int) -> int:
        total = int(self._values.get(key, "0")) + number
        self._values[key] = str(total)
        return total

    def _append(self, key: str, value: str) -> None:
        self._values[key] = self._values.get(key, "") + value

    def _compare(self, key: str, expected: str, desired: str) -> str:
        """Set `desired` if the value is `expected`, or if there is none and nothing is expected."""
        if self._values.get(key, "") == expected:
            self._values[key] = desired
        return self._values.get(key, expected)


class _Member:
    """A caller that has proved to be a member."""

    def __init__(
        self,
        table: _Table,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        nonces: tuple[bytes, bytes],
    ) -> None:
        self.table = table
        self._reader, self._writer = reader, writer
        self._theirs, self._ours = Seal(table.secret, "member", *nonces), Seal(table.secret, "store", *nonces)

    async def answer_all(self) -> None:
        while True:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > _LARGEST_BYTES:
                return
            request = await self._reader.readexactly(length)
            if not hmac.compare_digest(await self._reader.readexactly(PROOF_BYTES), self._theirs.of(request)):
                return
            answer = json.dumps(await self.table.answer(*json.loads(request))).encode()
            self._writer.write(LENGTH.pack(len(answer)) + answer + self._ours.of(answer))
            await self._writer.drain()
