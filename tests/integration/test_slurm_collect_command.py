"""`oakum collect`, with commands that answer as Slurm does and a service that records the requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from oakum_service.schedulers.port import AGE_HEADER, RequestTime
from oakum_service.schedulers.slurm.reading.pushed_source import decode_state
from oakum_service.schedulers.slurm.reading.state import SlurmState
from waiting import DEADLINE_S, wait_until
from warm_processes import WarmProcess, start_warm

SCONTROL = """#!/bin/sh
case "$*" in
--version) echo slurm 20.11.9;;
*config) echo 'SLURM_VERSION = 20.11.9';;
*nodes) echo 'NodeName=n1 Gres=(null) NodeAddr=n1 State=IDLE Partitions=main';;
esac
"""


@dataclass
class Receiver:
    """A service that takes states."""

    url: str = ""
    status: int = 204
    states: list[SlurmState] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.tokens.append(self.headers["Authorization"])
            told.states.append(decode_state(body, RequestTime(100.0, float(self.headers[AGE_HEADER]))))
            self.send_response(told.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told.url = f"http://127.0.0.1:{server.server_port}"
        yield told
        server.shutdown()


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of Slurm's commands, and a token."""
    for name, script in {"scontrol": SCONTROL, "squeue": "#!/bin/sh\n", "sdiag": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


Start = Callable[..., "Collector"]


@dataclass
class Collector:
    """A collector that was started, and the files of what it prints."""

    process: WarmProcess
    output: Path
    errors: Path

    def finish(self) -> tuple[int, str, str]:
        """Wait for its end; returns its status and what it has printed."""
        status = self.process.wait(timeout=DEADLINE_S)
        return status, self.output.read_text(encoding="utf-8"), self.errors.read_text(encoding="utf-8")


@pytest.fixture
def start(commands: Path) -> Iterator[Start]:
    """A function that starts collectors; none of them outlives the test."""
    started: list[Collector] = []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OAKUM_")}
    environment = kept | {"OAKUM_SLURM_BIN_DIR": str(commands), "OAKUM_SLURM_STATE": "push"}

    def run(url: str, *options: str) -> Collector:
        command = ("oakum", "collect", "--to", url, "--token-file", str(commands / "token"), *options)
        files = commands / f"output-{len(started)}", commands / f"errors-{len(started)}"
        with files[0].open("wb") as output, files[1].open("wb") as errors:
            process = start_warm(*command, environment=environment, output=output, errors=errors)
        started.append(Collector(process, *files))
        return started[-1]

    yield run
    for collector in started:
        collector.process.kill()


def test_once_posts_one_state_and_ends(start: Start, receiver: Receiver) -> None:
    status, output, errors = start(receiver.url, "--once").finish()
    assert (status, output, errors) == (0, "Posted 1 node and 0 jobs of Slurm 20.11.9.\n", "")
    assert [node.name for node in receiver.states[0].nodes] == ["n1"]
    assert receiver.tokens == ["Bearer secret"]


@pytest.mark.parametrize(("by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_goes_on_until_it_is_ended(start: Start, receiver: Receiver, by: signal.Signals, status: int) -> None:
    collector = start(receiver.url, "--every", "1s")
    wait_until("two states", lambda: len(receiver.states) >= 2)
    collector.process.send_signal(by)
    found, _, errors = collector.finish()
    assert (found, errors) == (status, "")


def has_gone(pid: int) -> bool:
    """Whether the process has ended, waited for or not: its new parent may wait for nobody."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_command_that_hangs_does_not_outlive_it(start: Start, commands: Path, receiver: Receiver) -> None:
    (commands / "squeue").write_text(f"#!/bin/sh\necho $$ > {commands}/pid\nexec sleep 300\n")
    collector = start(receiver.url)
    path = commands / "pid"
    wait_until("squeue hangs", lambda: path.exists() and path.read_text().endswith("\n"))
    collector.process.send_signal(signal.SIGTERM)
    collector.finish()
    wait_until("squeue has gone", lambda: has_gone(int(path.read_text())))


def test_a_refusal_ends_it_with_the_reason(start: Start, receiver: Receiver) -> None:
    receiver.status = 403
    status, _, errors = start(receiver.url).finish()
    assert status == 1
    assert "answered with status 403" in errors
    assert "secret" not in errors


def test_what_cannot_be_read_is_told(start: Start, commands: Path, receiver: Receiver) -> None:
    (commands / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: down' >&2; exit 1\n")
    status, _, errors = start(receiver.url, "--once").finish()
    assert status == 1
    assert errors.startswith("oakum: `")
    assert "slurm_load_jobs error: down" in errors


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [("head:8470", (), "http://head:8470"), ("http://head", ("--every", "0.1"), "1s or more")],
)
def test_what_makes_no_sense_is_refused(start: Start, url: str, options: tuple[str, ...], said: str) -> None:
    status, _, errors = start(url, *options).finish()
    assert status == 1
    assert said in errors
