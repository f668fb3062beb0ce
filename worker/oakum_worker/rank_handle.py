"""The agent's side of one rank process: start it, write to it, hear from it, know when it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oakum_worker.channel import Command, News, write_command
from oakum_worker.protocol import Endpoint, Phase
from oakum_worker.spec import TrainerSpec


@dataclass(frozen=True)
class RankExit:
    """A rank process has ended; everything it had to say has been heard."""

    local_rank: int
    status: int


class RankHandle:
    """One rank process of this node."""

    def __init__(
        self,
        config_file: Path,
        local_rank: int,
        spec: TrainerSpec,
        deliver: Callable[[News | RankExit], None],
    ) -> None:
        self._config_file = config_file
        self._local_rank = local_rank
        self._spec = spec
        self._deliver = deliver
        self.phase = Phase.WARMING
        self.endpoint: Endpoint | None = None

    def start(self) -> None:
        """Start the process and the thread that reads its news."""
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-u",
                    "-m",
                    "oakum_worker.rank",
                    str(self._config_file),
                    str(self._local_rank),
                    str(writing),
                ],
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
                env=self._environment(),
            )
        finally:
            os.close(writing)
        threading.Thread(target=self._listen, args=(reading,), daemon=True).start()

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(self._spec.threads_per_rank)
        # A rendezvous that is broken off is everyday business here, not worth a C++ stack trace.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        return environment

    def _listen(self, reading: int) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                try:
                    self._deliver(News.model_validate_json(line))
                except ValidationError:  # the last line of a process that was killed while it wrote
                    continue
        self._deliver(RankExit(self._local_rank, self._process.wait()))

    def send(self, command: Command) -> None:
        """Tell the rank something; a rank that has ended is not an error."""
        assert self._process.stdin is not None
        write_command(self._process.stdin, command)

    def kill(self) -> None:
        """End the process and whatever the user's code has started in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
