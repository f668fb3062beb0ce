"""Starts the process of a rank: forked from a server where there is one, else afresh.

Imports next to nothing, so that ranks start before the agent's own imports.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oakum_worker.checkpoint.memory_header import has_copy
from oakum_worker.errors import ForkError
from oakum_worker.fragment.compile_cache import VARIABLE, compile_cache
from oakum_worker.fragment.forking import ForkedProcess, ForkRequest, ForkServer, node_has_accelerator
from oakum_worker.fragment.output import FragmentOutput

_log = logging.getLogger("oakum.agent")
_RANK = "oakum_worker.rank.process"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Niceness of ranks: the scheduler's daemon, which may want the node back, and the leaving agent go first.
_BEHIND_OTHERS = 5
_WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_NO_WATCHDOG = "0"
_OF_NCCL = {
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "21600",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""torch's monitor of its watchdog ends processes, and writes dumps, unless told not to. A user's values stand."""
_THREADS_OF_FORKS = 1
"""Threads of a forked rank: libraries read the number as they load, which they did in the server."""


@dataclass(frozen=True)
class StartedRank:
    """A rank process that was started, and the pipe from which its agent reads what the rank reports."""

    process: subprocess.Popen[bytes] | ForkedProcess
    news: int
    """File descriptor of the pipe's reading end."""
    began_s: float
    """Beginning of the start, in seconds on the monotonic clock."""


class RankStarter:
    """Starts one rank's process, again after each crash, and holds the memory for the copy of the state that
    outlives the process."""

    def __init__(
        self,
        config_file: Path,
        local_rank: int,
        threads: int,
        server: ForkServer | None = None,
        output: FragmentOutput | None = None,
    ) -> None:
        """With a `server`, processes are forked from it where that is possible: ranks of one thread, on nodes
        without an accelerator. Otherwise they are started afresh. What they print goes through `output`, which a
        fragment's ranks have in common."""
        self.local_rank = local_rank
        self._config_file = config_file
        self._threads = threads
        self._server = server
        self.output = FragmentOutput(1) if output is None else output
        self._memory = os.memfd_create("oakum-state")
        self._ahead: StartedRank | None = None

    def start_ahead(self) -> None:
        """Start the first process now; the first call of `start` returns it."""
        self._ahead = self.start()

    @property
    def has_copy(self) -> bool:
        """Whether a copy of the state lies in the memory that outlives the rank."""
        return has_copy(self._memory)

    def start(self, after: int = 0) -> StartedRank:
        """Return the process that was started ahead, or start a new process for generations above `after`."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        began_s = time.monotonic()
        reading, writing = os.pipe()
        printing = self.output.open()
        arguments = tuple(map(str, (self._config_file, self.local_rank, writing, self._memory, after)))
        try:
            process = self._fork(arguments, writing, printing) or self._start_afresh(arguments, writing, printing)
        finally:
            os.close(writing)
            os.close(printing)
        return StartedRank(process, reading, began_s)

    def _start_afresh(self, arguments: Sequence[str], writing: int, printing: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["nice", "-n", str(_BEHIND_OTHERS), sys.executable, "-P", "-u", "-m", _RANK, *arguments],
            stdin=subprocess.PIPE,
            stdout=printing,
            stderr=printing,
            pass_fds=(writing, self._memory),
            start_new_session=True,
            env=self._environment(),
        )

    def _fork(self, arguments: Sequence[str], writing: int, printing: int) -> ForkedProcess | None:
        """Fork the process from the server, in a session of its own. None where it has to be started afresh:
        without a server, with an accelerator or several threads, or if the server fails, which is then not asked
        again."""
        if self._server is None or self._threads != _THREADS_OF_FORKS or node_has_accelerator():
            return None
        request = ForkRequest(
            _RANK,
            tuple(arguments),
            self._environment(),
            str(Path.cwd()),
            descriptors=(0, 1, 2, writing, self._memory),
            nice=_BEHIND_OTHERS,
        )
        commands, stdin = os.pipe()
        try:
            process = self._server.start(request, (commands, printing, printing, writing, self._memory))
        except ForkError as error:
            _log.warning("%s: ranks of this node are started afresh", error)
            os.close(stdin)
            self._server = None
            return None
        finally:
            os.close(commands)
        process.stdin = os.fdopen(stdin, "wb")
        process.watch()
        return process

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(self._threads)
        # Else torch's numbers may not be the scheduler's, which go by the place on the bus.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment[VISIBLE] = own_gpu_first(environment.get(VISIBLE, ""), self.local_rank)
        # Broken rendezvous are routine here; keep torch from printing a C++ stack trace for each.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        _refuse_watchdog(environment)
        for name, value in _OF_NCCL.items():
            environment.setdefault(name, value)
        environment[VARIABLE] = str(compile_cache(environment, self._config_file.parent))
        return environment


def _refuse_watchdog(environment: dict[str, str]) -> None:
    """Have torch's watchdog of NCCL leave collectives alone that fail or last. It would end the process, which has
    the state, or abort them without a word, and training would go on from what they leave."""
    given = environment.get(_WATCHDOG, _NO_WATCHDOG)
    if given != _NO_WATCHDOG:
        _log.warning(
            "%s=%s is not passed on to ranks: Oakum itself ends collectives of lost ranks", _WATCHDOG, given
        )
    environment[_WATCHDOG] = _NO_WATCHDOG


def own_gpu_first(visible: str, local_rank: int) -> str:
    """All GPUs of a fragment as a comma-separated list that begins with this rank's own. `visible` has them, by
    number, UUID or MIG name; where it is empty, they are all of the node's.

    CUDA numbers its devices in the list's order, so `cuda` and `cuda:0` are the rank's own GPU in every thread, of
    which users' code and libraries do not have to be told. The others are there because CUDA shares memory between
    processes, over NVLink for instance, only on GPUs that both see. Of MIG slices CUDA takes the first alone.
    """
    gpus = [name for name in visible.split(",") if name] or [str(number) for number in range(_count_gpus())]
    if not gpus:
        return str(local_rank)  # of another maker's GPUs, which are not counted, or of none
    own = local_rank % len(gpus)
    return ",".join([*gpus[own:], *gpus[:own]])


def _count_gpus() -> int:
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*"))


def start_ranks(config_file: Path, server: ForkServer | None = None) -> list[RankStarter]:
    """Start every rank of the fragment whose config `config_file` is; returns their starters by local rank."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    spec = config["spec"]
    output = FragmentOutput(1)
    starters = [
        RankStarter(config_file, local_rank, spec["threads_per_rank"], server, output)
        for local_rank in range(config.get("ranks") or spec["ranks_per_node"])
    ]
    for starter in starters:
        starter.start_ahead()
    return starters
