"""A service with an embedded cluster, and the processes that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from oakum_service.schedulers.fragment_processes import AGENT_MODULES
from oakum_worker.fragment import CONFIG_NAME
from peers.contestants import connect, end_all, wait_until

_PATIENCE_S = 240.0
"""For what has to come in the end, on a machine however busy."""
_MODULES = {
    "rank": {"oakum_worker.rank.process"},
    "agent": AGENT_MODULES,
    "fork server": {"oakum_worker.fragment.fork_server"},
}
_FRAGMENT = re.compile(r"/fragments/([0-9a-f-]{36})")


@dataclass(frozen=True)
class FragmentProcess:
    """An agent, a rank, the fork server between them, or submitit's own process above them."""

    role: str
    """`agent`, `rank`, `fork server` or `controller`."""
    fragment: str
    node: str
    process: psutil.Process


class Site:
    """Starts the service, and finds its processes in the system's list instead of asking the service."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.nodes = nodes
        self.log_file = folder / "service.log"
        self._data_dir = folder / "data"
        self._listeners: set[tuple[int, int | None]] = set()
        """(port, pid) of the service's processes that were seen to listen. The next process that the system gives
        such a port to is not ours."""

    def start(self) -> None:
        """Start the service and wait until it answers."""
        command = [sys.executable, "-m", "oakum", "serve", "--verbose", "--data-dir", str(self._data_dir)]
        command += ["--port", "0", "--load", "0", "--nodes", str(self.nodes)]
        environment = os.environ | {"OAKUM_HEARTBEAT_TIMEOUT_S": "10"}
        with self.log_file.open("wb") as log:
            self.service = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.client = wait_until("the service answers", lambda: connect(self._data_dir), _PATIENCE_S)

    def take_nodes(self, nodes: int, run_s: float) -> None:
        """Start a foreground job on nodes of the embedded cluster."""
        address = self.client.address
        httpx.post(
            f"{address.url}/v1/cluster/foreground-jobs",
            json={"nodes": nodes, "run_s": run_s},
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=_PATIENCE_S,
        ).raise_for_status()

    def fragments(self) -> list[FragmentProcess]:
        """All live processes of fragments."""
        return list(self._fragments())

    def _fragments(self) -> Iterator[FragmentProcess]:
        for process in self._processes():
            arguments = process.info["cmdline"]
            found = _FRAGMENT.search(" ".join(arguments))
            if found is None:
                continue
            config_file = self._data_dir / "fragments" / found[1] / CONFIG_NAME
            with contextlib.suppress(OSError):
                node = json.loads(config_file.read_text(encoding="utf-8"))["node"]
                role = next(
                    (role for role, names in _MODULES.items() if names.intersection(arguments)), "controller"
                )
                yield FragmentProcess(role, found[1], node, process)

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter(["cmdline", "status"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if any(str(self._data_dir) in argument for argument in process.info["cmdline"] or ()):
                yield process

    def crowded_nodes(self) -> list[str]:
        """Nodes on which processes of two fragments live."""
        held: dict[str, set[str]] = {}
        for found in self.fragments():
            held.setdefault(found.node, set()).add(found.fragment)
        return sorted(node for node, fragments in held.items() if len(fragments) > 1)

    def open_files(self) -> dict[tuple[str, int], int]:
        """(role, pid) -> descriptors that the service and each process of a fragment have open."""
        pids = [("service", self.service.pid), *((f.role, f.process.pid) for f in self.fragments())]
        counts = {}
        for role, pid in pids:
            with contextlib.suppress(OSError):
                counts[role, pid] = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (no paths are needed)
        own = {pid for _, pid in pids}
        self._listeners |= {(port, pid) for port, pid in _listening() if pid in own}
        return counts

    def interrupt(self) -> list[str]:
        """Interrupt the service as Ctrl-C does; returns texts about what is left of it."""
        self.service.send_signal(2)
        left = []
        try:
            self.service.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            left.append(f"the service did not end within {_PATIENCE_S:g} s of Ctrl-C")
        left += [f"left behind: {' '.join(process.info['cmdline'])}" for process in self._processes()]
        ports = sorted(port for port, _ in _listening() & self._listeners)
        return left + [f"port {port} is still listened on" for port in ports]

    def end(self) -> None:
        """Leave nothing running, whatever has happened."""
        for found in self.fragments():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.process.resume()
        end_all(self.service.pid, self._data_dir)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.service.wait(timeout=10.0)


def _listening() -> set[tuple[int, int | None]]:
    """Each TCP port on which a process listens, with that process's pid; with None where the system does not tell
    it."""
    return {
        (connection.laddr[1], connection.pid)
        for connection in psutil.net_connections(kind="tcp")
        if connection.laddr and connection.status == psutil.CONN_LISTEN
    }
