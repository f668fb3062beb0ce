"""The hooks in a real Slurm: whatever becomes of the service, no node is drained and no event is lost."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_service.schedulers.slurm.hooks.trial_job import try_hooks
from patient_hooks import make_patient
from running_service import RunningService
from slurm_site import SlurmSite

_NODES = 2
_ALL_IDLE = {f"n{number:03}": "idle" for number in range(1, _NODES + 1)}


class HookedSite:
    """A cluster whose slurm.conf has the lines of `oakum hooks install`, and a service that they reach."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.made = HookInstallation(folder / "hooks", folder / "spool", folder / "memory")
        self.service = RunningService(folder)
        self.url = self.service.start().address.url
        self.token = self.service.hook_token()
        self.install_for(self.url, self.token)
        lines = (*self.made.slurm_conf(), *self.made.slurm_conf_of_nodes(), "PrologFlags=Alloc")
        self.slurm = SlurmSite.make(nodes=_NODES, lines=lines)

    def install_for(self, url: str, token: str) -> None:
        """Have the hooks reach a good service, also where it is slow as the machine is busy."""
        assert self.made.install(url, token, owner="slurm") == []
        make_patient(self.made)

    def run_jobs(self, count: int = 2) -> list[str]:
        """Run foreground jobs on all nodes, one after the other, and return when the cluster is idle again."""
        jobs = [self.slurm.submit_foreground(nodes=_NODES, run_s=0.1) for _ in range(count)]
        for job in jobs:
            row = self.slurm.wait_for_sacct(job)
            assert row.state == "COMPLETED"
        self.slurm.wait_until("every node is idle: {}", self.is_idle, now=self.slurm.node_states)
        return jobs

    def is_idle(self) -> bool:
        return self.slurm.node_states() == _ALL_IDLE

    def restarts(self, job: str) -> int:
        """How often Slurm has requeued the job."""
        shown = self.slurm.run("scontrol", "show", "job", "--oneliner", job)
        return int(shown.partition("Restarts=")[2].split()[0])

    def told(self, job: str) -> dict[str, dict[str, str]]:
        """Kind -> hook -> on which nodes it has told."""
        with closing(sqlite3.connect(self.service.data_dir / "oakum.db")) as database:
            rows = database.execute(
                "SELECT kind, nodes, heard, count FROM hook_events WHERE job_id = ?", (int(job),)
            ).fetchall()
        for _, nodes, heard, count in rows:
            assert nodes == f"n[001-{_NODES:03}]"
            assert count == sum(_NODES if where else 1 for where in json.loads(heard).values())
        return {kind: json.loads(heard) for kind, _, heard, _ in rows}

    def wait_until_told(self, jobs: list[str]) -> None:
        """Wait until every hook of these jobs has been counted, each once."""
        everywhere = f"n[001-{_NODES:03}]"
        whole = {
            "allocated": {"prolog_slurmctld": "", "prolog": everywhere},
            "ended": {"epilog_slurmctld": "", "epilog": everywhere},
        }
        for job in jobs:
            self.slurm.wait_until(
                f"every hook of job {job} is counted: {{}}",
                lambda job=job: self.told(job) == whole,  # type: ignore[misc]
                now=lambda job=job: self.told(job),  # type: ignore[misc]
            )
        assert self.made.num_kept() == 0

    def replay(self) -> None:
        """As the timers do: on the head node as SlurmUser, on nodes as root."""
        for user in ("slurm", "root"):
            done = subprocess.run(
                [self.made.folder / "replay"], env={}, user=user, capture_output=True, check=True
            )
            assert (done.stdout, done.stderr) == (b"", b"")

    def end(self) -> None:
        self.slurm.down()
        self.service.end()


@pytest.fixture(scope="module")
def site() -> Iterator[HookedSite]:
    folder = Path(tempfile.mkdtemp(prefix="oakum-hooks-"))
    hooked = HookedSite(folder)
    yield hooked
    hooked.end()
    shutil.rmtree(folder)


def test_every_hook_of_a_job_is_heard_at_once(site: HookedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.wait_until_told(site.run_jobs())
    monkeypatch.setenv("SLURM_CONF", site.slurm.environment["SLURM_CONF"])
    tried = try_hooks(site.made.config_file, SlurmSettings(), "main", 60)
    assert tried.are_run is True, tried


def _dead(site: HookedSite) -> Callable[[], object]:
    assert site.made.install("http://127.0.0.1:9", site.token, owner="slurm") == []
    return lambda: site.install_for(site.url, site.token)


def _hung(site: HookedSite) -> Callable[[], object]:
    assert site.service.process is not None
    process = site.service.process
    assert site.made.install(site.url, site.token, owner="slurm") == []
    process.send_signal(signal.SIGSTOP)

    def go_on() -> None:
        process.send_signal(signal.SIGCONT)
        site.install_for(site.url, site.token)

    return go_on


def _without_spool(site: HookedSite) -> Callable[[], object]:
    """Kill the service and replace the hooks' spool folder by a file, so that SlurmUser cannot create it again."""
    recover = _dead(site)
    shutil.rmtree(site.made.spool)
    site.made.spool.touch()

    def put_back() -> None:
        site.made.spool.unlink()
        recover()

    return put_back


@pytest.mark.parametrize("fail", [_dead, _hung, _without_spool])
def test_a_service_that_does_not_answer_is_nothing_to_slurm_and_loses_nothing(
    site: HookedSite, fail: Callable[[HookedSite], Callable[[], object]]
) -> None:
    # SlurmUser's own place in memory, as /dev/shm is to everybody.
    site.made.fallback.parent.chmod(0o1777)
    recover = fail(site)
    try:
        jobs = site.run_jobs()
        assert [site.restarts(job) for job in jobs] == [0, 0]
        assert site.made.num_kept() > 0
        assert [site.told(job) for job in jobs] == [{}, {}]
    finally:
        recover()
    site.replay()
    site.wait_until_told(jobs)


def test_jobs_start_as_soon_with_a_dead_service_as_with_a_good_one(site: HookedSite) -> None:
    """From srun to its end, which waits for the prologs of the head node and of the node; what one hook takes at
    most has a test of its own."""
    seconds: dict[str, list[float]] = {"good": [], "dead": []}
    for _ in range(3):
        for service, times in seconds.items():
            recover = _dead(site) if service == "dead" else lambda: None
            began_s = time.monotonic()
            site.slurm.run("srun", "--partition=main", "--nodes=1", "--exclusive", "true")
            times.append(time.monotonic() - began_s)
            recover()
            site.slurm.wait_until("every node is idle: {}", site.is_idle, now=site.slurm.node_states)
    assert min(seconds["dead"]) < min(seconds["good"]) + 10.0


def test_a_service_that_hardly_looks_at_slurm_hears_of_a_job_by_its_hooks(site: HookedSite) -> None:
    """It reads the state every ten minutes, and when it is told."""
    folder = Path(tempfile.mkdtemp(prefix="oakum-hooked-"))
    settings = {"SCHEDULER": "slurm", "SLURM_PARTITION": "fill", "SLURM_POLL_FLOOR_S": "600"}
    settings |= {"SLURM_HOOK_FLOOR_S": "0.2"}
    variables = {f"OAKUM_{name}": value for name, value in settings.items()}
    service = RunningService(folder, **variables, **site.slurm.environment)
    try:
        client = service.start()

        def jobs() -> set[str | None]:
            return {node.foreground_job for node in client.nodes().nodes}

        site.slurm.wait_until("the nodes are seen", lambda: jobs() == {None}, now=jobs)
        token = json.loads((service.data_dir / "client.json").read_text("utf-8"))["token"]
        site.install_for(client.address.url, token)
        job = site.slurm.submit_foreground(nodes=_NODES, run_s=200.0)
        site.slurm.wait_until(f"job {job} is seen, not {{}}", lambda: jobs() == {job}, now=jobs)
        site.slurm.run("scancel", job)

        def is_over() -> bool:
            site.replay()  # what a busy service has refused is sent again, as by the timers
            return jobs() == {None}

        site.slurm.wait_until("its end is seen, not {}", is_over, now=jobs)
    finally:
        site.install_for(site.url, site.token)
        service.end()
        shutil.rmtree(folder)
