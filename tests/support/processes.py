"""Functions that tell whether processes have ended that a test has started directly or indirectly."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil


def runs(pid: int, patience_s: float = 10.0) -> bool:
    """False once the process is gone, or dead and waiting for its parent to notice."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.01)
    return True


def any_runs(pids: Path) -> bool:
    """Whether any of the processes whose numbers the file names still runs."""
    numbers = [int(word) for word in pids.read_text().split()]
    assert numbers, "no process was started"
    return any(runs(pid) for pid in numbers)


@contextlib.contextmanager
def ending_on_sighup() -> Iterator[None]:
    """Have programs that are started meanwhile end on SIGHUP, also where `nohup` has this process ignore it.

    This process itself goes on ignoring SIGHUP if it did: a signal that is handled, unlike one that is ignored,
    has its default effect again in a program that is started.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def kill_all(found: Iterable[psutil.Process]) -> None:
    """`kill -9` each that has not ended since it was found."""
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
