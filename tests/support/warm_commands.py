"""Commands and tries that are forked from a process with its imports done, where a user's are fresh processes.

    python -m warm_commands MODULE ARGUMENTS

is run by a warm process in place of `python -m MODULE ARGUMENTS`: what the command tries out or measures in a
process of its own is forked as well.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import warm_processes
from oakum_client.cli import trying
from oakum_worker.fragment.forking import ForkRequest, ForkServer
from warm_processes import WarmProcess, start_warm

_HERE = str(Path(__file__).parent)


class ForkedTry(WarmProcess):
    """`python -m oakum_worker ...` as a fork, with pipes to its streams, as `subprocess.Popen` has them."""

    server: ClassVar[Callable[[], tuple[ForkServer, int]]] = staticmethod(warm_processes._warm_server)
    """The process to fork from, and the descriptor by which it is asked."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: object) -> None:
        server, line = ForkedTry.server()
        (reading, stdin), (stdout, writing), (stderr, complaining) = (os.pipe() for _ in range(3))
        arguments = tuple(command[command.index("-m") + 1 :])
        request = ForkRequest(
            warm_processes.__name__, arguments, dict(env), str(Path.cwd()), descriptors=(0, 1, 2, 3)
        )
        super().__init__(server.start(request, (reading, writing, complaining, line)))
        for descriptor in (reading, writing, complaining):
            os.close(descriptor)
        self.stdin = os.fdopen(stdin, "w")
        self.stdout = os.fdopen(stdout, errors="replace")
        self.stderr = os.fdopen(stderr, errors="replace")


@contextlib.contextmanager
def tries_are_forked() -> Iterator[None]:
    """Fork what is tried out in this process's tests."""
    fresh, trying.subprocess = trying.subprocess, _SUBPROCESS  # type: ignore[attr-defined]
    yield
    trying.subprocess = fresh  # type: ignore[attr-defined]


_SUBPROCESS: Any = SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedTry)


def start_command(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    folder: Path | None = None,
) -> WarmProcess:
    """As `start_warm`; the command's tries are forked, too."""
    path = ":".join([_HERE, *filter(None, [environment.get("PYTHONPATH")])])
    return start_warm(
        "warm_commands",
        module,
        *arguments,
        environment={**environment, "PYTHONPATH": path},
        output=output,
        errors=errors,
        folder=folder,
    )


def main(module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS` in this process."""
    # As it was before `start_command` had this module found.
    sys.path.remove(_HERE)
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].removeprefix(_HERE).removeprefix(":")
    line = warm_processes._LINE
    ForkedTry.server = staticmethod(lambda: (ForkServer(socket.socket(fileno=os.dup(line))), line))
    trying.subprocess = _SUBPROCESS  # type: ignore[attr-defined]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
