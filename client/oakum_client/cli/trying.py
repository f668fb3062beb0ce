"""Tries a spec out in a process of its own, which ends together with this one whatever the user's code does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from oakum_client.cli.units import duration

if TYPE_CHECKING:
    from rich.console import Console

START = "starting Python and torch"
_START_S = 180.0
_ANSWER_S = 3.0
_LAST_LINES = 12
_CRASHES = {
    signal.SIGABRT: "a library aborted, for instance because of an invalid argument or a lack of memory",
    signal.SIGSEGV: "a library accessed memory that is not its own",
    signal.SIGBUS: "a file that was mapped into memory has become shorter, or /dev/shm is full",
    signal.SIGILL: "a library was built for another processor",
    signal.SIGFPE: "a library divided an integer by 0",
}
"""What it usually means that a process has ended with that signal."""


@dataclass
class TryResult:
    """The result of trying a spec out: what failed or why it was not tried, and what was found out."""

    left_out: str | None = None
    """Why the try could not be made here; None if it was made."""
    failure: str | None = None
    """What is wrong and what to do; None if nothing is."""
    lacks: str | None = None
    """Name of the module that was not found, if that is what is wrong."""
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    """The checks that were made, each with its name, its seconds and its outcome."""

    @property
    def total_samples(self) -> int | None:
        """Samples of all epochs; None if nobody has counted them."""
        return self.facts.get("total_samples")

    def document(self) -> dict[str, Any]:
        """The whole result as a JSON document."""
        return {"passed": self.failure is None and self.left_out is None, **vars(self)}


class TryDisplay(Protocol):
    """Interface of what shows the progress of a try to the user."""

    def begin(self, check: str) -> None:
        """Called when the check begins."""

    def end(self, mark: str, check: str, seconds: float | None, detail: str) -> None:
        """Called when the check has ended; `mark` is `ok`, `failed` or `slow`, `detail` a text about the
        result."""

    def close(self) -> None:
        """Called when nothing more will be shown: stop what moves on the screen."""


def try_spec(path: Path, limit_s: float, view: TryDisplay, state_folder: Path | None = None) -> TryResult:
    """Try the spec in this file out in a process of its own, each check for at most `limit_s` seconds, and return
    the result. No process is left behind.

    With a `state_folder` the newest checkpoint in it is loaded, as by a trainer that begins from it.
    """
    arguments = ["try", str(path), "--json", "--leased"]
    arguments += [] if state_folder is None else ["--state", str(state_folder)]
    return ask_worker(arguments, path, limit_s, view)


def ask_worker(
    arguments: list[str],
    path: Path,
    limit_s: float,
    view: TryDisplay,
    instead: str = ", or leave the try out with --no-check",
) -> TryResult:
    """Run `python -m oakum_worker` on the spec in `path` and follow the checks that it tells of. Returns what
    was found out.

    Each check may take `limit_s` seconds; `instead` says what else a user can do about one that takes longer.
    No process is left behind.
    """
    if importlib.util.find_spec("torch") is None:
        return TryResult(left_out="torch is not installed where `oakum` runs, and the model would have to run")
    process = _start_worker(arguments)
    try:
        return _follow(process, path, limit_s, view, instead)
    finally:
        view.close()
        _kill_group(process)


def _start_worker(arguments: list[str]) -> subprocess.Popen[str]:
    # Its streams are closed where they are read: a daemon that the task has started may keep them open for long.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "oakum_worker", *arguments],
        stdin=subprocess.PIPE,  # while it is open, this process waits for the answer
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the process with all processes that the task has started, and wait for its end. Until then nobody waits
    for it, so its id cannot belong to another group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _follow(
    process: subprocess.Popen[str], path: Path, limit_s: float, view: TryDisplay, instead: str
) -> TryResult:
    trial, check, limit = TryResult(), START, _START_S
    needed = True
    assert process.stdout is not None
    assert process.stderr is not None
    events, last_lines = _lines_of(process.stdout), _LastLines(process.stderr)
    view.begin(check)
    while True:
        try:
            line = events.get(timeout=limit)
        except queue.Empty:
            if needed:
                trial.failure = _timeout_message(check, limit, _ask_place(process, events), instead)
            view.end("failed" if needed else "slow", check, limit, "" if needed else "not waited for any longer")
            return trial
        if line is None:
            if trial.failure is None and (process.wait() != 0 or needed):
                trial.failure = _death_message(process, check, last_lines(), path)
                view.end("failed", check, None, "")
            return trial
        event = json.loads(line)
        if event["state"] == "begun":
            if check == START:
                view.end("ok", check, None, "")
            check, needed = event["check"], event["patience_s"] is None
            limit = _limit_of(check, event["patience_s"] or limit_s)
            view.begin(check)
        elif event["state"] == "facts":
            trial.facts, needed = event["facts"], False
        else:
            trial.checks.append(event)
            if event["state"] == "failed":
                trial.failure, trial.lacks = event["message"], event["lacks"]
            mark = "ok" if event["state"] == "done" else "failed"
            view.end(mark, check, event["seconds"], event.get("detail", ""))


def _limit_of(_check: str, given_s: float) -> float:
    return given_s


def _ask_place(process: subprocess.Popen[str], events: queue.Queue[str | None]) -> str | None:
    """Ask the process which line of the user's code it is at. None if it does not answer, as while compiled code
    runs."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, queue.Empty):
        process.stdin.write("where\n")
        process.stdin.flush()
        while (line := events.get(timeout=_ANSWER_S)) is not None:
            if (event := json.loads(line))["state"] == "at":
                where: str | None = event["where"]
                return where
    return None


def _timeout_message(check: str, limit_s: float, where: str | None, instead: str) -> str:
    place = f" (it is at {where})" if where else ""
    return (
        f"{check} takes longer than {duration(limit_s)}{place}: correct what it waits for, give it more time with "
        f"--check-limit{instead}"
    )


def _death_message(process: subprocess.Popen[str], check: str, last_lines: str, path: Path) -> str:
    status = process.wait()
    if status == -signal.SIGKILL:
        message = f"{check} was killed: the machine has probably run out of memory. {_memory_advice(path)}"
    elif status < 0:
        number = signal.Signals(-status)
        message = (
            f"{check} crashed in compiled code: {_signal_text(number)} (signal {-status}, {number.name}). "
            f"`{sys.executable} -X faulthandler -m oakum_worker try {path}` shows the line"
        )
        if number is signal.SIGABRT:
            message += f". If it was for lack of memory: {_memory_advice(path)}"
    else:
        message = f"{check} ended the process with status {status}"
    return f"{message}\n{last_lines}" if last_lines else message


def _signal_text(number: signal.Signals) -> str:
    words = _CRASHES.get(number) or signal.strsignal(number) or "it was ended"
    return words[0].lower() + words[1:]


def _memory_advice(path: Path) -> str:
    from oakum_worker.memory_advice import memory_advice
    from oakum_worker.spec import read_spec

    return memory_advice(read_spec(path))


def _lines_of(stream: IO[str]) -> queue.Queue[str | None]:
    """A queue of the stream's lines as they arrive; None marks the stream's end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True, name="events of the try").start()
    return lines


class _LastLines:
    """Keeps the last lines of a stream while it flows; calling the object returns them after the stream's end."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True, name="words of the try")
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.rstrip())

    def __call__(self) -> str:
        self._thread.join(timeout=5.0)
        return "\n".join(f"  {line}" for line in self._lines)


class NoDisplay:
    """A `TryDisplay` that shows nothing."""

    def begin(self, check: str) -> None:
        """Does nothing."""

    def end(self, mark: str, check: str, seconds: float | None, detail: str) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class CheckList:
    """A `TryDisplay` that prints a line for each check when it ends; on a terminal, the present check is shown
    with a spinner."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: AbstractContextManager[Any] | None = None
        utf8 = (console.encoding or "").lower().startswith("utf")
        self._marks = {"ok": "✓", "failed": "✗", "slow": "…"} if utf8 and console.is_terminal else {}

    def begin(self, check: str) -> None:
        """Show the check with a spinner until it ends."""
        if self._console.is_terminal:
            self._status = self._console.status(f"{check} ...")
            self._status.__enter__()

    def end(self, mark: str, check: str, seconds: float | None, detail: str) -> None:
        """Print the check's line."""
        self.close()
        took = "" if seconds is None else f"{seconds:.1f} s"
        line = f"  {self._marks.get(mark, mark):<6} {check:<46} {took:>7}  {detail}"
        self._console.print(line.rstrip(), style="red" if mark == "failed" else None, soft_wrap=True)

    def close(self) -> None:
        """Stop the spinner."""
        if self._status is not None:
            self._status.__exit__(None, None, None)
            self._status = None
