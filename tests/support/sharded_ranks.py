"""Sharded trainings whose ranks are processes that come, go and die as a script says.

FSDP2 works on torch's default group, so ranks cannot be threads here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from rank_processes import fork_context
from rank_scripts import Act, Outcome, Script
from scripted_rank import perform
from waiting import DEADLINE_S

__all__ = ["Act", "Outcome", "Script", "play"]


@dataclass
class _Child:
    """A process of scripts, from the outside."""

    process: ForkServerProcess
    line: Connection
    stacks: Path

    @classmethod
    def start(cls) -> _Child:
        context = fork_context()
        ours, theirs = context.Pipe()
        descriptor, name = tempfile.mkstemp(prefix="stacks-of-a-rank-")
        os.close(descriptor)
        process = context.Process(target=perform, args=(theirs, Path(name)), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours, Path(name))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()
        self.stacks.unlink(missing_ok=True)


_MOST_KEPT = 4
_kept: list[_Child] = []
"""Processes that have performed scripts to their ends, for the next ones: the first steps of sharded training take
a process a second, and later ones milliseconds."""


@atexit.register
def _end_kept() -> None:
    for child in _kept:
        child.end()


def play(script: Script) -> list[Outcome | None]:
    """Play the script's acts; returns the outcome of each process, None for one that was killed.

    On a busy machine about one group in a thousand fails to connect; the script is then begun again, once.
    """
    with tempfile.TemporaryDirectory() as before:
        shutil.copytree(script.folder, before, dirs_exist_ok=True)
        outcomes = _play(script)
        if any("could not be formed" in outcome.error for outcome in outcomes if outcome is not None):
            shutil.rmtree(script.folder)
            shutil.copytree(before, script.folder)
            outcomes = _play(script)
    for outcome in outcomes:
        assert outcome is None or not outcome.error, outcome.error
    return outcomes


def _play(script: Script) -> list[Outcome | None]:
    numbers = range(1 + max(number for act in script.acts for number in act.members))
    kept = [] if script.afresh else [_kept.pop() for _ in numbers[: len(_kept)]]
    children = [*kept, *(_Child.start() for _ in numbers[len(kept) :])]
    lines = [child.line for child in children]
    is_calm = False
    try:
        for number, line in enumerate(lines):
            line.send((script, number))
        endpoints = [_receive(line) for line in lines]
        for line in lines:
            line.send(endpoints)
        outcomes = _watch(script, lines)
        is_calm = all(outcome is not None and not outcome.error for outcome in outcomes)
        return outcomes
    except AssertionError as error:
        error.add_note(_stacks(children))
        raise
    finally:
        for child in children:
            if is_calm and not script.afresh and len(_kept) < _MOST_KEPT:
                child.line.send(None)
                _kept.append(child)
            else:
                child.end()


def _stacks(children: list[_Child]) -> str:
    """The stacks of all threads of each living process, as text: which line of which function each one is in."""
    for child in children:
        if child.process.is_alive() and child.process.pid is not None:
            os.kill(child.process.pid, signal.SIGUSR1)
    time.sleep(1.0)  # the signal's handler writes at once, whatever the process waits for
    return "\n".join(child.stacks.read_text() for child in children)


def _receive(line: Connection) -> Any:
    assert line.poll(DEADLINE_S), "a process did not answer"
    answer = line.recv()
    assert not isinstance(answer, Outcome), answer.error
    return answer


def _watch(script: Script, lines: list[Connection]) -> list[Outcome | None]:
    """Wait until all processes have ended; returns the outcome of each, None for one that was killed as the script
    says. As soon as one is killed, the others are told.

    Processes send a number when they begin an act and when they have taken a step, and their outcome at the end.
    Raises `AssertionError` when none has sent anything for `DEADLINE_S`, however long the script takes in all.
    When a process fails, its outcome alone is returned, since the others may wait for it for ever.
    """
    outcomes: dict[int, Outcome | None] = {}
    while len(outcomes) < len(lines):
        waiting = [line for number, line in enumerate(lines) if number not in outcomes]
        ready = wait(waiting, timeout=DEADLINE_S)
        assert ready, f"no word from {[number for number in range(len(lines)) if number not in outcomes]}"
        for line in ready:
            number = lines.index(line)
            try:
                word: int | Outcome = line.recv()  # type: ignore[call-arg,assignment]  # of pipes, not of sockets
                if not isinstance(word, Outcome):
                    continue
                if word.error:
                    return [word]
                outcomes[number] = word
            except (EOFError, ConnectionResetError):
                outcomes[number] = None
                over = next(index for index, act in enumerate(script.acts, 1) if number in act.dies)
                for other in lines:
                    with contextlib.suppress(OSError):
                        other.send(over)
    return [outcomes[number] for number in range(len(lines))]
