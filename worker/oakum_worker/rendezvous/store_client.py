"""torch's interface to a generation's store."""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from oakum_worker.protocol import Endpoint
from oakum_worker.rendezvous.proofs import NONCE_BYTES, PROOF_BYTES, Seal, proof
from oakum_worker.rendezvous.store_server import HELLO, LENGTH


class NotServedError(OSError):
    """The store serves another generation, or does not know the secret: the generation's rank 0 has not heard of
    it yet, or somebody else listens at its port."""


class MembersStore(dist.Store):
    """A connection to the store of a generation's rank 0.

    A value is waited for as long as the store's timeout is. Where that passes, or the connection is cut, the
    methods raise `OSError`, and the connection cannot be used any more.
    """

    def __init__(self, at: Endpoint, generation: int, secret: bytes, patience: timedelta) -> None:
        """Connect, within `patience`. Raises `NotServedError` if the store does not serve the generation, and
        `OSError` if nobody listens."""
        super().__init__()
        self._made_of = (at, generation, secret, patience)
        self._lock = threading.Lock()
        self._timeout = patience
        self._waited_for: tuple[str, bytes] | None = None
        """The last key that was waited for, and its value: gloo asks for it next, once for each peer."""
        self._connection = socket.create_connection((at.host, at.port), timeout=patience.total_seconds())
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._prove(generation, secret)
        except BaseException:
            self._connection.close()
            raise

    def _prove(self, generation: int, secret: bytes) -> None:
        own, at = os.urandom(NONCE_BYTES), self._connection.getpeername()[:2]
        try:
            theirs = self._take(NONCE_BYTES)
            own_proof = proof(secret, "member", generation, at, theirs, own)
            self._connection.sendall(HELLO.pack(generation, own, own_proof))
            their_proof = self._take(PROOF_BYTES)
        except ConnectionError as error:
            raise NotServedError(f"generation {generation} is not served") from error
        if not hmac.compare_digest(their_proof, proof(secret, "store", generation, at, theirs, own)):
            raise NotServedError("the store does not know the secret of the generation, or is another's")
        self._ours, self._theirs = Seal(secret, "member", theirs, own), Seal(secret, "store", theirs, own)

    def _take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            part = self._connection.recv(size - len(taken))
            if not part:
                raise ConnectionResetError("the store has closed the connection")
            taken += part
        return bytes(taken)

    def _ask(self, *words: Any, timeout: timedelta | None = None) -> Any:
        request = json.dumps(words).encode()
        self._waited_for = None
        with self._lock:
            self._connection.settimeout((timeout or self._timeout).total_seconds())
            try:
                self._connection.sendall(LENGTH.pack(len(request)) + request + self._ours.of(request))
                (length,) = LENGTH.unpack(self._take(LENGTH.size))
                answer = self._take(length)
                if not hmac.compare_digest(self._take(PROOF_BYTES), self._theirs.of(answer)):
                    raise ConnectionAbortedError("somebody else has answered in the store's place")
                return json.loads(answer)
            except OSError:
                self._connection.close()  # an answer that comes later would be taken for another's
                raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def clone(self) -> MembersStore:
        """Another connection to the same store."""
        copy = MembersStore(*self._made_of)
        copy.set_timeout(self._timeout)
        return copy

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _text(value))

    def get(self, key: str) -> bytes:
        waited_for, self._waited_for = self._waited_for, None
        if waited_for is not None and waited_for[0] == key:
            return waited_for[1]
        return self.multi_get([key])[0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, value))

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", key, _text(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return _bytes(self._ask("compare", key, _text(expected), _text(desired)))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("has", keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        values = self._ask("get", keys, timeout=timeout)
        if len(keys) == 1:
            self._waited_for = keys[0], _bytes(values[0])

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        return int(self._ask("count"))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [_bytes(one) for one in self._ask("get", keys)]

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True


def _text(value: str | bytes | Sequence[int]) -> str:
    """Bytes as text, in which each character is a byte."""
    return value if isinstance(value, str) else bytes(value).decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
