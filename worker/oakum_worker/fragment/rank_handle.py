"""The agent's side of one rank process: starts it, writes to it, reads its news, notices its end or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oakum_worker.channel import Command, News, write_command
from oakum_worker.fragment.forking import ForkedProcess
from oakum_worker.fragment.rank_starter import RankStarter
from oakum_worker.protocol import Endpoint, Phase

_SIGN_OF_LIFE = News()
_KILL_S = 2.0


@dataclass(frozen=True)
class RankNews:
    """Event: a line of news that one rank has sent."""

    local_rank: int
    start: int
    """The number of the rank's process that sent the line, from 1: a rank may be restarted."""
    news: News


@dataclass(frozen=True)
class RankExit:
    """Event: a rank's process has ended, and all of its news has been read."""

    local_rank: int
    start: int
    status: int


class _Pulse:
    """When a process last gave a sign of life, and how much it had computed when it was first asked about
    since."""

    _IDLE_S = 0.05
    """Seconds of computing within a timeout below which a process counts as idle."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        """Note a sign of life."""
        # One assignment of both values, because one thread listens and another one asks.
        self._last: tuple[float, float | None] = time.monotonic(), None

    def stopped(self, timeout_s: float, cpu_s: float) -> bool:
        """Whether the process is taken to hang: its last sign of life is `timeout_s` old, and it has hardly
        computed since the first call after that sign. `cpu_s` is the CPU time that it has used so far, in seconds.
        If it has computed, the time begins anew."""
        heard_s, before_s = self._last
        if before_s is None:
            before_s = cpu_s
            self._last = heard_s, before_s
        if time.monotonic() - heard_s < timeout_s:
            return False
        if cpu_s - before_s <= self._IDLE_S:
            return True
        self.beat()
        return False


class RankHandle:
    """One rank process of this node, which is started anew after a crash: sends it commands, passes its news on,
    and kills it."""

    def __init__(self, starter: RankStarter, deliver: Callable[[RankNews | RankExit], None]) -> None:
        self._starter = starter
        self._local_rank = starter.local_rank
        self._deliver = deliver
        self.starts = 0
        self.phase = Phase.WARMING
        self.endpoint: Endpoint | None = None
        self.holds_state = False

    def start(self, after: int = 0) -> float:
        """Start the process, to join generations above `after`, and the thread that reads its news. Returns
        the time at which the process began, in monotonic seconds. A process that was started ahead began before
        this call, and does not know of `after`."""
        self.starts += 1
        self.phase, self.endpoint, self.holds_state = Phase.WARMING, None, False
        self._pulse = _Pulse()
        started = self._starter.start(after)
        self._process = started.process
        threading.Thread(
            target=self._listen, args=(started.news, started.process, self.starts), daemon=True
        ).start()
        return started.began_s

    @property
    def recalls(self) -> bool:
        """Whether the process is still starting up and will find a copy of the state in the node's memory."""
        return self.phase is Phase.WARMING and self._starter.has_copy

    def hangs(self, timeout_s: float) -> bool:
        """Whether a rank that can train has neither given a sign of life nor computed for `timeout_s`.

        Call it repeatedly: computing counts from the first call after a sign of life on. A rank that computes
        without a sign of life is busy in code that lets no other thread run: slow, but not hung.
        """
        if self.phase not in (Phase.READY, Phase.TRAINING, Phase.BROKEN):
            return False
        return self._pulse.stopped(timeout_s, self._cpu_s())

    def forgive_silence(self) -> None:
        """Count the rank's silence from now on, because the agent itself could not listen."""
        self._pulse.beat()

    def _cpu_s(self) -> float:
        """CPU seconds that the process has used so far; 0 where it has ended."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return 0.0
        fields = stat.rpartition(")")[2].split()  # the command's name may hold blanks
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _listen(self, reading: int, process: subprocess.Popen[bytes] | ForkedProcess, start: int) -> None:
        pulse = self._pulse
        with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                pulse.beat()
                try:
                    news = News.model_validate_json(line)
                except ValidationError:  # the last line of a process that was killed while it wrote
                    continue
                if news != _SIGN_OF_LIFE:
                    self._deliver(RankNews(self._local_rank, start, news))
        self._deliver(RankExit(self._local_rank, start, process.wait()))

    def send(self, command: Command) -> None:
        """Send the rank a command. Does nothing where the rank has ended."""
        assert self._process.stdin is not None
        write_command(self._process.stdin, command)

    @property
    def pid(self) -> int:
        """Process id of the process that was started last."""
        return self._process.pid

    def drain(self) -> None:
        """Wait for a moment until what the ended process has printed is in the log."""
        self._starter.output.drain()

    def kill(self) -> bool:
        """Kill the process and its process group, which has what the user's code started. Returns whether the
        process ended within 2 s."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(timeout=_KILL_S)
        except subprocess.TimeoutExpired:
            return False
        return True
