"""What a program in another account answers: waited for only so long, and read only so far.

The program runs in the account of a user, who can stop it, hold it up or write in its place. The service's account
cannot be sure to end it: it may kill no more than `sudo`. So nobody waits for its end beyond the time limit.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_MOST_BYTES = 64 * 1024
_CHUNK_BYTES = 16 * 1024


class NoAnswerError(Exception):
    """The program has not ended in time, or writes more than any answer has."""


@dataclass(frozen=True)
class Answer:
    """What a program has written, and the status with which it ended."""

    status: int
    stdout: bytes
    stderr: bytes


def begin(command: Sequence[str], request: bytes) -> subprocess.Popen[bytes]:
    """Start a program with `request` to read on its stdin. Raises `OSError` where it cannot be started."""
    # A file without a name: a pipe would have this process wait for a program that does not read.
    stdin = os.memfd_create("request")
    try:
        with os.fdopen(stdin, "wb", closefd=False) as file:
            file.write(request)
        os.lseek(stdin, 0, os.SEEK_SET)
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        os.close(stdin)


def answer_of(process: subprocess.Popen[bytes], within_s: float) -> Answer:
    """Read what the program writes until it ends. Raises `NoAnswerError` where that takes longer than `within_s`
    seconds, or it writes too much; it is then told to end, and may go on."""
    assert process.stdout is not None
    assert process.stderr is not None
    until_s = time.monotonic() + within_s
    output = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting, process.stdout, process.stderr:
        try:
            for stream in output:
                waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                for ready, _ in _ready(waiting, until_s, within_s):
                    part = os.read(ready.fd, _CHUNK_BYTES)
                    if not part:
                        waiting.unregister(ready.fileobj)
                    _add(output[ready.fileobj], part)  # type: ignore[index]
            status = process.wait(max(0.0, until_s - time.monotonic()))
        except (NoAnswerError, subprocess.TimeoutExpired) as error:
            with suppress(PermissionError):
                process.terminate()  # which sudo hands on
            raise NoAnswerError(str(error)) from error
    return Answer(status, *map(bytes, output.values()))


def _ready(
    waiting: selectors.BaseSelector, until_s: float, within_s: float
) -> list[tuple[selectors.SelectorKey, int]]:
    ready = waiting.select(max(0.0, until_s - time.monotonic()))
    if not ready:
        raise NoAnswerError(f"it has not ended within {within_s:g} s")
    return ready


def _add(output: bytearray, part: bytes) -> None:
    output += part
    if len(output) > _MOST_BYTES:
        raise NoAnswerError(f"it writes more than the {_MOST_BYTES:,} bytes that an answer may have")
