"""Fragments and ranks that are forked: they find what a fresh process finds, and no server's end harms them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from processes import ending_on_sighup, runs
from running_service import (
    TASKS,
    RunningService,
    command_line,
    small_spec,
    wait_for_generation,
    wait_for_size,
    wait_for_steps,
)
from waiting import DEADLINE_S, wait_until

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
    """The fork server from which fragments can be forked; not the process with the id `besides`."""

    def probe() -> psutil.Process | None:
        found = service.fork_server()
        return found if found is not None and found.pid != besides else None

    return wait_until("a fork server stands", probe)


def surroundings(service: RunningService, folder: Path) -> dict[str, Any]:
    """What a rank finds around it in a life of the service."""
    folder.mkdir()
    service.starts_afresh = True
    with ending_on_sighup():
        client = service.start()
    client.submit(endless(entrypoint="surroundings:task", arguments={"folder": str(folder)}, max_nodes=1))
    wait_for_size(client, "elastic", 1)
    of_users = [*service.agents().values(), *service.ranks().values()]
    of_users += [found for found in service.processes() if "fork_server" in command_line(found)]
    assert not [command_line(one) for one in of_users if {*SECRETS.values()} & {*one.environ().values()}]
    client.cancel("elastic")
    wait_until("it has left", lambda: not service.ranks())
    service.interrupt()
    [note] = folder.iterdir()
    found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    return found


def test_a_forked_rank_finds_around_it_what_a_fresh_one_finds(service: RunningService, tmp_path: Path) -> None:
    """Environment, folder, import path, descriptors, signals, niceness, session, threads; but no secret of the
    service's."""
    service.configure(OAKUM_LOCAL_FORK_SERVER="true", A_VARIABLE="of the second life", **SECRETS)
    fork = surroundings(service, tmp_path / "fork")
    service.configure(OAKUM_LOCAL_FORK_SERVER="false")
    fresh = surroundings(service, tmp_path / "fresh")
    assert fork.pop("blocked") == []  # submitit's process blocks what Ctrl-C sends, as it is in our session
    fresh.pop("blocked")
    assert _comparable(fork) == _comparable(fresh)
    assert fork["environment"]["A_VARIABLE"] == "of the second life"
    for found in (fork, fresh):
        assert not {name for name in found["environment"] if name.startswith("OAKUM_")}
        assert not {*SECRETS.values()} & {*found["environment"].values()}


def _comparable(found: dict[str, Any]) -> dict[str, Any]:
    """The surroundings without what differs from fragment to fragment and from one run of the service to the
    next."""
    own = ("SUBMITIT_",)
    environment = {name: value for name, value in found["environment"].items() if not name.startswith(own)}
    config, *numbers = found["arguments"]
    return found | {"environment": environment, "arguments": [Path(config).name, len(numbers)]}


def test_a_fork_server_has_one_thread_and_nothing_open_but_the_line_to_its_owner(service: RunningService) -> None:
    service.starts_afresh = True
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    assert forked(service) == [True, True]
    servers = [p for p in service.processes() if "oakum_worker.fragment.fork_server" in command_line(p)]
    assert len(servers) == 3
    for server in servers:
        assert server.num_threads() == 1
        assert server.net_connections(kind="inet") == []
        assert "nvidia" not in "".join(map(str, server.open_files()))


def test_a_fork_server_that_is_killed_takes_nobody_with_it_and_is_started_anew(service: RunningService) -> None:
    client = service.start()
    client.submit(endless(max_nodes=4))
    before = wait_for_size(client, "elastic", 4)
    ranks = service.ranks()
    server = server_of(service)
    server.kill()
    wait_for_steps(client, "elastic")
    assert {pid.pid for pid in service.ranks().values()} == {pid.pid for pid in ranks.values()}
    server_of(service, besides=server.pid)
    service.take_nodes(2, run_s=2.0)
    half = wait_for_generation(client, "elastic", before.generation, nodes=2)
    wait_for_generation(client, "elastic", half.data["generation"], nodes=4)
    assert forked(service) == [True] * 4


def test_launches_go_on_while_the_fork_server_is_stopped(service: RunningService) -> None:
    """The stopped server does not answer: the fragment is started as a separate process, and so is another
    server."""
    client = service.start()
    server = server_of(service)
    wait_until("the server is ready", lambda: "select" in _waits_in(server) or "epoll" in _waits_in(server))
    server.suspend()
    client.submit(endless(max_nodes=1))
    wait_for_size(client, "elastic", 1)
    assert forked(service) == [False]
    assert service.log_file.read_text(encoding="utf-8").count("process of its own") == 1
    assert not runs(server.pid)


def _waits_in(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")


def test_a_rank_outlives_the_fork_server_of_its_agent_which_learns_of_its_end(service: RunningService) -> None:
    client = service.start()
    client.submit(endless(max_nodes=1))
    before = wait_for_size(client, "elastic", 1)
    [(fragment, rank)] = service.ranks().items()
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
    wait_for_generation(client, "elastic", before.generation)
    warnings = [e.message for e in client.recent_events(500).events if e.kind == "trainer.warning"]
    assert [text for text in warnings if "rank 0 was killed (SIGKILL) after step" in text]
    assert "started afresh" in "".join(client.logs("elastic").lines)


def test_a_machine_on_which_no_fork_server_stands_trains_all_the_same(
    service: RunningService, tmp_path: Path
) -> None:
    """Here no fork server can run, because something that it imports has started a thread, which no fork
    survives."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if 'oakum_worker.fragment.fork_server' in sys.orig_argv:\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
        encoding="utf-8",
    )
    service.configure(PYTHONPATH=f"{tmp_path}:{TASKS}")
    service.starts_afresh = True
    client = service.start()
    client.submit(endless(max_nodes=1))
    wait_for_size(client, "elastic", 1)
    assert forked(service) == [False]
    assert "2 threads" in service.log_file.read_text(encoding="utf-8")


def test_no_process_is_left_when_the_service_is_interrupted(service: RunningService) -> None:
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    service.interrupt()
    wait_until("all have ended", lambda: not service.processes(), now=lambda: service.processes())


def test_a_killed_service_leaves_ranks_that_train_and_no_fork_server(service: RunningService) -> None:
    """The next run of the service finds the ranks, and starts a fork server of its own."""
    client = service.start()
    client.submit(endless(max_nodes=2))
    before = wait_for_size(client, "elastic", 2)
    server, ranks = server_of(service), {rank.pid for rank in service.ranks().values()}
    service.kill()
    assert not runs(server.pid, patience_s=DEADLINE_S)
    client = service.start()
    assert {rank.pid for rank in service.ranks().values()} == ranks
    wait_for_steps(client, "elastic")
    assert client.trainer("elastic").generation == before.generation
    assert server_of(service).pid != server.pid
