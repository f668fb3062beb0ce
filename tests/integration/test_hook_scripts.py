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
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_service.schedulers.slurm.hooks.report import Hook
from patient_hooks import make_patient
from running_service import RunningService
from waiting import wait_until
from warm_processes import run_warm

LIMIT_S = 10.0
"""Far above the 2 seconds that a hook takes, and far below for ever: this machine may be busy."""
TOKEN = "oakum-none"


@dataclass
class Hooks:
    """An installation of the hooks, whose scripts can be run as Slurm runs them."""

    made: HookInstallation
    data_dir: Path | None = None

    def run(self, hook: Hook, job: int = 7, **variables: str) -> float:
        """Run one script with Slurm's variables and nothing else in the environment; returns its seconds."""
        environment = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "n[1-4]",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_PARTITION": "batch",
            "SLURM_JOB_START_TIME": str(int(time.time())),
            "SLURM_JOB_END_TIME": str(int(time.time()) + 3600),
        }
        if hook.on_nodes:
            environment |= {"SLURMD_NODENAME": "n1", "SLURM_NODELIST": environment.pop("SLURM_JOB_NODELIST")}
        else:
            environment |= {"SLURM_JOB_RESTART_COUNT": "0", "SLURM_CLUSTER_NAME": "test"}
        return run_alone(self.made.folder / hook, environment | variables)

    def replay(self) -> None:
        run_alone(self.made.folder / "replay", {}, limit_s=60.0)

    def kept(self) -> list[str]:
        """What the spool holds, the oldest first."""
        folders = [self.made.spool / place for place in ("ctld", "node")]
        folders += [Path(f"{self.made.fallback}-{place}") for place in ("ctld", "node")]
        return [file.name for folder in folders for file in sorted(folder.glob("*.json"))]

    def point_at(self, url: str, token: str = TOKEN) -> None:
        """Install again, for another service: one that answers has a token, and time to answer."""
        assert self.made.install(url, token, owner="root") == []
        if token != TOKEN:
            make_patient(self.made)

    def change(self, hook: Hook, pattern: str, replacement: str) -> None:
        """Change a line of a script."""
        file = self.made.folder / hook
        text, num_changed = re.subn(pattern, replacement, file.read_text("utf-8"), flags=re.MULTILINE)
        assert num_changed == 1
        file.write_text(text, encoding="utf-8")


def run_alone(script: Path, environment: dict[str, str], limit_s: float = LIMIT_S, **how: str) -> float:
    began_s = time.monotonic()
    done = subprocess.run([script], env=environment, capture_output=True, timeout=60.0, cwd="/", **how)  # type: ignore[call-overload]
    took_s = time.monotonic() - began_s
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert took_s < limit_s
    return took_s


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    made = HookInstallation(tmp_path / "hooks", tmp_path / "spool", tmp_path / "shm")
    hooks = Hooks(made)
    hooks.point_at(f"http://127.0.0.1:{free_port()}")
    return hooks


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


_JOBS = iter(range(100, 100_000))


@pytest.fixture
def job() -> int:
    """A job that no other test tells of."""
    return next(_JOBS)


def counts(service: RunningService, job: int) -> dict[str, int]:
    """Kind -> how many hooks have told of the job."""
    with closing(sqlite3.connect(service.data_dir / "oakum.db")) as database:
        rows = database.execute("SELECT kind, count FROM hook_events WHERE job_id = ?", (job,)).fetchall()
    return dict(rows)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    yield f"http://127.0.0.1:{free_port()}"


def answering(answer: bytes | None) -> Callable[[], object]:
    """A server that gives this answer to every request, or none at all, as long as the test lasts."""

    @contextmanager
    def serve() -> Iterator[str]:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            over = threading.Event()

            def accept() -> None:
                taken: list[socket.socket] = []
                while not over.is_set():
                    try:
                        connection, _ = listening.accept()
                    except OSError:
                        break
                    taken.append(connection)
                    if answer is not None:
                        connection.recv(65536)
                        connection.sendall(answer)
                        connection.close()
                for connection in taken:
                    connection.close()

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)

    return serve


@contextmanager
def black_hole() -> Iterator[str]:
    """A socket that is never accepted from: the kernel takes the connection, and nobody answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


BAD_SERVICES: dict[str, Callable[[], object]] = {
    "no service": nobody,
    "a black hole": black_hole,
    "one that takes the request and never answers": answering(None),
    "one that answers 500": answering(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"),
    "one that answers 401": answering(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"),
    "one that answers 200": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    "one that hangs up": answering(b""),
    "one that speaks no HTTP": answering(b"220 mail.example.org ESMTP\r\n"),
    "one whose answer stops in the middle": answering(b"HTTP/1.1 20"),
}


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


def test_without_curl_the_event_is_kept(hooks: Hooks, job: int) -> None:
    hooks.change(Hook.PROLOG, "^CURL=.*", "CURL='/nonexistent/curl'")
    hooks.run(Hook.PROLOG, job)
    assert len(hooks.kept()) == 1


@pytest.mark.parametrize("program", ["TIMEOUT", "DATE", "MV", "RM", "MKDIR", "LOGGER"])
def test_without_a_program_the_hook_still_leaves_with_0(hooks: Hooks, job: int, program: str) -> None:
    for hook in (Hook.PROLOG, Hook.EPILOG_SLURMCTLD):
        hooks.change(hook, f"^{program}=.*", f"{program}='/nonexistent/program'")
        hooks.run(hook, job)
    assert len(hooks.kept()) == (0 if program == "MV" else 2)


def test_a_curl_that_never_ends_is_ended(hooks: Hooks, tmp_path: Path, job: int) -> None:
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\ntrap '' TERM\nexec /bin/sleep 60\n", encoding="utf-8")
    curl.chmod(0o755)
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    hooks.run(Hook.PROLOG, job)
    assert len(hooks.kept()) == 1


def test_curl_is_given_its_limits_and_the_token_only_in_a_file(hooks: Hooks, tmp_path: Path, job: int) -> None:
    curl, asked = tmp_path / "curl", tmp_path / "asked"
    curl.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>{asked}\nprintf 204\n", encoding="utf-8")
    curl.chmod(0o755)
    hooks.run(Hook.PROLOG, job)
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    hooks.run(Hook.PROLOG, job, SLURMD_NODENAME="n2")
    first, second = asked.read_text("utf-8").split("-q\n")[1:]
    for arguments, limit in ((first, "1.2"), (second, "0.4")):
        assert f"--max-time\n{limit}\n" in arguments
        assert f"--connect-timeout\n{limit}\n" in arguments
        assert f"--config\n{hooks.made.config_file}\n" in arguments
        assert TOKEN not in arguments
    assert hooks.made.config_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("hook", Hook)
def test_the_script_itself_allows_for_no_more_than_2_seconds(hooks: Hooks, hook: Hook) -> None:
    text = (hooks.made.folder / hook).read_text("utf-8")
    guards_s = [float(value) for value in re.findall(r"^(?:KEPT_)?GUARD_S=(.*)$", text, re.MULTILINE)]
    limits_s = [float(value) for value in re.findall(r"^(?:KEPT_)?LIMIT_S=(.*)$", text, re.MULTILINE)]
    assert (len(guards_s), len(limits_s)) == (2, 2)
    assert sum(guards_s) <= 1.8
    assert all(limit_s < guard_s for limit_s, guard_s in zip(limits_s, guards_s, strict=True))


def test_a_hook_sends_what_is_kept_in_one_place_and_leaves_the_other_to_the_next(
    hooks: Hooks, tmp_path: Path, job: int
) -> None:
    """The 2 seconds have room for two requests that take their whole limit."""
    curl, asked = tmp_path / "curl", tmp_path / "asked"
    curl.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>{asked}\nprintf 204\n", encoding="utf-8")
    curl.chmod(0o755)
    memory = Path(f"{hooks.made.fallback}-node")
    memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (memory, hooks.made.spool / "node"):
        (folder / "100000.json").write_text("{}\n", encoding="utf-8")
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    left = []
    for _ in range(2):
        hooks.run(Hook.PROLOG, job)
        left.append((asked.read_text("utf-8").count("-q\n"), len(hooks.kept())))
    assert left == [(2, 1), (4, 0)]


HOSTILE = (
    '"',
    "'",
    "\\",
    "$(touch hit)",
    "`touch hit`",
    "a b",
    "a\nb",
    "x" * 100_000,
    "../../hit",
    "-n",
    "*",
    "é",
    "}],",
)


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
    jobs = [next(_JOBS) for _ in HOSTILE]
    for job, value in zip(jobs, HOSTILE, strict=True):
        hooks.run(Hook.PROLOG_SLURMCTLD, job, **{variable: value})
    for name in hooks.kept():
        json.loads((hooks.made.spool / "ctld" / name).read_text("utf-8"))
    hooks.point_at(url, token)
    hooks.replay()
    told = [job for job in jobs if counts(service, job) == {"allocated": 1}]
    # A name of 100,000 letters is made of letters that names have; the service refuses it by its length.
    too_long = variable in ("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION")
    assert len(told) >= len(HOSTILE) - 1 - too_long
    assert hooks.kept() == []
    assert not Path("/hit").exists()


def test_a_job_id_or_a_node_that_is_none_is_no_event(hooks: Hooks) -> None:
    for value in HOSTILE:
        hooks.run(Hook.PROLOG_SLURMCTLD, SLURM_JOB_ID=value)
    for value in ('"', "../n1", "a\nb", "$(touch hit)"):
        hooks.run(Hook.PROLOG, SLURMD_NODENAME=value)
    assert hooks.kept() == []


def test_a_node_without_a_name_from_slurm_has_its_hosts(
    running: tuple[RunningService, str, str], hooks: Hooks, job: int
) -> None:
    service, url, token = running
    hooks.point_at(url, token)
    hooks.run(Hook.PROLOG, job, SLURMD_NODENAME="")
    assert counts(service, job) == {"allocated": 1}


def test_a_folder_that_somebody_else_put_in_memory_is_not_used(hooks: Hooks, tmp_path: Path, job: int) -> None:
    shutil.rmtree(hooks.made.spool)
    hooks.made.spool.touch()
    (tmp_path / "theirs").mkdir()
    Path(f"{hooks.made.fallback}-node").symlink_to(tmp_path / "theirs")
    hooks.run(Hook.PROLOG, job)
    assert list((tmp_path / "theirs").iterdir()) == []


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


def test_the_spool_keeps_the_newest(hooks: Hooks, job: int) -> None:
    hooks.change(Hook.PROLOG, "^MOST_KEPT=.*", "MOST_KEPT=4")
    for number in range(4):
        (hooks.made.spool / "node" / f"10000{number}.json").write_text("{}\n", encoding="utf-8")
    for number in range(6):
        hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{number}")
    assert len(hooks.kept()) <= 4
    assert not any(name.startswith("1000") for name in hooks.kept())


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


@pytest.mark.parametrize("name", [*Hook, "replay"])
def test_the_scripts_are_plain_sh(hooks: Hooks, name: str) -> None:
    script = hooks.made.folder / name
    assert re.findall(r"@[A-Z_]+@", script.read_text("utf-8")) == []
    for shell in ("dash", "bash --posix", "busybox sh"):
        if shutil.which(shell.split()[0]):
            subprocess.run([*shell.split(), "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-s", "sh", script], capture_output=True, text=True, check=False)
        assert done.stdout == ""
