"""Ranks that are processes, forked from a server that has imported torch: a fresh process takes seconds for that.

Only what can be imported by name runs in another process.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from waiting import DEADLINE_S

R = TypeVar("R")

_PRELOADED = [
    "encodings.idna",
    "pytest",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "oakum_worker.checkpoint.dcp_rows",
    "oakum_worker.parallel.pipeline.replicas",
    "oakum_worker.parallel.sharded",
    "oakum_worker.parallel.template",
    "oakum_worker.keeping.split",
    "averaged_tasks",
    "gathering_tasks",
    "grid_tasks",
    "pipeline_tasks",
    "sharded_ranks",
    "total_tasks",
    "torus_ranks",
]
"""Each test process has one server, so all tests name the same modules."""


def fork_context() -> ForkServerContext:
    """Starts processes that have torch and the worker's larger modules imported.

    The server does not have this process's `sys.path`, so it is given the folder of these modules. It passes over
    modules that it cannot import.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def in_a_fresh_process(called: Callable[..., R], *arguments: Any) -> R:
    """What `called` returns there. Where autograd has started threads, as other tests may have had it do here, no
    copy of a process computes gradients."""
    with ProcessPoolExecutor(1, mp_context=fork_context()) as processes:
        return processes.submit(called, *arguments).result(DEADLINE_S)


def _main(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    on_word: Callable[[], None] | None,
    port: int,
    rank: int,
    line: Connection,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    threading.Thread(target=_obey, args=(line, on_word), daemon=True).start()
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        line.send((function(*arguments, rank, store), ""))
    except Exception:
        line.send((None, traceback.format_exc()))
    # Stays, with its connections, until it is killed: only the word cuts those of its peers.
    threading.Event().wait()


def _obey(line: Connection, on_word: Callable[[], None] | None) -> None:
    with contextlib.suppress(EOFError):
        while True:
            line.recv()
            if on_word is not None:
                on_word()
    os._exit(1)  # the test is gone


class Processes:
    """A generation whose ranks are processes."""

    def __init__(
        self,
        world_size: int,
        function: Callable[..., Any],
        *arguments: Any,
        on_word: Callable[[], None] | None = None,
    ) -> None:
        """Start the ranks. Each calls `function(*arguments, rank, store)`, and `on_word()` in a thread when the
        test tells it to."""
        context = fork_context()
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._lines: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments_of_main = function, arguments, on_word, self._store.port, rank, theirs
            process = context.Process(target=_main, args=arguments_of_main, daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for line in self._lines:
            line.close()

    def answers(self) -> list[Any]:
        """Wait for all ranks; returns each rank's result."""
        return [self.answer(rank) for rank in range(len(self._lines))]

    def answer(self, rank: int) -> Any:
        """Wait for one rank; returns its result, None if the process was killed."""
        line = self._lines[rank]
        assert line.poll(DEADLINE_S), f"rank {rank} did not answer"
        try:
            answer, error = line.recv()
        except (EOFError, ConnectionResetError):
            return None
        assert not error, error
        return answer

    def answers_soon(self, ranks: Sequence[int], patience_s: float) -> list[Any]:
        """What the function returned on the ranks that answer within `patience_s` of the first."""
        assert wait([self._lines[rank] for rank in ranks], DEADLINE_S), f"none of the ranks {ranks} answered"
        deadline_s = time.monotonic() + patience_s
        return [
            self.answer(rank) for rank in ranks if self._lines[rank].poll(max(deadline_s - time.monotonic(), 0.0))
        ]

    def tell(self, rank: int) -> None:
        """Give a rank the word."""
        self._lines[rank].send("now")
