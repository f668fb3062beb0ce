"""Measures, on the embedded cluster, how long foreground jobs wait for nodes and how long the trainer stalls.

    python bench/give_back.py [--rounds 20] [--nodes 4] [--json FILE]

Starts a service and trains the autoencoder example on every node. Foreground jobs of random size take nodes, one
job after the other, each as soon as the trainer has all its nodes again.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.progress import track
from rich.table import Table

from oakum_client.cli import output

SPEC = Path(__file__).resolve().parent.parent / "examples" / "digits-autoencoder.yaml"


def wait_for(probe: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Poll until the probe returns something true."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if found := probe():
            return found
        time.sleep(0.05)
    raise TimeoutError("the service did not get there in time; see its log")


def have_started(client: httpx.Client, jobs: int) -> bool:
    """Whether this many foreground jobs have started."""
    return bool(client.get("/v1/cluster").json()["foreground_jobs_started"] >= jobs)


def start(data_dir: Path, nodes: int) -> tuple[subprocess.Popen[bytes], httpx.Client]:
    """Start a service without generated foreground jobs; returns it with a client."""
    command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(data_dir), "--port", "0"]
    command += ["--load", "0", "--nodes", str(nodes), "--submit", str(SPEC)]
    data_dir.mkdir()
    with (data_dir / "service.log").open("wb") as log:
        service = subprocess.Popen([*command, "--verbose"], stdout=log, stderr=log)

    def connect() -> httpx.Client | None:
        try:
            found = json.loads((data_dir / "client.json").read_text(encoding="utf-8"))
            client = httpx.Client(base_url=found["url"], headers={"Authorization": f"Bearer {found['token']}"})
            client.get("/v1/cluster").raise_for_status()
        except (OSError, ValueError, httpx.HTTPError):
            return None
        return client

    client: httpx.Client = wait_for(connect)
    return service, client


def measure(client: httpx.Client, nodes: int, rounds: int) -> dict[str, list[float]]:
    """Delays of foreground jobs and stalls of the trainer, in seconds."""
    rng = random.Random(0)
    delays: list[float] = []

    def trainer() -> dict[str, Any]:
        document: dict[str, Any] = client.get("/v1/trainers/digits-autoencoder").json()
        return document

    for done in track(range(rounds), description="taking nodes"):
        wait_for(lambda: len(trainer()["nodes"]) == nodes)
        taken = rng.randint(1, nodes)
        client.post("/v1/cluster/foreground-jobs", json={"nodes": taken, "run_s": 1.0}).raise_for_status()
        wait_for(partial(have_started, client, done + 1))
        delays.append(client.get("/v1/cluster").json()["foreground_delay_last_s"])
    events = client.get("/v1/events/recent", params={"limit": 1000}).json()["events"]
    stalls = [e["data"]["stall_s"] for e in events if e["kind"] == "generation.formed" and e["data"]["stall_s"]]
    return {"foreground_delay_s": delays, "stall_s": stalls}


def main(
    rounds: Annotated[int, typer.Option(help="Foreground jobs to start.")] = 20,
    nodes: Annotated[int, typer.Option(help="Nodes of the embedded cluster.")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        service, client = start(Path(folder) / "data", nodes)
        try:
            figures = measure(client, nodes, rounds)
        except TimeoutError:
            print((Path(folder) / "data" / "service.log").read_text(encoding="utf-8")[-8000:], file=sys.stderr)
            raise
        finally:
            service.terminate()
            service.wait(timeout=10.0)
    table = Table("", "n", "median, s", "p90, s", "max, s")
    for name, values in figures.items():
        ordered = sorted(values)
        table.add_row(
            name,
            str(len(ordered)),
            f"{statistics.median(ordered):.3f}",
            f"{ordered[int(0.9 * (len(ordered) - 1))]:.3f}",
            f"{ordered[-1]:.3f}",
        )
    output.console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
