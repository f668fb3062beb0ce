"""The process that agents and ranks are forked from: it has imported what both import, and does nothing else.

    python -m oakum_worker.fragment.fork_server FRAGMENTS_FOLDER CONTROL_DESCRIPTOR BLANKS

It has one thread, opens no store, group or device, runs no user's code, and ends when its owner ends. An agent
that was forked from it first forks a server of its own, from which it starts its ranks. `forking` describes the
messages between a server and its owner.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from oakum_worker.fragment.forking import GO, MAINS, READY, ForkRequest, ForkServer

_PRELOADED = (
    *MAINS,
    "oakum_worker.fragment.agent",
    "oakum_worker.launch",
    "oakum_worker.checkpoint.dcp_files",
    "oakum_worker.keeping.split",
    "torch._dynamo",  # which every optimizer of torch.optim imports
)
_MOST_DESCRIPTORS = 16
_PR_SET_CHILD_SUBREAPER = 36
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


def main(fragments_folder: str, control_descriptor: str, blanks: str) -> NoReturn:
    """Import all modules, report ready, and fork what the owner asks for until the owner is gone. Ends the
    process, with an error if it has more than one thread after the imports.

    `fragments_folder` only shows in the command line whose server this is; `blanks` reserve room in the command
    line for the children's longer ones.
    """
    for module in _PRELOADED:
        importlib.import_module(module)
    if (threads := _num_threads()) != 1:
        raise SystemExit(f"the fork server has {threads} threads after its imports, and must have one")
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(control_descriptor))
    with suppress(OSError):
        control.send(READY)
    _serve(control)


def own_server(folder: str) -> ForkServer:
    """Fork a server from this process, from which an agent forks its ranks. This process was forked itself and
    must have started nothing yet. Returns the agent's side of the server.

    Ranks that outlive the server become this process's children.
    """
    _control_process(_PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ForkServer(ours)
    ours.close()
    # The scheduler signals every process of a job; this server ends only when its agent does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _entitle((sys.executable, "-m", "oakum_worker.fragment.fork_server", folder))
    return _serve(theirs)


def _control_process(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _num_threads() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("Threads:")[2].split()[0])


def _serve(control: socket.socket) -> NoReturn:
    """Answer requests until the owner is gone; in a child, run the requested module. Ends the process."""
    request = _Loop(control).run()
    if request is not None:
        _be(request)
    os._exit(0)


class _Loop:
    """Answers an owner's requests, and tells owners when their children have ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._owners: dict[int, tuple[int, socket.socket]] = {}
        """Child's pidfd -> the child's process id, and the channel on which the owner hears of the child's end."""

    def run(self) -> ForkRequest | None:
        """Answer requests for as long as the owner lives. Returns twice: in each child with the request that it
        has to run, and in the server, once its owner is gone, with None."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._owners:
                    self._reap(key.fd)
                    continue
                try:
                    said, received, _, _ = socket.recv_fds(self._control, 16, _MOST_DESCRIPTORS)
                except OSError:
                    return None
                if not said:
                    return None
                if (request := self._answer(received)) is not None:
                    return request

    def _reap(self, child: int) -> None:
        pid, channel = self._owners.pop(child)
        self._selector.unregister(child)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError), channel:  # the owner may have closed its end
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _answer(self, received: Sequence[int]) -> ForkRequest | None:
        """Fork a child. Returns the request in the child and None in the server. Where no child can be forked, the
        owner finds its channel closed."""
        document, number, *descriptors = received
        channel = socket.socket(fileno=number)
        try:
            with os.fdopen(document, "rb") as file:
                request = ForkRequest.read(file.read())
            pid = os.fork()
        except (OSError, ValueError, TypeError, KeyError) as error:
            print(f"no process can be forked: {error}", file=sys.stderr, flush=True)
            channel.close()
        else:
            if not pid:
                self._become(request, channel, descriptors)
                return request
            child = os.pidfd_open(pid)
            self._owners[child] = pid, channel
            self._selector.register(child, selectors.EVENT_READ)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _become(self, request: ForkRequest, channel: socket.socket, descriptors: Sequence[int]) -> None:
        """In a child: wait until the owner confirms, close the server's descriptors, and set up the process as the
        request says."""
        try:
            os.setsid()
            _entitle((sys.executable, "-m", request.module, *request.arguments))
            channel.send(str(os.getpid()).encode())
            if channel.recv(len(GO)) != GO:
                os._exit(0)
            self._close()
            channel.close()
            _take(request, descriptors)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _close(self) -> None:
        """Close all of the server's descriptors in a child, now: closed later, their numbers might be in use for
        something else."""
        for child, (_, channel) in self._owners.items():
            channel.close()
            os.close(child)
        self._selector.close()
        self._control.close()


def _entitle(command: Sequence[str]) -> None:
    """Make `command` this process's command line, as tools such as `ps` show it. Raises `OSError` if it is
    longer than the present command line."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = b"".join(os.fsencode(word) + b"\0" for word in command)
    if len(line) > end - start:
        raise OSError(f"a command line has {end - start} bytes, and {len(line)} are wanted")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, line, len(line))


def _take(request: ForkRequest, descriptors: Sequence[int]) -> None:
    """Set up this child as a freshly started process would be: environment, folder, descriptors, signals,
    session, niceness. Random states need no reset: `load_task` seeds all of them before it imports the task."""
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.nice(request.nice)
    os.chdir(request.folder)
    _take_descriptors(request, descriptors)
    _take_environment(request)


def _take_descriptors(request: ForkRequest, received: Sequence[int]) -> None:
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    above = max(highest, *request.descriptors, 2) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    os.closerange(3, above)
    for descriptor, number in zip(moved, request.descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request.log is not None:
        log = os.open(
            request.log.replace("{pid}", str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)


def _take_environment(request: ForkRequest) -> None:
    own = _import_path(os.environ)
    rest = [folder for folder in sys.path if folder not in own]
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:] = [*_import_path(os.environ), *rest]
    sys.argv = [request.module, *request.arguments]


def _import_path(environment: Mapping[str, str]) -> list[str]:
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(folder).absolute()) for folder in folders if folder]


def _be(request: ForkRequest) -> NoReturn:
    """Run the requested module's `main`, then end the process."""
    status = 1
    try:
        importlib.import_module(request.module).main(*request.arguments)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
