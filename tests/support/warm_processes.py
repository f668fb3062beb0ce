"""Processes whose imports are done: forked from one that has imported what the product's processes import.

A fresh `oakum serve` takes two seconds of a core for its imports, and its fork server as long again. What a
process does after its imports is the same here. Where the start of a process matters, tests start it afresh.

    python -c "import warm_processes; warm_processes.keep_warm(...)"

is the process that is forked from. Each process of the tests has one at most, which ends with it.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn

from oakum_worker.fragment import fork_server, forking
from oakum_worker.fragment.forking import ForkedProcess, ForkRequest, ForkServer
from waiting import DEADLINE_S

_PRELOADED = (
    "oakum_client.cli.serve",
    "oakum_client.rest.client",
    "oakum_client.serve_command",
    "oakum_worker.__main__",
    "alembic.command",
)
_FORK_SERVER = "oakum_worker.fragment.fork_server"
_LINE = 3
"""Descriptor under which a forked process has the line to the process that it was forked from."""
_ROOM = " " * 1000
"""Reserves space in the command line for those of the forked processes."""


class WarmProcess:
    """A forked process, with what is needed of `subprocess.Popen`'s interface."""

    def __init__(self, process: ForkedProcess) -> None:
        self.pid = process.pid
        self._process = process
        process.watch()

    def poll(self) -> int | None:
        """The process's status, None while it runs."""
        try:
            return self._process.wait(timeout=0.0)
        except subprocess.TimeoutExpired:
            return None

    @property
    def returncode(self) -> int | None:
        """The process's status, None while it runs."""
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end and return its status. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        """Signal the process unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)


def start_warm(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    folder: Path | None = None,
) -> WarmProcess:
    """Start `python -m MODULE ARGUMENTS`, with its imports done, in a session of its own.

    Errors go to `output` where `errors` is not given; `folder` is the working directory.
    """
    control, line = _warm_server()
    request = ForkRequest(
        __name__,
        (module, *arguments),
        dict(environment),
        str(folder or Path.cwd()),
        descriptors=(0, 1, 2, _LINE),
    )
    with Path(os.devnull).open("rb") as nothing:
        standard = nothing.fileno(), output.fileno(), (errors or output).fileno()
        return WarmProcess(control.start(request, (*standard, line)))


def run_warm(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS`, with its imports done, to its end; returns its status and all that it
    printed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_warm(
            module,
            *arguments,
            environment=os.environ if environment is None else environment,
            output=output,
            errors=errors,
            folder=folder,
        )
        try:
            status = process.wait(timeout=DEADLINE_S)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        printed = output.read().decode(), errors.read().decode()
    return subprocess.CompletedProcess([module, *arguments], status, *printed)


@functools.cache
def _warm_server() -> tuple[ForkServer, int]:
    """The process to fork from, and the descriptor by which it is asked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        program = "import sys, warm_processes; warm_processes.keep_warm(*sys.argv[1:])"
        variables = {
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        subprocess.Popen(
            [sys.executable, "-u", "-c", program, str(theirs.fileno()), _ROOM],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=os.environ | variables,
        )
    server = ForkServer(ours)
    server.wait_until_ready()
    return server, ours.fileno()


def keep_warm(control_descriptor: str, _room: str) -> NoReturn:
    """Import what the product's processes import, then fork processes on request until the tests have ended."""
    forking.MAINS = (*forking.MAINS, __name__, _FORK_SERVER)  # type: ignore[assignment]
    for module in _PRELOADED:
        importlib.import_module(module)
    fork_server.main("of-the-tests", control_descriptor, "")


def main(module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS` in this process; its fork servers are forked, too."""
    fork_server._entitle((sys.executable, "-m", module, *arguments))
    starting = importlib.import_module("oakum_service.schedulers.starting")
    starting.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        DEVNULL=subprocess.DEVNULL, Popen=_start_fork_server
    )
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _start_fork_server(
    command: Sequence[str], *, pass_fds: tuple[int, ...], env: Mapping[str, str], **_: object
) -> WarmProcess:
    arguments = command[command.index(_FORK_SERVER) + 1 :]
    request = ForkRequest(
        _FORK_SERVER, tuple(arguments), dict(env), str(Path.cwd()), descriptors=(0, 1, 2, *pass_fds)
    )
    server = ForkServer(socket.socket(fileno=os.dup(_LINE)))
    with Path(os.devnull).open("rb") as nothing:
        return WarmProcess(server.start(request, (nothing.fileno(), 1, 2, *pass_fds)))
