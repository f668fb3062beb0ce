"""The agent's side of one rank process: start it, write to it, hear from it, know when it is gone or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oakum_worker.channel import Command, News, write_command
from oakum_worker.protocol import Endpoint, Phase
from oakum_worker.spec import TrainerSpec

_SIGN_OF_LIFE = News()
_KILL_S = 2.0
# Whoever else is on the node comes first: the scheduler's daemon that wants it back, and our agent that leaves.
_BEHIND_OTHERS = ("nice", "-n", "5")


@dataclass(frozen=True)
class RankNews:
    """A line of news from one rank."""

    local_rank: int
    start: int
    """Which of the rank's processes it comes from, counted from 1."""
    news: News


@dataclass(frozen=True)
class RankExit:
    """A rank process has ended; everything it had to say has been heard."""

    local_rank: int
    start: int
    status: int


class _Pulse:
    """When a process last gave a sign of life, and whether it has computed since."""

    _IDLE_S = 0.05
    """A process that waits in all its threads computes less than this in any timeout."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        """Note a sign of life."""
        # As one: the thread that listens and the one that asks are not the same.
        self._last: tuple[float, float | None] = time.monotonic(), None

    def stopped(self, timeout_s: float, cpu_s: float) -> bool:
        """Whether the last sign is `timeout_s` old and the process, `cpu_s` old by now, has idled since."""
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
    """One rank process of this node, and the memory that outlives it."""

    def __init__(
        self,
        config_file: Path,
        local_rank: int,
        spec: TrainerSpec,
        deliver: Callable[[RankNews | RankExit], None],
    ) -> None:
        self._config_file = config_file
        self._local_rank = local_rank
        self._spec = spec
        self._deliver = deliver
        self._memory = os.memfd_create("oakum-state")
        self.starts = 0
        self.phase = Phase.WARMING
        self.endpoint: Endpoint | None = None

    def start(self, after: int = 0) -> None:
        """Start the process, for generations above `after`, and the thread that reads its news."""
        self.starts += 1
        self.phase, self.endpoint = Phase.WARMING, None
        self._pulse = _Pulse()
        reading, writing = os.pipe()
        arguments = (self._config_file, self._local_rank, writing, self._memory, after)
        try:
            self._process = subprocess.Popen(
                [*_BEHIND_OTHERS, sys.executable, "-u", "-m", "oakum_worker.rank", *map(str, arguments)],
                stdin=subprocess.PIPE,
                pass_fds=(writing, self._memory),
                start_new_session=True,
                env=self._environment(),
            )
        finally:
            os.close(writing)
        threading.Thread(target=self._listen, args=(reading, self._process, self.starts), daemon=True).start()

    def hangs(self, timeout_s: float) -> bool:
        """Whether a rank that can train has neither been heard nor has computed for so long. Ask several times.

        One that computes and is not heard is busy in code that lets no other thread run: slow, but not hung.
        """
        if self.phase not in (Phase.READY, Phase.TRAINING, Phase.BROKEN):
            return False
        return self._pulse.stopped(timeout_s, self._cpu_s())

    def forgive_silence(self) -> None:
        """The agent itself could not listen: count the silence anew."""
        self._pulse.beat()

    def _cpu_s(self) -> float:
        """Seconds of computing that the process has done."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return 0.0
        fields = stat.rpartition(")")[2].split()  # the command's name may hold blanks
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(self._spec.threads_per_rank)
        environment["CUDA_VISIBLE_DEVICES"] = self._device(environment.get("CUDA_VISIBLE_DEVICES", ""))
        # A rendezvous that is broken off is everyday business here, not worth a C++ stack trace.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        return environment

    def _device(self, visible: str) -> str:
        """The one GPU of those the scheduler lets us see that is this rank's, so that `cuda` means it."""
        devices = [device for device in visible.split(",") if device]
        return devices[self._local_rank % len(devices)] if devices else str(self._local_rank)

    def _listen(self, reading: int, process: subprocess.Popen[bytes], start: int) -> None:
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
        """Tell the rank something; a rank that has ended is not an error."""
        assert self._process.stdin is not None
        write_command(self._process.stdin, command)

    def kill(self) -> bool:
        """End the process and whatever the user's code has started in it; False if it has not ended in time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(timeout=_KILL_S)
        except subprocess.TimeoutExpired:
            return False
        return True
