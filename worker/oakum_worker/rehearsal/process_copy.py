"""Runs what follows in a copy of this process, of which nothing stays but what it tells.

The copy is a forked child: it has this process's memory, and its own changes are gone when it ends. What it writes
to files, sockets and the terminal is dropped, and it reads open files at places of its own. It computes with one
thread, as a process has to that was forked from one with several. Where an accelerator is in use nothing can be
forked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from oakum_worker.forked import begin_forked

_DESCRIPTORS = Path("/proc/self/fd")
_CHUNK_BYTES = 1 << 16
_STDERR = 2
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PASSING = ("/dev/", "/proc/")
_CHANGING = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.fork"}
    | {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "shutil.move", "shutil.rmtree"}
)
"""Events of Python (`sys.audit`) whose effects would stay."""
_WRITTEN = (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISSOCK)


_UNFIT = "unfit"


class CopyError(Exception):
    """A copy of this process cannot compute gradients."""


class Child:
    """The child's end: it has to call `tell` or `end`, and then is no more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, what: dict[str, Any]) -> NoReturn:
        """Send `what`, which has to be JSON, to the parent, and end this process."""
        with contextlib.suppress(OSError, ValueError, TypeError), os.fdopen(self._descriptor, "w") as pipe:
            json.dump(what, pipe)
        self.end()

    def refuse_to_write(self) -> None:
        """From now on, tell the parent and end this process where it is about to change files or start programs,
        which would stay."""
        sys.dont_write_bytecode = True
        sys.addaudithook(self._heed)

    def _heed(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_file = not isinstance(path, int) and not str(path).startswith(_PASSING)
            if is_file and isinstance(flags, int) and flags & _WRITING:
                self.tell({"obstacle": f"opens {path} to write"})
        elif event in _CHANGING:
            self.tell({"obstacle": f"calls {event}"})

    def end(self) -> NoReturn:
        """End this process at once. No `finally` clause and no exit handler of the parent's code runs in it."""
        os._exit(0)


def can_fork() -> bool:
    """Whether a copy of this process can compute: on Linux, where no accelerator is in use."""
    in_use = torch.cuda.is_initialized() or torch.xpu.is_initialized()
    return _DESCRIPTORS.is_dir() and not in_use


def _computes_gradients() -> bool:
    """Whether autograd works in this copy. It does not where it had threads in the process that was copied: torch
    starts some for backward passes that are nested deeply."""
    try:
        torch.ones((), requires_grad=True).clone().backward()
    except RuntimeError:
        return False
    return True


def fork(patience_s: float) -> Child | dict[str, Any] | None:
    """Fork this process. Returns a `Child` in the child, and in the parent the child's report: None if it has
    ended without a report, or has sent none within `patience_s` seconds, after which it is killed.

    Raises `CopyError` where a copy of this process cannot compute gradients.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does without
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_quiet(writing, parent)
        child = Child(writing)
        if not _computes_gradients():
            child.tell({_UNFIT: True})
        child.refuse_to_write()
        return child
    os.close(writing)
    try:
        report = _read_report(reading, time.monotonic() + patience_s)
        if report is not None and _UNFIT in report:
            raise CopyError
        return report
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _read_report(reading: int, until_s: float) -> dict[str, Any] | None:
    text = b""
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([reading], [], [], left_s)[0]:
            part = os.read(reading, _CHUNK_BYTES)
            if not part:
                report: dict[str, Any] | None = json.loads(text) if text else None
                return report
            text += part
    return None


def _become_quiet(kept: int, parent: int) -> None:
    """Let nothing that this process does from now on be seen outside of it, except what it writes to `kept`."""
    begin_forked(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in _open_descriptors():
        if descriptor not in (kept, nothing):
            with contextlib.suppress(OSError):
                _cut_off(descriptor, nothing)
    torch.set_num_threads(1)


def _open_descriptors() -> Iterator[int]:
    for entry in sorted(_DESCRIPTORS.iterdir()):
        with contextlib.suppress(OSError, ValueError):
            os.fstat(int(entry.name))
            yield int(entry.name)


def _cut_off(descriptor: int, nothing: int) -> None:
    """Drop what is written to a file, pipe, socket or terminal, and let a file that is read be read from a place
    of its own: the parent's descriptor and the child's would move together."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and descriptor > _STDERR and _is_read(descriptor, status.st_size):
        own = os.open(_DESCRIPTORS / str(descriptor), os.O_RDONLY)
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor)
        os.close(own)
    elif descriptor <= _STDERR or any(is_kind(status.st_mode) for is_kind in _WRITTEN):
        os.dup2(nothing, descriptor)


def _is_read(descriptor: int, size: int) -> bool:
    """Whether a file is open to be read, and is not one that is written at its end."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    at_end = os.lseek(descriptor, 0, os.SEEK_CUR) == size
    return mode == os.O_RDONLY or (mode == os.O_RDWR and not at_end)
