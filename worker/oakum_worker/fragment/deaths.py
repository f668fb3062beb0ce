"""Explains in a sentence why a rank died, from its exit status, its memory and the kernel's counts of kills."""

from __future__ import annotations

import signal
from collections import deque

from oakum_worker.fragment.memory import MemoryUse, is_in_kernel_log, kills, memory_of, own_cgroup
from oakum_worker.memory_advice import memory_advice
from oakum_worker.spec import TrainerSpec

_SAMPLES = 5
"""Samples of the kernel's counts that are kept: the newest may already count a death not heard of yet."""


class DeathWatch:
    """Samples the memory of a node's ranks, so that it can explain a rank's death."""

    def __init__(self, spec: TrainerSpec) -> None:
        self._spec = spec
        self._cgroup = own_cgroup()
        self._kills = deque([kills(self._cgroup)], maxlen=_SAMPLES)
        self._uses: dict[int, MemoryUse] = {}

    def look(self, pids: list[int]) -> None:
        """Record the memory that the processes `pids` use now, and the kernel's counts of kills. To be called
        about once a second."""
        self._kills.append(kills(self._cgroup))
        measured = {pid: memory_of(pid, self._cgroup) for pid in pids}
        self._uses = {pid: use for pid in pids if (use := measured[pid] or self._uses.get(pid)) is not None}

    def explain(self, pid: int, status: int, who: str, where: str) -> tuple[str, bool]:
        """A sentence on how a process ended, and whether the out-of-memory killer is known to be the cause.

        A `status` below 0 is the negated number of a signal; `who` and `where` go into the sentence.
        """
        use = self._uses.get(pid)
        if status >= 0:
            return f"{who} ended with status {status}{where}{_held(use)}", False
        if status != -signal.SIGKILL:
            return f"{who} crashed ({_name(-status)}){where}{_held(use)}", False
        killer = self._killer(pid)
        if killer:
            return f"{who} was killed (SIGKILL){where}: {killer}{_held(use)}. {memory_advice(self._spec)}", True
        text = f"{who} was killed (SIGKILL){where}, and the kernel reports no out-of-memory kill{_held(use)}"
        return (f"{text}. {memory_advice(self._spec)}" if use is not None and use.is_short else text), False

    def _killer(self, pid: int) -> str:
        """Text that says how the kernel's out-of-memory killer is known to have killed the process; empty without
        evidence."""
        since = kills(self._cgroup).since(self._kills[0])
        if since.cgroup:
            return f"the kernel's out-of-memory killer ended {_processes(since.cgroup)} of its cgroup"
        if is_in_kernel_log(pid):
            return "the kernel's log says that it ended this process for lack of memory"
        if since.node:
            return f"the kernel's out-of-memory killer ended {_processes(since.node)} of this node"
        return ""


def _held(use: MemoryUse | None) -> str:
    if use is None:
        return ""
    held = f"; it last held {_size(use.rank_bytes)}"
    if use.limit_bytes is None or use.used_bytes is None:
        return held
    whose = "the cgroup may use" if use.is_cgroups else "the node has"
    return f"{held}, and {_size(use.used_bytes)} of the {_size(use.limit_bytes)} that {whose} were in use"


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
