"""Looks from time to time how much of the node is in use, in a thread for which nobody waits who leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from oakum_worker.fragment.gpu_use import GpuReader
from oakum_worker.fragment.node_use import UseReader
from oakum_worker.protocol import NodeUse

_log = logging.getLogger("oakum.agent")
_EVERY_S = 5.0


class UseWatch:
    """Keeps the newest look at the node until it is taken for a report."""

    def __init__(self, processes: Callable[[], Sequence[int]], every_s: float = _EVERY_S) -> None:
        """`processes` tells the fragment's own, without those that these have begun."""
        self._processes = processes
        self._every_s = every_s
        self._reader, self._gpus = UseReader(), GpuReader()
        self._stopped = threading.Event()
        self._newest: NodeUse | None = None

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._watch, daemon=True, name="node use").start()

    def stop(self) -> None:
        """Look no more; returns at once."""
        self._stopped.set()

    def take(self) -> NodeUse | None:
        """The newest look; None where it has been taken before, or there is none."""
        newest, self._newest = self._newest, None
        return newest

    def _watch(self) -> None:
        try:
            while not self._stopped.wait(self._every_s):
                if (use := self._reader.read(self._processes())) is not None:
                    self._newest = use.model_copy(update=self._gpus.read())
        except Exception:
            # Charts are all that is lost. The fragment trains on.
            _log.warning("the node's use cannot be read", exc_info=True)
