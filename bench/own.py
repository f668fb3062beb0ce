"""Sets what the service achieves on a real Slurm beside the replay of what it has seen there: `oakum replay own`.

    python bench/own.py                                  # an hour on 8 nodes, as root
    python bench/own.py --minutes 20 --poll-s 10 --json own.json

The benchmark makes a cluster and removes it again (`tools/slurm_cluster`). Foreground jobs of one to three
quarters of the nodes come and go, drawn from the seed; two trainers fill what they leave. Trainers sleep for each
sample in place of computing, because the nodes share the cores of one machine. Slurm's hooks tell the service of
jobs, unless `--poll-s` says how often it looks without them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from oakum_client.cli import output
from oakum_client.cli.replay_own import print_own
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_worker.spec import TrainerSpec

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tests" / "support"), str(_ROOT / "tools")]

from running_service import small_spec  # noqa: E402
from slurm_service import SlurmService, step_of  # noqa: E402
from slurm_site import SlurmSite  # noqa: E402

_TRAINERS = ("first", "second")
_SAMPLE_S = 0.002
"""Seconds that a rank sleeps for each sample: a step of 840 takes 1.7 s on one node and 0.2 s on eight."""
_START_TIMEOUT_S = 120.0
_LOOK_S = 1.0


class ForegroundJobs:
    """Submits foreground jobs of 15 to 120 s, so many that they have about half of the node-time."""

    def __init__(self, site: SlurmSite, seed: int) -> None:
        self._site, self._chance = site, random.Random(seed)
        self._most = max(1, 3 * site.num_nodes // 4)
        self._next_s = time.monotonic()
        self.jobs = 0

    def submit_due(self) -> None:
        """Submit the jobs whose time has come."""
        while self._next_s <= time.monotonic():
            nodes, run_s = self._chance.randint(1, self._most), self._chance.uniform(15.0, 120.0)
            self._site.submit_foreground(nodes=nodes, run_s=run_s)
            self.jobs += 1
            self._next_s += nodes * run_s / self._site.num_nodes * self._chance.uniform(1.0, 3.0)


@contextmanager
def cluster(nodes: int, poll_s: float | None, folder: Path) -> Iterator[tuple[SlurmSite, SlurmService]]:
    """Context that yields a cluster and a service over it; hooks tell the service of jobs unless `poll_s`."""
    made = HookInstallation(folder / "hooks", folder / "spool", folder / "memory")
    lines: tuple[str, ...] = ()
    if poll_s is None:
        made.install("http://127.0.0.1:9", "nobody-listens-yet", owner="slurm")
        lines = (*made.slurm_conf(), *made.slurm_conf_of_nodes(), "PrologFlags=Alloc")
    site = SlurmSite.make(nodes=nodes, schedule_every_s=1, lines=lines)
    try:
        pace = {} if poll_s is None else {"OAKUM_SLURM_POLL_FLOOR_S": str(poll_s)}
        service = SlurmService(folder, site, **pace)
        try:
            client = service.start()
            if poll_s is None:
                made.install(client.address.url, service.hook_token(), owner="slurm")
            yield site, service
        finally:
            site.cancel_all()
            service.end()
    finally:
        site.down()


def fill(site: SlurmSite, service: SlurmService, minutes: float, seed: int) -> int:
    """Let foreground jobs come and go for so long beside two trainers; returns how many there were."""
    client = service.client()
    for name in _TRAINERS:
        client.submit(_spec(name, site.num_nodes))
    site.wait_until("both train", lambda: all(step_of(client, name) for name in _TRAINERS), _START_TIMEOUT_S)
    jobs, ends_at = ForegroundJobs(site, seed), time.monotonic() + 60 * minutes
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs come and go", total=60 * minutes)
        while (left_s := ends_at - time.monotonic()) > 0:
            jobs.submit_due()
            bar.update(task, completed=60 * minutes - left_s)
            time.sleep(_LOOK_S)
    return jobs.jobs


def _spec(name: str, nodes: int) -> TrainerSpec:
    return small_spec(
        name,
        entrypoint="small_task:sleeping_task",
        arguments={"sample_s": _SAMPLE_S},
        epochs=10_000_000,
        global_batch=840,
        max_nodes=nodes,
    )


def replay_own(service: SlurmService, minutes: float) -> dict[str, Any]:
    """The JSON document of `oakum replay own` for the last `minutes`. Raises `RuntimeError` where it fails."""
    address = service.client().address
    command = [sys.executable, "-m", "oakum", "replay", "own", "--since", f"{max(1, round(minutes))}m", "--json"]
    environment = os.environ | {"OAKUM_URL": address.url, "OAKUM_TOKEN": address.token or ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"oakum replay own ended with status {done.returncode}: {done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main(
    minutes: Annotated[float, typer.Option(min=1, help="How long jobs come and go.")] = 60.0,
    nodes: Annotated[int, typer.Option(min=2, max=32, help="Virtual nodes.")] = 8,
    seed: Annotated[int, typer.Option(help="Repeats the same jobs.")] = 1,
    poll_s: Annotated[float | None, typer.Option(min=0.5, help="No hooks: look every so many seconds.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the service's and the fragments' logs here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
) -> None:
    """Compare what the service achieves on a real Slurm with the replay of what it has seen.

    Example: python bench/own.py --minutes 20 --json own.json
    """
    with tempfile.TemporaryDirectory(prefix="bench-own-") as temporary:
        folder = logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # hooks of other accounts lie there
        with cluster(nodes, poll_s, folder.resolve()) as (site, service):
            jobs = fill(site, service, minutes, seed)
            document = replay_own(service, minutes)
    screen = output.console()
    screen.print(f"{minutes:g} minutes of {nodes} nodes, {jobs} foreground jobs")
    print_own(document["own"])
    if json_file is not None:
        json_file.write_text(json.dumps(document | {"foreground_jobs": jobs}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
