"""A private PostgreSQL server on a Unix socket."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from oakum_service.db.engine import open_engine, upgrade
from processes import kill_all
from running_service import processes_of
from waiting import wait_until

_numbers = itertools.count(1)
_SHARED = pytest.StashKey["PostgresServer"]()
ON_POSTGRES = (
    pytest.mark.needs("postgres"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("postgres"),
)
"""Marks of tests that need a server: one worker of pytest-xdist starts it and runs them all."""


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> PostgresServer:
    """A PostgreSQL server: the same for all tests of this process, whatever conftest has this fixture."""
    if _SHARED not in pytestconfig.stash:
        running = running_postgres()
        pytestconfig.stash[_SHARED] = running.__enter__()

        def stop() -> None:
            running.__exit__(None, None, None)

        pytestconfig.add_cleanup(stop)
    return pytestconfig.stash[_SHARED]


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server that runs as long as the context lasts; nothing of it is left behind."""
    # Not under pytest's own folder, which only its user may enter; and a socket's path has to be short.
    folder = Path(tempfile.mkdtemp(prefix="oakum-pg-"))
    server = PostgresServer(folder)
    try:
        server.start()
        yield server
        server.stop()
        assert server.processes() == []
    finally:
        kill_all(server.processes())
        shutil.rmtree(folder)


class PostgresServer:
    """A server of this test's own; PostgreSQL refuses to run as root, so root runs it as `postgres`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._with_schema: str | None = None
        """The database that is copied where one with the newest schema is asked for."""
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    @property
    def programs(self) -> Path:
        """The folder of PostgreSQL's programs."""
        found = shutil.which("initdb")
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        return Path(found).parent if found else installed[-1]

    def start(self) -> None:
        programs = self.programs
        options = ["--auth=trust", "--username=oakum", "--no-sync", "--encoding=UTF8", "--no-locale"]
        self._run([str(programs / "initdb"), "-D", str(self.data), *options])
        self._process = subprocess.Popen(
            [
                *self._as_user,
                str(programs / "postgres"),
                *("-D", str(self.data), "-k", str(self.folder), "-c", "listen_addresses="),
                *("-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60"),
            ],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("wb"),
            start_new_session=True,
        )
        wait_until("PostgreSQL answers", self._answers, timeout_s=60.0)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run([*self._as_user, *command], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.folder), user="oakum", dbname=database, autocommit=True)

    def new_database(self, template: str = "template1") -> str:
        """Create a database, an empty one by default; returns its URL."""
        name = f"oakum{next(_numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql://oakum@/{name}?host={self.folder}"

    def new_database_with_schema(self) -> str:
        """Create a database with the newest schema and nothing in it; returns its URL."""
        if self._with_schema is None:
            engine = open_engine(self.new_database())
            upgrade(engine)
            engine.dispose()  # a database that somebody is connected to is not copied
            self._with_schema = engine.url.database
        return self.new_database(str(self._with_schema))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # a fast shutdown
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)

    def processes(self) -> list[psutil.Process]:
        """Whatever still runs out of the folder."""
        return processes_of(self.folder)
