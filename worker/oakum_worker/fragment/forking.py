"""Starts processes in milliseconds instead of seconds, as forks of a server that has done their imports.

    owner -> server   a datagram that carries descriptors: the request's document, its channel, the child's own
    server -> owner   on the channel, when the child exists: its process id
    owner -> child    on the channel: go on. Without this message the child ends before it begins
    server -> owner   on the channel, when the child has ended: its status

The server (`fork_server`) ends when its owner ends, because the owner's end of the control socket then closes.
Children outlive the server. Imports without torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from oakum_worker.errors import ForkError

MAINS = ("oakum_worker.payload", "oakum_worker.rank.process")
"""Modules whose `main` a child may run."""
READY = b"ready"
GO = b"go"
_ANSWER_S = 10.0
"""Seconds after which a server that has not forked is taken to hang."""
_LOADING_S = 120.0
"""Seconds after which a server that has not finished its imports is taken to hang."""
UNKNOWN_STATUS = 255
"""Status of a child that outlived its server and did not become a child of the owner."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def node_has_accelerator() -> bool:
    """Whether CUDA or ROCm may be used on this node. Neither survives a fork, so processes start afresh there."""
    return any(Path(device).exists() for device in _ACCELERATORS)


@dataclass(frozen=True)
class ForkRequest:
    """What a fork server needs to know to make a process."""

    module: str
    """The module whose `main(*arguments)` is called; one of `MAINS`."""
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    """The working directory."""
    descriptors: tuple[int, ...] = ()
    """The child's numbers for the descriptors that it is given, in order; 0 to 2 may be among them."""
    nice: int = 0
    """Increment of the child's niceness over the server's."""
    log: str | None = None
    """Output is appended to this file, in whose name `{pid}` stands for the child's process id."""

    def document(self) -> bytes:
        """The request as the JSON document that `read` takes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, document: bytes) -> Self:
        """The request in a JSON document that `document` made. Raises `ValueError`, `TypeError` or `KeyError`
        where the document is no request."""
        fields = json.loads(document)
        if fields["module"] not in MAINS:
            raise ValueError(f"{fields['module']} is none of {', '.join(MAINS)}")
        for name in ("arguments", "descriptors"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


class ForkServer:
    """The owner's side of a fork server: asks it for processes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def wait_until_ready(self) -> None:
        """Return when the server's imports are done. Raises `ForkError` when it ends first or takes over 120 s."""
        try:
            self._control.settimeout(_LOADING_S)
            reply = self._control.recv(len(READY))
        except OSError as error:
            raise ForkError(f"the fork server does not load: {error}") from error
        if reply != READY:
            raise ForkError("the fork server has ended before it was ready")

    def start(self, request: ForkRequest, descriptors: tuple[int, ...] = ()) -> ForkedProcess:
        """Start a child that has these `descriptors` under the numbers which the request names.

        Raises `ForkError` when the server is gone or does not answer; then no child runs the module.
        """
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, _memory_file(request.document()) as document:
                self._control.settimeout(_ANSWER_S)
                socket.send_fds(self._control, [b"fork"], [document, theirs.fileno(), *descriptors])
            channel.settimeout(_ANSWER_S)
            reply = channel.recv(32)
            if not reply:
                raise ForkError("the fork server has ended")
            process = ForkedProcess(int(reply), channel)
            channel.send(GO)
            return process
        except OSError as error:
            channel.close()
            raise ForkError(f"the fork server does not answer: {error}") from error
        except ForkError:
            channel.close()
            raise

    def close(self) -> None:
        """Make the server end. Calls of other threads that wait for the server then raise `ForkError`."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


class ForkedProcess:
    """A process that a fork server has forked, as its owner sees it. Has those methods of `subprocess.Popen` that
    the owner needs."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self._channel = channel
        # The child still waits for GO, so its process id cannot have been reused.
        self._descriptor = os.pidfd_open(pid)
        self._ended = threading.Event()
        self._status = UNKNOWN_STATUS

    def watch(self) -> None:
        """Start a thread that receives the child's status. Callers that do not watch have to call `forget`."""
        self._channel.settimeout(None)
        threading.Thread(target=self._watch, daemon=True, name=f"forked-{self.pid}").start()

    def forget(self) -> None:
        """Close the descriptors of the process without waiting for its end; its status will not be known. The
        process goes on."""
        self._channel.close()
        os.close(self._descriptor)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the child's end and return its status: as in `subprocess`, a signal's number is negated.

        Raises `subprocess.TimeoutExpired` when the child has not ended after `timeout` seconds.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self._status

    def _watch(self) -> None:
        try:
            reply = self._channel.recv(32)
        except OSError:
            reply = b""
        # No message: the server ended before the child, which may have become this process's own child.
        self._status = int(reply) if reply else self._reap()
        self.forget()
        self._ended.set()

    def _reap(self) -> int:
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        ended.poll()
        try:
            end = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        except ChildProcessError:
            return UNKNOWN_STATUS
        assert end is not None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory: an environment may be longer than a datagram."""
    descriptor = os.memfd_create("oakum-fork-request")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
