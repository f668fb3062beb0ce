"""Fragments and ranks that are forked: they find what a fresh process finds, and no server's end harms them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from oakum_client.rest.client import OakumClient
from oakum_worker.fragment.forking import node_has_accelerator
from processes import ending_on_sighup, runs
from running_service import (
    EXAMPLES,
    TASKS,
    RunningService,
    command_line,
    small_spec,
    wait_for_generation,
    wait_for_size,
    wait_for_steps,
)
from waiting import wait_until

pytestmark = pytest.mark.skipif(node_has_accelerator(), reason="needs forks, which CUDA does not survive")

SECRETS = {
    "PGPASSWORD": "of the database",
    "HF_TOKEN": "of the admin",
    "OAKUM_NOTICES_MAIL_FROM": "ops@example.org",
}


def endless(**fields: object) -> Any:
    """The spec of a trainer that outlasts any test and hardly ever writes a durable checkpoint."""
    return small_spec("elastic", epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def forked(service: RunningService) -> list[bool]:
    """For each running agent, whether it is a fork."""
    return ["oakum_worker.payload" in command_line(agent) for agent in service.agents().values()]


def server_of(service: RunningService, besides: int = 0) -> psutil.Process:
    """The fork server once it waits for what to fork; not the process with the id `besides`. A launch waits for it
    for 30 s, in which a busy machine may not have loaded it."""

    def probe() -> psutil.Process | None:
        found = service.fork_server()
        return found if found is not None and found.pid != besides and _waits(found) else None

    return wait_until("a fork server stands", probe)


def _waits(process: psutil.Process) -> bool:
    """Whether the process sleeps in `select` or `poll`: a fork server does so only once its imports are done."""
    try:
        function = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return False
    return "select" in function or "poll" in function


_SITECUSTOMIZE = """
import os, sys, threading, time
from pathlib import Path
hindered, again = (Path(__file__).with_name(name) for name in ("hindered", "again"))
if hindered.exists() and "oakum_worker.fragment.fork_server" in sys.orig_argv:
    if again.exists():
        os._exit(1)
    again.touch()
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
"""With a file `hindered` beside it, no fork server can run: something that it imports has started a thread, which
no fork survives. Those that are tried after the first one end before they import anything."""


@dataclass(frozen=True)
class Life:
    """A life of a service that was started afresh, with one trainer on one node."""

    found: dict[str, Any]
    """What the rank has found around it."""
    servers: list[str]
    """For each fork server, what it has that a fork does not survive: threads, connections, GPUs."""
    secrets: list[str]
    """Command lines of the user's processes that have a secret of the service's in their environment."""
    log: str
    """Of the service."""


def live(folder: Path, *, hindered: bool) -> Life:
    """Start a service afresh, have it train one trainer on one node, stop it; returns what was seen meanwhile.

    Where its fork server is `hindered`, the fragment's processes are fresh, too.
    """
    start_up = folder.parent / "start-up"
    start_up.mkdir(exist_ok=True)
    (start_up / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    if hindered:
        (start_up / "hindered").touch()
    variables = {"A_VARIABLE": "of the service", **SECRETS}
    service = RunningService(folder, PYTHONPATH=f"{start_up}:{EXAMPLES}:{TASKS}", **variables)
    service.starts_afresh = True
    notes = folder / "notes"
    notes.mkdir()
    try:
        with ending_on_sighup():
            client = service.start()
        if not hindered:
            server_of(service)
        client.submit(endless(entrypoint="surroundings:task", arguments={"folder": str(notes)}, max_nodes=1))
        wait_for_size(client, "elastic", 1)
        assert forked(service) == [not hindered]
        servers = [p for p in service.processes() if "oakum_worker.fragment.fork_server" in command_line(p)]
        of_users = [*service.agents().values(), *service.ranks().values(), *servers]
        secrets = [
            " ".join(command_line(one)) for one in of_users if {*SECRETS.values()} & {*one.environ().values()}
        ]
        hindrances = [_hindrances(server) for server in servers]
        client.cancel("elastic")
        wait_until("it has left", lambda: not service.ranks())
        service.interrupt()
    finally:
        service.end()
    [note] = notes.iterdir()
    log = service.log_file.read_text(encoding="utf-8")
    return Life(json.loads(note.read_text(encoding="utf-8")), hindrances, secrets, log)


def _hindrances(server: psutil.Process) -> str:
    threads = server.num_threads()
    found = [] if threads == 1 else [f"{threads} threads"]
    found += [str(connection) for connection in server.net_connections(kind="inet")]
    found += [file.path for file in server.open_files() if "nvidia" in file.path]
    return ", ".join(found)


def test_a_forked_rank_finds_around_it_what_a_fresh_one_finds(tmp_path: Path) -> None:
    """Compared are environment, folder, import path, descriptors, signals, niceness, session and threads; no
    secret of the service is among them. The fresh one is that of a machine on which no fork server stands: there
    trainers train all the same.
    """
    forked_life = live(_made(tmp_path / "forked"), hindered=False)
    # Of the service and of the agent: one thread, and nothing open but the line to its owner.
    assert forked_life.servers == ["", ""]
    fresh_life = live(_made(tmp_path / "fresh"), hindered=True)
    assert "2 threads" in fresh_life.log
    assert forked_life.secrets == fresh_life.secrets == []
    fork, fresh = _comparable(forked_life.found), _comparable(fresh_life.found)
    assert fork.pop("blocked") == []  # submitit's process blocks what Ctrl-C sends, as it is in our session
    fresh.pop("blocked")
    assert fork == fresh
    assert fork["environment"]["A_VARIABLE"] == "of the service"
    for found in (fork, fresh):
        assert not {name for name in found["environment"] if name.startswith("OAKUM_")}
        assert not {*SECRETS.values()} & {*found["environment"].values()}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _comparable(found: dict[str, Any]) -> dict[str, Any]:
    """The surroundings without what differs from fragment to fragment and from one run of the service to the
    next."""
    own = ("SUBMITIT_", "PYTEST_")
    environment = {name: value for name, value in found["environment"].items() if not name.startswith(own)}
    config, *numbers = found["arguments"]
    return found | {"environment": environment, "arguments": [Path(config).name, len(numbers)]}


def test_whatever_ends_a_fork_server_trainers_train_on(service: RunningService) -> None:
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    one_that_is_killed_takes_nobody_with_it_and_is_started_anew(service, client)
    a_rank_outlives_that_of_its_agent_which_learns_of_its_end(service, client)
    while_it_is_stopped_launches_go_on(service, client)
    no_process_is_left_when_the_service_is_interrupted(service)


def one_that_is_killed_takes_nobody_with_it_and_is_started_anew(
    service: RunningService, client: OakumClient
) -> None:
    before, ranks = client.trainer("elastic"), service.ranks()
    server = server_of(service)
    server.kill()
    wait_for_steps(client, "elastic")
    assert {pid.pid for pid in service.ranks().values()} == {pid.pid for pid in ranks.values()}
    server_of(service, besides=server.pid)
    service.take_nodes(3, run_s=2.0)
    half = wait_for_generation(client, "elastic", before.generation, nodes=1)
    wait_for_generation(client, "elastic", half.data["generation"], nodes=2)
    assert forked(service) == [True, True]


def a_rank_outlives_that_of_its_agent_which_learns_of_its_end(
    service: RunningService, client: OakumClient
) -> None:
    before = client.trainer("elastic")
    fragment, rank = next(iter(service.ranks().items()))
    for process in service.processes():
        line = command_line(process)
        if "oakum_worker.fragment.fork_server" in line and Path(line[-1]).name == fragment:
            process.terminate()  # as the scheduler signals all processes of a job that has to leave
            wait_for_steps(client, "elastic")
            assert process.status() != psutil.STATUS_ZOMBIE
            process.kill()
    wait_for_steps(client, "elastic")
    assert rank.is_running()
    rank.kill()
    wait_for_generation(client, "elastic", before.generation, nodes=2)
    warnings = [e.message for e in client.recent_events(500).events if e.kind == "trainer.warning"]
    assert [text for text in warnings if re.search(r"rank \d was killed \(SIGKILL\) after step", text)]
    assert "started afresh" in "".join(client.logs("elastic").lines)


def while_it_is_stopped_launches_go_on(service: RunningService, client: OakumClient) -> None:
    """The stopped server does not answer: the fragment is started as a separate process, and so is another
    server."""
    server = server_of(service)
    server.suspend()
    client.submit(small_spec("another", epochs=100_000, max_nodes=1))
    wait_for_size(client, "another", 1)
    assert sorted(forked(service)) == [False, True, True]
    assert service.log_file.read_text(encoding="utf-8").count("process of its own") == 1
    assert not runs(server.pid)


def no_process_is_left_when_the_service_is_interrupted(service: RunningService) -> None:
    service.interrupt()
    wait_until("all have ended", lambda: not service.processes(), now=lambda: service.processes())
