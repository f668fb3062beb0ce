"""Times every list that the API returns, with a week of a large cluster in the database.

    python bench/reads.py [--nodes 5000] [--days 7] [--database postgresql+psycopg://...]

Fills a database, SQLite in a temporary folder or the empty PostgreSQL database of `--database`, with nodes that go
from foreground jobs to holes and back, a fragment in every hole, plans, events and trainers. Then asks for each
list at its defaults, through a real server. Prints the median and the longest time, and the bytes of the answer as
sent and uncompressed. Targets: 300 ms and 300 KB.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
import uvicorn
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from api_under_test import ApiUnderTest
from oakum_client.cli import output
from oakum_service.control.usage import complete_hours
from oakum_service.db.engine import open_engine, upgrade
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval, SnapshotRecord
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.grant import Grant
from oakum_service.documents.node import Node, RecordedNodes
from oakum_service.network.connections import guarded_protocol
from oakum_service.states import NodeState, TrainerState
from oakum_worker.spec import TrainerSpec

_PATHS = (
    "/v1/cluster",
    "/v1/nodes",
    "/v1/holes",
    "/v1/timeline",
    "/v1/timeline?since_s=86400",
    "/v1/timeline?since_s=604800",
    "/v1/trainers",
    "/v1/trainers?state=running",
    "/v1/plans",
    "/v1/plans/current",
    "/v1/events/recent",
    "/v1/notices",
)
_TRAINERS, _LIVE = 2000, 40
_BATCH = 20_000


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--database", help="URL of an empty PostgreSQL database; SQLite without it")
    parser.add_argument("--keep", type=Path, help="keep the SQLite database in this folder, or use the one there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True, parents=True)
        is_filled = (folder / "oakum.db").exists()
        engine = open_engine(options.database or f"sqlite:///{folder}/oakum.db")
        upgrade(engine)
        if not is_filled:
            fill(engine, options.nodes, options.days * 86400.0)
        api = ApiUnderTest(folder, url=options.database)
        with api.sessions.begin() as session:  # as a running service does every five minutes
            session.add_all(complete_hours(session, time.time()))
        rows = ask(api, options.repeats)
    table = Table("list", "median", "longest", "sent", "uncompressed")
    for path, seconds, sent, size in rows:
        table.add_row(
            path,
            f"{1e3 * statistics.median(seconds):.0f} ms",
            f"{1e3 * max(seconds):.0f} ms",
            f"{sent / 1e3:.0f} KB",
            f"{size / 1e3:.0f} KB",
        )
    output.console().print(table)


def fill(engine: sa.Engine, nodes: int, seconds: float) -> None:
    """Write the history that ends now."""
    chance, now = random.Random(0), time.time()
    names = [f"node{number:05d}" for number in range(nodes)]
    trainers = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(_TRAINERS)]
    with engine.begin() as connection:
        api_rows = [_trainer(i, id_, now - seconds, chance, now) for i, id_ in enumerate(trainers)]
        connection.execute(sa.insert(Trainer), api_rows)
    intervals: list[dict[str, Any]] = []
    fragments: list[dict[str, Any]] = []
    body: list[Node] = []
    for name in track(names, "Filling", console=Console(stderr=True), transient=True):
        for interval in _history(name, now - seconds, now, chance):
            intervals.append(interval)
            if interval["state"] == NodeState.HOLE:
                is_live = interval["end_at"] is None
                trainer = trainers[-1 - chance.randrange(_LIVE)] if is_live else chance.choice(trainers)
                fragments.append(_fragment(interval, trainer, chance))
        last = intervals[-1]
        body.append(Node(name, NodeState(last["state"]), "10.0.0.1", job=last["job"]))
        if len(intervals) > _BATCH:
            _write(engine, intervals, fragments)
    _write(engine, intervals, fragments)
    jobs = [
        {
            "job": str(n),
            "started_at": now - chance.random() * seconds,
            "num_nodes": 8,
            "delay_s": chance.expovariate(2.0),
        }
        for n in range(int(nodes * seconds / 86400 * 3))
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(ForegroundStart), jobs)
        snapshot = RecordedNodes(tuple(body))
        connection.execute(sa.insert(SnapshotRecord), [{"taken_at": now, "body": snapshot}])
        connection.execute(sa.insert(PlanRecord), [_plan(n, names, trainers, now, chance) for n in range(600)])
        events = [
            {
                "at": now - 20_000 + n,
                "kind": "fragment.ended",
                "subject": "trainer-7",
                "message": f"fragment {n} left {names[n % nodes]}: preempted",
                "data": {"node": names[n % nodes]},
            }
            for n in range(20_000)
        ]
        connection.execute(sa.insert(EventRecord), events)


def _history(node: str, begin: float, end: float, chance: random.Random) -> Iterator[dict[str, Any]]:
    at, is_hole = begin, chance.random() < 0.5
    while at < end:
        until = at + chance.expovariate(1 / (1100.0 if is_hole else 3000.0)) + 20.0
        yield {
            "node": node,
            "state": NodeState.HOLE if is_hole else NodeState.FOREGROUND,
            "job": None if is_hole else str(chance.randrange(10**6)),
            "job_name": "" if is_hole else "simulation",
            "start_at": at,
            "end_at": None if until >= end else until,
        }
        at, is_hole = until, not is_hole


def _fragment(hole: dict[str, Any], trainer: str, chance: random.Random) -> dict[str, Any]:
    is_live = hole["end_at"] is None
    return {
        "id": str(uuid.UUID(int=chance.getrandbits(128))),
        "trainer_id": trainer,
        "node": hole["node"],
        "state": "live" if is_live else "ended",
        "launched_at": hole["start_at"] + 1.0,
        "training_at": hole["start_at"] + 5.0,
        "ended_at": hole["end_at"],
        "cause": "" if is_live else "preempted",
    }


def _trainer(number: int, id_: str, begin: float, chance: random.Random, now: float) -> dict[str, Any]:
    is_live = number >= _TRAINERS - _LIVE
    spec = {"name": f"trainer-{number}", "entrypoint": "tasks.digits:task", "global_batch": 4096, "epochs": 90}
    submitted_at = begin + (now - begin) * number / _TRAINERS
    return {
        "id": id_,
        "name": f"trainer-{number}",
        "spec": TrainerSpec.model_validate(spec),
        "state": TrainerState.RUNNING if is_live else TrainerState.FINISHED,
        "submitted_at": submitted_at,
        "ended_at": None if is_live else submitted_at + chance.random() * 3600,
        "user_name": f"user{number % 50}",
    }


def _plan(number: int, names: list[str], trainers: list[str], now: float, chance: random.Random) -> dict[str, Any]:
    idle = chance.sample(names, len(names) // 4)
    size = len(idle) // _LIVE
    grants = {
        trainer: Grant(tuple(sorted(idle[i * size : (i + 1) * size])), "planned", "It trains where it gains most.")
        for i, trainer in enumerate(trainers[-_LIVE:])
    }
    return {
        "snapshot": 1,
        "made_at": now - 60.0 * (600 - number),
        "objective": "throughput",
        "look_ahead_s": 120.0,
        "value": 1.0,
        "bound": 1.0,
        "solver": "cbc",
        "solve_s": 0.1,
        "optimal": True,
        "allocations": grants,
    }


def _write(engine: sa.Engine, intervals: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(NodeInterval), intervals)
        connection.execute(sa.insert(Fragment), fragments)
    intervals.clear()
    fragments.clear()


def ask(api: ApiUnderTest, repeats: int) -> list[tuple[str, list[float], int, int]]:
    """(path, seconds of each answer, bytes sent, bytes uncompressed) of each list, as an administrator gets it."""
    token = str(api.admin.headers["Authorization"])
    config = uvicorn.Config(
        api.app, port=0, log_level="warning", access_log=False, lifespan="off", http=guarded_protocol(), ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    rows = []
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": token}, timeout=120
    ) as client:
        for path in _PATHS:
            seconds, sent, size = [], 0, 0
            for _ in range(repeats):
                began_s = time.perf_counter()
                answer = client.get(path)
                seconds.append(time.perf_counter() - began_s)
                assert answer.status_code == 200, (path, answer.text)
                sent, size = answer.num_bytes_downloaded, len(answer.content)
            rows.append((path, seconds, sent, size))
    server.should_exit = True
    thread.join()
    return rows


if __name__ == "__main__":
    main()
