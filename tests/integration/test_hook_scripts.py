"""The hook scripts as Slurm runs them, against every failure of a service and a disk: exit status 0, in time,
and no event lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bad_services import BAD_SERVICES, free_port
from hook_scripts import HOSTILE, JOBS, TOKEN, Hooks, run_alone
from hook_scripts import hooks as hooks
from hook_scripts import job as job
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_service.schedulers.slurm.hooks.report import Hook
from running_service import RunningService
from waiting import wait_until
from warm_processes import run_warm


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningService, str, str]]:
    """A service for all tests, its address and a token for hooks; each test tells of jobs of its own."""
    service = RunningService(tmp_path_factory.mktemp("service"))
    client = service.start("--dry-run")
    yield service, client.address.url, hook_token(service)
    service.end()


def hook_token(service: RunningService) -> str:
    environment = os.environ | {"OAKUM_DATA_DIR": str(service.data_dir)}
    words = ("token", "create", "slurm-hooks", "--role", "hook")
    done = run_warm("oakum", *words, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def counts(service: RunningService, job: int) -> dict[str, int]:
    """Kind -> how many hooks have told of the job."""
    with closing(sqlite3.connect(service.data_dir / "oakum.db")) as database:
        rows = database.execute("SELECT kind, count FROM hook_events WHERE job_id = ?", (job,)).fetchall()
    return dict(rows)


@pytest.mark.parametrize("bad", BAD_SERVICES)
def test_every_hook_leaves_with_0_and_its_event_is_counted_once_later(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int, bad: str
) -> None:
    service, url, token = running
    with BAD_SERVICES[bad]() as address:  # type: ignore[attr-defined]
        hooks.point_at(address)
        for hook in Hook:
            hooks.run(hook, job)
        assert len(hooks.kept()) == 4
    hooks.point_at(url, token)
    hooks.replay()
    assert counts(service, job) == {"allocated": 2, "ended": 2}
    assert hooks.kept() == []
    hooks.replay()
    assert counts(service, job) == {"allocated": 2, "ended": 2}


def test_a_good_service_is_told_at_once(running: tuple[RunningService, str, str], hooks: Hooks, job: int) -> None:
    service, url, token = running
    hooks.point_at(url, token)
    for hook in Hook:
        hooks.run(hook, job)
    hooks.run(Hook.PROLOG, job, SLURMD_NODENAME="n2")
    assert counts(service, job) == {"allocated": 3, "ended": 2}
    assert hooks.kept() == []


def test_the_next_hook_that_is_heard_sends_what_was_kept(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    for number in range(5):
        hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{number}")
    assert len(hooks.kept()) == 5
    hooks.point_at(url, token)
    hooks.run(Hook.EPILOG, job)
    assert counts(service, job) == {"allocated": 5, "ended": 1}
    assert hooks.kept() == []


def test_a_hook_that_was_kept_waiting_spares_the_next_ones_that(hooks: Hooks, job: int) -> None:
    accepted = []
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        hooks.point_at(f"http://127.0.0.1:{listening.getsockname()[1]}")
        for number in range(4):
            hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{number}")
        listening.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                accepted.append(listening.accept()[0])
    for connection in accepted:
        connection.close()
    assert (len(accepted), len(hooks.kept())) == (1, 4)


def test_a_rest_of_a_clock_that_was_set_back_is_none(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    hooks.point_at(url, token)
    (hooks.made.spool / "ctld" / ".rest").write_text(f"{int(time.time()) + 86400}\n", encoding="utf-8")
    hooks.run(Hook.PROLOG_SLURMCTLD, job)
    assert counts(service, job) == {"allocated": 1}


def test_a_spool_that_is_missing_is_made(running: tuple[RunningService, str, str], hooks: Hooks, job: int) -> None:
    service, url, token = running
    shutil.rmtree(hooks.made.spool)
    hooks.run(Hook.PROLOG_SLURMCTLD, job)
    assert len(list((hooks.made.spool / "ctld").glob("*.json"))) == 1
    hooks.point_at(url, token)
    hooks.replay()
    assert counts(service, job) == {"allocated": 1}


def test_with_a_file_in_the_spools_place_memory_keeps_the_event(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    shutil.rmtree(hooks.made.spool)
    hooks.made.spool.touch()
    hooks.run(Hook.PROLOG, job)
    assert len(hooks.kept()) == 1
    hooks.made.spool.unlink()
    hooks.point_at(url, token)
    hooks.run(Hook.EPILOG, job)
    assert (counts(service, job), hooks.kept()) == ({"allocated": 1, "ended": 1}, [])


@pytest.fixture
def small_disk(hooks: Hooks) -> Iterator[Path]:
    """The spool's folder for nodes, on a disk of 16 KiB."""
    folder = hooks.made.spool / "node"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing(
    running: tuple[RunningService, str, str], hooks: Hooks, small_disk: Path, job: int
) -> None:
    service, url, token = running
    with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x")
    for number in range(3):
        hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{number}")
    assert [file.name for file in small_disk.iterdir()] == ["others"]
    assert len(hooks.kept()) == 3
    hooks.point_at(url, token)
    hooks.replay()
    assert (counts(service, job), hooks.kept()) == ({"allocated": 3}, [])


def test_a_disk_that_has_become_read_only_loses_nothing(
    running: tuple[RunningService, str, str], hooks: Hooks, small_disk: Path, job: int
) -> None:
    """What it holds can be sent and not removed: it is sent once for each replay, and counted once."""
    service, url, token = running
    hooks.run(Hook.PROLOG, job)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    hooks.run(Hook.EPILOG, job)
    assert len(hooks.kept()) == 2
    config = hooks.made.config_file.read_text("utf-8").replace(TOKEN, token)
    hooks.made.config_file.write_text(re.sub(r"http://[^/]+", url, config), encoding="utf-8")
    hooks.replay()
    hooks.run(Hook.EPILOG, job, SLURMD_NODENAME="n2")
    hooks.replay()
    assert counts(service, job) == {"allocated": 1, "ended": 2}


def test_a_token_that_cannot_be_read_and_a_spool_that_cannot_be_written_are_nothing_to_slurm(
    running: tuple[RunningService, str, str], job: int
) -> None:
    """As a user who may read nothing of ours; memory keeps the event, for that user."""
    service, url, token = running
    folder = Path(tempfile.mkdtemp(prefix="oakum-test-"))
    try:
        folder.chmod(0o755)
        hooks = Hooks(HookInstallation(folder / "hooks", folder / "spool", folder / "shm" / "hooks"))
        hooks.point_at(url, token)
        (folder / "shm").mkdir()
        (folder / "shm").chmod(0o1777)
        environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_RESTART_COUNT": "0"}
        run_alone(hooks.made.folder / Hook.PROLOG_SLURMCTLD, environment, user="nobody")
        assert counts(service, job) == {}
        assert len(hooks.kept()) == 1
        # Root does not trust what anybody could have put there.
        hooks.replay()
        assert len(hooks.kept()) == 1
        shutil.chown(hooks.made.config_file, "nobody")
        run_alone(hooks.made.folder / "replay", {}, user="nobody")
        assert (counts(service, job), hooks.kept()) == ({"allocated": 1}, [])
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "variable",
    [
        *("SLURM_JOB_NODELIST", "SLURM_JOB_UID", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME"),
        *("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_JOB_RESTART_COUNT"),
    ],
)
def test_no_value_of_a_variable_breaks_the_event(
    running: tuple[RunningService, str, str], hooks: Hooks, variable: str
) -> None:
    """Kept, sent later, and understood: what is no such value is left out."""
    service, url, token = running
    jobs = [next(JOBS) for _ in HOSTILE]
    for number, value in zip(jobs, HOSTILE, strict=True):
        hooks.run(Hook.PROLOG_SLURMCTLD, number, **{variable: value})
    for name in hooks.kept():
        json.loads((hooks.made.spool / "ctld" / name).read_text("utf-8"))
    hooks.point_at(url, token)
    hooks.replay()
    told = [number for number in jobs if counts(service, number) == {"allocated": 1}]
    # A name of 100,000 letters is made of letters that names have; the service refuses it by its length.
    too_long = variable in ("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION")
    assert len(told) >= len(HOSTILE) - 1 - too_long
    assert hooks.kept() == []
    assert not Path("/hit").exists()


def test_a_node_without_a_name_from_slurm_has_its_hosts(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    hooks.point_at(url, token)
    hooks.run(Hook.PROLOG, job, SLURMD_NODENAME="")
    assert counts(service, job) == {"allocated": 1}


def test_hooks_and_replays_at_the_same_time_lose_nothing_and_count_nothing_twice(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{n}"), range(40)))
        assert len(hooks.kept()) == 40
        hooks.point_at(url, token)
        replays = [threads.submit(hooks.replay) for _ in range(3)]
        list(threads.map(lambda n: hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{n}"), range(40, 50)))
        for replay in replays:
            replay.result(60.0)
    hooks.replay()
    assert (counts(service, job), hooks.kept()) == ({"allocated": 50}, [])


def test_an_event_that_is_refused_does_not_hold_the_others_up(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    folder = hooks.made.spool / "node"
    for name, text in (("0.json", '{"hook":"none"}\n'), ("1.json", "half an ev"), ("2.json", '{"job_id":}\n')):
        (folder / name).write_text(text, encoding="utf-8")
    hooks.run(Hook.PROLOG, job)
    hooks.point_at(url, token)
    hooks.replay()
    assert (counts(service, job), hooks.kept()) == ({"allocated": 1}, [])
    assert (folder / "refused").exists()


def test_a_service_that_hangs_answers_late_and_has_every_event_once(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    """The request that was waited for in vain is taken in the end; its event comes from the spool, too."""
    service, url, token = running
    assert hooks.made.install(url, token, owner="root") == []  # of the hooks' own patience
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    try:
        hooks.run(Hook.PROLOG_SLURMCTLD, job)
        hooks.run(Hook.EPILOG_SLURMCTLD, job)
        assert len(hooks.kept()) == 2
    finally:
        service.process.send_signal(signal.SIGCONT)
    wait_until("the late answer", lambda: counts(service, job) == {"allocated": 1}, 20.0)
    hooks.replay()
    assert (counts(service, job), hooks.kept()) == ({"allocated": 1, "ended": 1}, [])


def test_a_service_that_is_killed_and_started_again_has_every_event_once(tmp_path: Path, hooks: Hooks) -> None:
    (tmp_path / "service").mkdir()
    service = RunningService(tmp_path / "service")
    port = str(free_port())
    try:
        client = service.start("--port", port, "--dry-run")
        hooks.point_at(client.address.url, hook_token(service))
        hooks.run(Hook.PROLOG_SLURMCTLD, 1)
        service.kill()
        hooks.run(Hook.EPILOG_SLURMCTLD, 1)
        hooks.run(Hook.PROLOG_SLURMCTLD, 2)
        service.start("--port", port, "--dry-run")
        hooks.run(Hook.EPILOG_SLURMCTLD, 2)
        assert [counts(service, job) for job in (1, 2)] == [{"allocated": 1, "ended": 1}] * 2
        assert hooks.kept() == []
    finally:
        service.end()
