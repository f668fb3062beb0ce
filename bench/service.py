"""How fast the service takes in agents' reports: many agents, from another process, over loopback.

    python bench/service.py --agents 1000 --seconds 30

Each agent reports at the interval that the service asks for, as real agents do. The service runs in a process of
its own, without a controller, on SQLite in a temporary folder or on the PostgreSQL database of `--database`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import socket
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))


@dataclass
class Outcome:
    """What the agents have seen."""

    latencies_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Run the service and the agents, and print one line."""
    options = _options()
    here, there = multiprocessing.get_context("spawn").Pipe()
    service = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, options.agents, options.database), daemon=True
    )
    service.start()
    port, tokens, report = here.recv()
    outcome = asyncio.run(report_all(port, tokens, report, options.seconds))
    here.send(None)
    cpu_s = here.recv()
    service.join()
    cuts = quantiles(outcome.latencies_s, n=100)
    print(
        f"{options.agents} agents, {len(outcome.latencies_s) / options.seconds:.0f} reports/s, "
        f"p50 {1e3 * cuts[49]:.0f} ms, p99 {1e3 * cuts[98]:.0f} ms, longest {max(outcome.latencies_s):.2f} s, "
        f"{1e3 * cpu_s / len(outcome.latencies_s):.2f} ms of the service's CPU a report, "
        f"answers {dict(outcome.answers)}, load {os.getloadavg()[0]:.1f}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--database", help="URL of an empty PostgreSQL database; SQLite without it")
    return parser.parse_args()


def serve(parent: Connection, agents: int, database: str | None) -> None:
    """Serve the API until the parent process sends something; then send it the CPU-seconds since the first
    request."""
    import uvicorn
    import uvloop

    from api_under_test import ApiUnderTest, report
    from oakum_service.connections import allow_most_open_files, guarded_protocol
    from oakum_service.db.engine import open_engine, upgrade
    from oakum_service.db.models.fragments import Fragment, FragmentState

    allow_most_open_files()
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(database or f"sqlite:///{folder}/oakum.db")
        upgrade(engine)
        api = ApiUnderTest(Path(folder), url=database)
        trainer = str(api.submit()["id"])
        names = [str(uuid.uuid4()) for _ in range(agents)]
        fields = {"trainer_id": trainer, "state": FragmentState.LIVE, "launched_at": time.time()}
        with api.sessions.begin() as session:
            session.add_all(Fragment(id=name, node=f"n{i}", **fields) for i, name in enumerate(names))
        listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        tokens = {name: api.context.configs.token(name) for name in names}
        parent.send((listening.getsockname()[1], tokens, report()))
        config = uvicorn.Config(
            api.app, log_level="warning", access_log=False, lifespan="off", http=guarded_protocol(), ws="none"
        )
        server = uvicorn.Server(config)

        async def run() -> None:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            before_s = _cpu_s()
            await asyncio.to_thread(parent.recv)
            parent.send(_cpu_s() - before_s)
            server.should_exit = True
            await serving

        uvloop.run(run())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def report_all(port: int, tokens: dict[str, str], report: dict[str, object], seconds: float) -> Outcome:
    """Have every agent report for this many seconds."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    outcome = Outcome()
    # The interval that agents of such a service have been told before; a start of all at once is another matter.
    from oakum_service.control.report_pace import report_interval_s

    interval_s = report_interval_s(len(tokens))
    until_s = time.monotonic() + seconds
    agents = (_Agent(port, *each, report, interval_s, outcome).run(until_s) for each in tokens.items())
    await asyncio.gather(*agents)
    return outcome


class _Agent:
    """One agent with one connection."""

    def __init__(
        self, port: int, fragment: str, token: str, report: dict[str, object], interval_s: float, outcome: Outcome
    ) -> None:
        self._port, self._outcome, self._interval_s, self._report = port, outcome, interval_s, report
        self._head = (
            f"POST /v1/fragments/{fragment}/report HTTP/1.1\r\nHost: oakum\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )

    async def run(self, until_s: float) -> None:
        """Report at the interval, beginning at a random moment of the first one."""
        await asyncio.sleep(random.random() * self._interval_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        sequence = 1
        while time.monotonic() < until_s:
            sequence += 1
            began_s = time.monotonic()
            body = json.dumps({**self._report, "sequence": sequence})
            writer.write(f"{self._head}{len(body)}\r\n\r\n{body}".encode())
            status, self._interval_s = _read_head(await reader.readuntil(b"\r\n\r\n"))
            self._outcome.latencies_s.append(time.monotonic() - began_s)
            self._outcome.answers[status] += 1
            await asyncio.sleep(max(0.0, began_s + self._interval_s - time.monotonic()))
        writer.close()


def _read_head(head: bytes) -> tuple[str, float]:
    """The status and the interval in seconds of an answer without a body."""
    lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return lines[0].split()[1], float(fields.get("oakum-report-interval", "1"))


if __name__ == "__main__":
    main()
