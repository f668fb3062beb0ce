"""Two services on one PostgreSQL database and one Slurm: either answers, and one goes on where the other ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.db.engine import open_engine, upgrade
from postgres_server import running_postgres
from running_service import small_spec, state_of
from slurm_service import SlurmService, step_of, wait_for_size, wait_for_starts
from slurm_site import SlurmSite, wait_until

pytestmark = pytest.mark.needs("postgres")


class OneOfTwo(SlurmService):
    """A service that shares its data directory and its database with another."""

    def __init__(self, folder: Path, site: SlurmSite, name: str, database: str) -> None:
        super().__init__(folder, site, OAKUM_DATABASE_URL=database, OAKUM_SLURM_POLL_FLOOR_S="1")
        self.log_file = folder / f"{name}.log"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self, *options: str) -> OakumClient:
        """Start the service, and wait until it answers and knows of a controller."""
        self.launch("--port", str(self._port), *options)
        wait_until("it is ready", self.is_ready)
        return self.client()

    def is_ready(self) -> bool:
        """Whether it says that it can do its work."""
        assert self.process is not None
        assert self.process.poll() is None, self.log_file.read_text(encoding="utf-8")
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _client(self) -> OakumClient | None:
        found = json.loads((self.data_dir / "client.json").read_text(encoding="utf-8"))
        return OakumClient(url=self.url, token=found["token"])

    def says(self, words: str) -> bool:
        """Whether its log has these words."""
        return words in self.log_file.read_text(encoding="utf-8")


@pytest.fixture
def two(slurm: SlurmSite, tmp_path: Path) -> Iterator[tuple[OneOfTwo, OneOfTwo]]:
    """Two services, not started yet."""
    with running_postgres() as postgres:
        database = postgres.new_database()
        engine = open_engine(database)
        upgrade(engine)
        engine.dispose()
        services = OneOfTwo(tmp_path, slurm, "one", database), OneOfTwo(tmp_path, slurm, "other", database)
        yield services
        for service in services:
            service.end()


def announced(service: OneOfTwo) -> str:
    """The address at which agents look for the service."""
    url: str = json.loads((service.data_dir / "service.json").read_text(encoding="utf-8"))["url"]
    return url


@pytest.mark.timeout(1200)
def test_one_is_killed_or_hangs_and_the_other_goes_on_with_the_fragment(
    slurm: SlurmSite, two: tuple[OneOfTwo, OneOfTwo]
) -> None:
    began_at = time.time()
    one, other = two
    asked_first, asked_second = one.start(), other.start()
    assert announced(other) == one.url
    # Asked of the one that is not the controller.
    asked_second.submit(small_spec("elastic", epochs=100_000, max_nodes=1, arguments={"step_s": 0.5}))
    wait_for_size(asked_second, "elastic", 1)
    assert asked_second.cluster().snapshot_age_s is not None
    generation = asked_first.trainer("elastic").generation

    one.kill()
    assert "1 fragment adopted, 0 orphans" in wait_for_starts(asked_second, 2)[-1]
    before = step_of(asked_second, "elastic")
    wait_until("it trains on", lambda: step_of(asked_second, "elastic") > before + 3)
    view = asked_second.trainer("elastic")
    assert (view.generation, view.nodes_lost, len(view.nodes)) == (generation, 0, 1)
    assert announced(one) == other.url

    asked_first = one.start()
    assert announced(one) == other.url
    assert other.process is not None
    os.kill(other.process.pid, signal.SIGSTOP)
    assert "1 fragment adopted, 0 orphans" in wait_for_starts(asked_first, 3)[-1]
    os.kill(other.process.pid, signal.SIGCONT)
    wait_until("the other knows", lambda: other.says("another controller has taken over"))
    asked_second.cancel("elastic")
    wait_until("the job is cancelled", lambda: not one.running())
    wait_until("it has ended", lambda: state_of(asked_second, "elastic").ended)
    assert [event.kind for event in asked_first.recent_events(500).events].count("service.started") == 3
    one.interrupt()
    wait_for_starts(asked_second, 4)
    one.assert_one_at_a_time(began_at)
