"""The contestants: elastic trainings that can be grown, shrunk and killed, by Oakum's real service, by torchrun
and by torchft.

Every contestant runs one process for each virtual node of this machine, and all train the same model with the
same step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import psutil

from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ClientError
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.schedulers.fragment_processes import AGENT_MODULES
from oakum_worker.spec import TrainerSpec
from peers.timeline import StepLogs
from peers.workload import GLOBAL_BATCH

PEERS = Path(__file__).resolve().parent
NAME = "rescaled"
_QUICK_RENDEZVOUS = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
_LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind=sys.argv[1], min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
time.sleep(1e6)
"""
T = TypeVar("T")


def wait_until(what: str, probe: Callable[[], T | None], timeout_s: float, every_s: float = 0.02) -> T:
    """Poll until the probe returns something true. Raises `TimeoutError` with `what`."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if found := probe():
            return found
        time.sleep(every_s)
    raise TimeoutError(f"not within {timeout_s:g} s: {what}")


class Contestant(Protocol):
    """One way to train elastically."""

    name: str
    logs: StepLogs

    def start(self) -> None:
        """Begin to train on all nodes."""

    def grow(self) -> None:
        """Give a node more."""

    def shrink(self) -> None:
        """Take a node away after telling the contestant."""

    def kill_rank(self, rank: int) -> None:
        """Kill a rank's process by SIGKILL."""

    def kill_node(self, rank: int) -> None:
        """Kill everything on a rank's node by SIGKILL."""

    def end(self) -> None:
        """Leave nothing running."""


class Oakum:
    """Oakum as a contestant: a service with an embedded cluster, its agents and ranks."""

    def __init__(self, folder: Path, nodes: int, model: str, compute_s: float) -> None:
        self.name = "oakum"
        self.logs = StepLogs(folder / "log")
        self._folder = folder
        self._nodes = nodes
        arguments = {"model_name": model, "compute_s": compute_s, "log": str(folder / "log")}
        self._spec = TrainerSpec(
            name=NAME,
            entrypoint="oakum_task:task",
            workdir=str(PEERS),
            arguments=arguments,
            global_batch=GLOBAL_BATCH,
            epochs=1_000_000,
            max_nodes=nodes,
        )
        self._size = nodes

    def start(self) -> None:
        data_dir = self._folder / "data"
        command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(data_dir)]
        command += ["--port", "0", "--load", "0", "--nodes", str(self._nodes)]
        with (self._folder / "service.log").open("wb") as log:
            self._service = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.client = wait_until("the service answers", lambda: connect(data_dir), 60.0)
        self.client.submit(self._spec)

    def grow(self) -> None:
        self._resize(self._size + 1)

    def shrink(self) -> None:
        self._resize(self._size - 1)

    def _resize(self, nodes: int) -> None:
        self._size = nodes
        self.client.change(NAME, TrainerChange(max_nodes=nodes))

    def take_nodes(self, nodes: int, run_s: float) -> None:
        """A foreground job takes nodes."""
        address = self.client.address
        httpx.post(
            f"{address.url}/v1/cluster/foreground-jobs",
            json={"nodes": nodes, "run_s": run_s},
            headers={"Authorization": f"Bearer {address.token}"},
        ).raise_for_status()

    def kill_rank(self, rank: int) -> None:
        os.kill(self.logs.pid_of(rank), signal.SIGKILL)

    def kill_node(self, rank: int) -> None:
        """Kill the node's agent; its ranks end with it."""
        parents = psutil.Process(self.logs.pid_of(rank)).parents()
        agent = next(process for process in parents if AGENT_MODULES.intersection(process.cmdline()))
        agent.kill()

    def reported_stalls(self, since: float) -> list[float | None]:
        """The stalls that rank 0 has reported, one for each rescale later than `since`: None if unknown."""
        events = self.client.recent_events(200).events
        formed = [event for event in events if event.kind == "generation.formed" and event.at >= since]
        return [event.data["stall_s"] for event in formed]

    def end(self) -> None:
        self._service.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._service.wait(timeout=15.0)
        end_all(self._service.pid, self._folder)


def connect(data_dir: Path) -> OakumClient | None:
    try:
        found = json.loads((data_dir / "client.json").read_text(encoding="utf-8"))
        client = OakumClient(url=found["url"], token=found["token"])
        client.cluster()
    except (OSError, ValueError, ClientError):
        return None
    return client


class Launched:
    """A contestant whose nodes are commands that this process starts, each the leader of a session."""

    name: str

    def __init__(self, folder: Path, nodes: int, model: str, compute_s: float) -> None:
        self.logs = StepLogs(folder / "log")
        self._folder = folder
        self._nodes = nodes
        self._workload = [model, str(compute_s), str(folder / "log")]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def _command(self, node: int) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PEERS), "TORCH_CPP_LOG_LEVEL": "ERROR"}

    def start(self) -> None:
        for node in range(self._nodes):
            self._launch(node)

    def _launch(self, node: int) -> None:
        with (self._folder / f"node{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                self._command(node),
                stdout=log,
                stderr=log,
                env=os.environ | self._environment(),
                start_new_session=True,
            )

    def grow(self) -> None:
        self._launch(next(node for node in range(self._nodes) if node not in self._running))

    def shrink(self) -> None:
        node = max(self._running)
        self._running.pop(node).terminate()

    def kill_rank(self, rank: int) -> None:
        os.kill(self.logs.pid_of(rank), signal.SIGKILL)

    def kill_node(self, rank: int) -> None:
        # Never node 0, where torchrun keeps its rendezvous store: without it nothing goes on.
        del rank
        node = max(self._running)
        victims = family(self._running.pop(node).pid)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self) -> None:
        for process in self._running.values():
            end_all(process.pid, self._folder)
            process.wait()


class Torchrun(Launched):
    """Elastic agents of torchrun, one for each node, with torch's defaults or with quicker settings.

    Quicker still, agents give up waiting for each other and train apart, all writing the same snapshot.
    """

    def __init__(self, folder: Path, nodes: int, model: str, compute_s: float, *, quick: bool) -> None:
        super().__init__(folder, nodes, model, compute_s)
        self.name = "torchrun, quick" if quick else "torchrun"
        self._quick = quick
        self._port = free_port()

    def start(self) -> None:
        self._launch(0)
        wait_until("the rendezvous store listens", lambda: listens(self._port), 60.0)
        for node in range(1, self._nodes):
            self._launch(node)

    def _command(self, node: int) -> list[str]:
        options = [f"--nnodes=1:{self._nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=bench"]
        options += [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--local-addr=127.0.0.1", "--max-restarts=100000"]
        if self._quick:
            options += ["--monitor-interval=0.1", f"--rdzv-conf={_QUICK_RENDEZVOUS}"]
        script = [str(PEERS / "torchrun_loop.py"), *self._workload, str(self._folder / "snapshot.pt")]
        return [sys.executable, "-m", "torch.distributed.run", *options, *script]

    def _environment(self) -> dict[str, str]:
        # Without it a worker that survives a restart of the others keeps a store that nobody else uses, and hangs.
        return super()._environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Torchft(Launched):
    """Replicas of torchft under one lighthouse; a replica that dies is started anew at once."""

    name = "torchft"

    def __init__(self, folder: Path, nodes: int, model: str, compute_s: float, *, python: str) -> None:
        super().__init__(folder, nodes, model, compute_s)
        self._python = python
        self._port = free_port()

    def start(self) -> None:
        command = [self._python, "-c", _LIGHTHOUSE, f"127.0.0.1:{self._port}"]
        with (self._folder / "lighthouse.log").open("wb") as log:
            self._lighthouse = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until("the lighthouse listens", lambda: listens(self._port), 30.0)
        super().start()

    def _command(self, node: int) -> list[str]:
        return [self._python, str(PEERS / "torchft_loop.py"), *self._workload, str(node), str(self._nodes)]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}"}

    def kill_rank(self, rank: int) -> None:
        pid = self.logs.pid_of(rank)
        node = next(node for node, process in self._running.items() if process.pid == pid)
        self._running[node].kill()
        self._running.pop(node).wait()
        self._launch(node)

    def end(self) -> None:
        super().end()
        end_all(self._lighthouse.pid, self._folder)


def free_port() -> int:
    """A port on which nothing listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def family(pid: int) -> Sequence[psutil.Process]:
    """The process and all its descendants."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end_all(pid: int, folder: Path) -> None:
    """Kill the process, its descendants and whatever has the folder in its command line."""
    own = [process for process in psutil.process_iter(["cmdline"]) if _names(process.info, folder)]
    for process in [*family(pid), *own]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(own, timeout=5.0)


def _names(info: dict[str, Any], folder: Path) -> bool:
    return any(str(folder) in argument for argument in info["cmdline"] or ())
