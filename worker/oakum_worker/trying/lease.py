"""Makes a process serve the one that started it: it reports what it does as lines of JSON, and ends together
with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn, TextIO


def leave(status: int, out: TextIO) -> NoReturn:
    """End the process at once with exit status `status`, without waiting for threads and processes that the task
    has started."""
    out.flush()
    sys.stderr.flush()
    os._exit(status)


def as_lines(out: TextIO) -> Any:
    """A function that prints each event given to it as one line of JSON."""

    def tell(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=out, flush=True)

    return tell


def own_output() -> TextIO:
    """A file on the process's standard output. From then on, what the task prints to standard output goes to
    standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def end_with_whoever_asks(tell: Any) -> None:
    """Kill this process's group when its standard input is closed, that is when the process that started it has
    ended, whatever the task does meanwhile.

    A thread waits for that. For each message that comes in on standard input, it calls `tell` with the line of the
    user's code that the main thread is in. The task itself gets an empty standard input. Where memory runs out,
    the kernel is to kill this process before any other. Without a process group of its own nothing is killed and
    no message answered.
    """
    with contextlib.suppress(OSError):  # another system, or a stricter one
        Path("/proc/self/oom_score_adj").write_text("1000")

    lease = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(lease, 4096):
            tell({"state": "at", "where": _users_line()})
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if os.getpgrp() == os.getpid():
        threading.Thread(target=wait, daemon=True, name="lease").start()


def _users_line() -> str | None:
    """File and line of the user's code that the main thread runs, or that called the library code which it runs;
    None where no code of the user is being run."""
    from oakum_worker.task_checks import users_frames

    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    frames = users_frames(traceback.extract_stack(frame)) if frame is not None else []
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
