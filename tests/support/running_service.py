"""A real `oakum serve` in a process of its own, for the integration and crash tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import httpx
import psutil

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.events import Event
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.db.engine import open_engine, open_sessions
from oakum_service.identity import audit, tokens
from oakum_service.schedulers.fragment_processes import AGENT_MODULES
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from processes import kill_all
from waiting import DEADLINE_S, wait_until
from warm_processes import WarmProcess, run_warm, start_warm

_RANK_MODULE = "oakum_worker.rank.process"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEVERAL_STARTS_S = 400.0
"""For what takes as many starts of a fragment, one after the other, as a trainer may have in vain."""
_PATIENT = {
    "OAKUM_LOCAL_GRACE_S": "60",
    "OAKUM_LEAVE_DEADLINE_S": "30",
    "OAKUM_DRAIN_S": "60",
    "OAKUM_RANK_TIMEOUT_S": "30",
    "OAKUM_HEARTBEAT_TIMEOUT_S": "30",
}
"""So that nobody who is only slow is given up; tests of these limits set their own."""
TASKS = Path(__file__).resolve().parent / "tasks"


class RunningService:
    """Starts, stops and kills a service, again and again, in one data directory."""

    def __init__(self, folder: Path, nodes: int = 4, **environment: str) -> None:
        self.data_dir = folder / "data"
        self.log_file = folder / "service.log"
        self._nodes = nodes
        self._environment = environment
        self.process: subprocess.Popen[bytes] | WarmProcess | None = None
        self.starts_afresh = False
        """Whether the lives to come are fresh processes, with imports of their own."""
        self.module = "oakum"
        """What Python runs as the `oakum` command."""

    def configure(self, **environment: str) -> None:
        """Change settings for the next starts of the service."""
        self._environment |= environment

    def start(self, *options: str) -> OakumClient:
        """Start the service and wait until it answers."""
        (self.data_dir / "client.json").unlink(missing_ok=True)
        self.launch(*options)
        return wait_until("the service answers", self._client)

    def launch(self, *options: str) -> None:
        """Start the service without waiting for it."""
        command = [self.module, "serve", "--verbose"]
        command += ["--data-dir", str(self.data_dir), "--port", "0", "--load", "0", *options]
        environment = os.environ | {
            "OAKUM_LOCAL_NODES": str(self._nodes),
            "COLUMNS": "200",
            **_PATIENT,
            **self._environment,
        }
        with self.log_file.open("ab") as log:
            if self.starts_afresh:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            else:
                self.process = start_warm(*command, environment=environment, output=log)

    def client(self) -> OakumClient:
        """A client of the service that runs."""
        client = self._client()
        assert client is not None
        return client

    def _client(self) -> OakumClient | None:
        assert self.process is not None
        assert self.process.poll() is None, self.log_file.read_text(encoding="utf-8")
        try:
            found = json.loads((self.data_dir / "client.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        client = OakumClient(url=found["url"], token=found["token"], ca_file=found.get("ca_file"))
        try:
            client.cluster()
        except Exception:
            return None
        return client

    def hook_token(self) -> str:
        """A new token for the scheduler's hooks."""
        engine = open_engine(f"sqlite:///{self.data_dir / 'oakum.db'}")
        with open_sessions(engine).begin() as session:
            token = tokens.create(session, audit.local_actor(), "slurm-hooks", "hook")
        engine.dispose()
        return token

    def take_nodes(self, nodes: int, run_s: float) -> None:
        """Have a foreground job take nodes of the embedded cluster."""
        address = json.loads((self.data_dir / "client.json").read_text(encoding="utf-8"))
        response = httpx.post(
            f"{address['url']}/v1/cluster/foreground-jobs",
            json={"nodes": nodes, "run_s": run_s},
            headers={"Authorization": f"Bearer {address['token']}"},
            timeout=DEADLINE_S,
        )
        response.raise_for_status()

    def interrupt(self) -> None:
        """Ctrl-C; returns once the process has ended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=DEADLINE_S)

    def kill(self) -> None:
        """`kill -9`, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)

    def processes(self) -> list[psutil.Process]:
        """Every live process that has the data directory in its command line."""
        return processes_of(self.data_dir)

    def ranks(self) -> dict[str, psutil.Process]:
        """Fragment id -> its rank process, without the copies of it that a rehearsal makes."""
        found = {one.pid: one for one in self.processes() if _RANK_MODULE in one.info["cmdline"]}
        lines = {one.pid: one.info["cmdline"] for one in found.values() if one.info["ppid"] not in found}
        return {Path(line[line.index(_RANK_MODULE) + 1]).parent.name: found[pid] for pid, line in lines.items()}

    def agents(self) -> dict[str, psutil.Process]:
        """Fragment id -> its agent's process."""
        return {
            Path(line[-1]).name: process
            for process in self.processes()
            if AGENT_MODULES.intersection(line := command_line(process))
        }

    def fork_server(self) -> psutil.Process | None:
        """The process that fragments are forked from, if there is one."""
        found = (
            process for process in self.processes() if str(self.data_dir / "fragments") in command_line(process)
        )
        return next(found, None)

    def end(self) -> None:
        """End the service and all that it has started, whatever the test has done."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        kill_all(self.processes())


def command_line(process: psutil.Process) -> list[str]:
    """The words of a process's command line, without the room that a fork server keeps for its children's."""
    return [word for word in process.info["cmdline"] if word.strip()]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every live process that has the folder in its command line."""
    wanted = os.fsencode(folder)
    found = []
    for number in psutil.pids():
        # Tests look again and again, and `psutil.Process` reads several files of each process.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if wanted in Path(f"/proc/{number}/cmdline").read_bytes():
                process = psutil.Process(number)
                process.info = process.as_dict(["cmdline", "status", "ppid"])
                if process.info["status"] != psutil.STATUS_ZOMBIE and process.info["cmdline"]:
                    found.append(process)
    return found


def let_go(service: RunningService) -> None:
    """Cancel what a test has left of its trainers and wait until the service has all its nodes again."""
    client = service.client()
    for trainer in client.trainers().trainers:
        if not trainer.state.ended:
            client.cancel(trainer.name)
    wait_until("all nodes are free", lambda: not service.ranks() and not service.agents())
    wait_until("no foreground job is left", lambda: not client.cluster().num_foreground)


def state_of(client: OakumClient, name: str) -> TrainerState:
    """The trainer's state now."""
    return client.trainer(name).state


def events_of(client: OakumClient, kind: str) -> list[Event]:
    """The newest events of a kind, the oldest first."""
    return [event for event in client.recent_events(500).events if event.kind == kind]


def formed_messages(client: OakumClient, name: str | None = None) -> list[str]:
    """Messages of the service's events about formed generations, of one trainer or of all."""
    formed = events_of(client, "generation.formed")
    return [event.message for event in formed if name in (None, event.subject)]


def nodes_of_fragments(client: OakumClient) -> dict[str, str]:
    """Fragment -> the node that the service has it on, of those that have not ended."""
    return {i.fragment: i.node for i in client.timeline(600).fragments if i.end_at is None}


def wait_for_size(client: OakumClient, name: str, nodes: int, timeout_s: float = DEADLINE_S) -> TrainerView:
    """Wait until the trainer trains on so many nodes and has finished a step there."""

    def probe() -> TrainerView | None:
        view = client.trainer(name)
        return view if len(view.nodes) == nodes and view.steps_at_size.get(nodes) else None

    return wait_until(f"{name} trains on {nodes} nodes", probe, timeout_s)


def train_side_by_side(
    client: OakumClient, specs: Sequence[TrainerSpec], nodes: int, timeout_s: float = DEADLINE_S
) -> None:
    """Submit all trainers; return once each trains on `nodes` nodes."""
    for spec in specs:
        client.submit(spec)
    for spec in specs:
        wait_for_size(client, spec.name, nodes, timeout_s)


def wait_for_generation(client: OakumClient, name: str, after: int, nodes: int | None = None) -> Event:
    """Wait until a generation above `after`, of so many nodes if that is given, has finished a step.

    Returns the event that says so. It stays where it is when the next generation comes, however late one looks,
    and steps that were finished before do not bring it about, however late they are heard of.
    """

    def probe() -> Event | None:
        formed = (event for event in events_of(client, "generation.formed") if event.subject == name)
        newer = (event for event in formed if event.data["generation"] > after)
        return next((event for event in newer if nodes in (None, len(event.data["nodes"]))), None)

    size = "" if nodes is None else f" of {nodes} nodes"
    return wait_until(f"{name} trains in a generation{size} after number {after}", probe)


def _step_beyond(client: OakumClient, name: str, step: int) -> int | None:
    present = client.trainer(name).step
    return present if present > step else None


def wait_for_steps(client: OakumClient, name: str) -> None:
    """Wait until progress was reported twice, since the first report may be about steps that were finished long
    before."""
    known = client.trainer(name).step
    for _ in range(2):
        known = wait_until(f"{name} trains on", partial(_step_beyond, client, name, known))


def gated(spec: TrainerSpec, gate: Path, step_s: float) -> TrainerSpec:
    """A digits' classifier whose steps take `step_s` seconds until the file `gate` is there."""
    paced = {"entrypoint": "paced_classifier:task", "arguments": {"gate": str(gate), "step_s": step_s}}
    return spec.model_copy(update=paced)


def train_alone(spec: TrainerSpec, folder: Path) -> dict[str, float]:
    """Train the spec in one process without disturbances, as a reference."""
    file = folder / f"{spec.name}-alone.json"
    file.write_text(spec.model_dump_json(), encoding="utf-8")
    done = run_warm("oakum_worker", "run", spec.entrypoint, "--spec", str(file), "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


def small_spec(name: str, **fields: object) -> TrainerSpec:
    """A trainer of short steps."""
    defaults = {
        "name": name,
        "entrypoint": "small_task:task",
        "workdir": str(TASKS),
        "seed": 3,
        "global_batch": 96,
        "epochs": 20,
        "max_nodes": 4,
        "checkpoint": {"every_s": 5.0},
    }
    return TrainerSpec.model_validate(defaults | fields)
