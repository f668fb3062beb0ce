"""The process of the service under load: `oakum serve` with a wide cluster, led over its standard streams.

It writes a JSON object a line: `ready` with the service's address and tokens, then launches and cancellations of
far jobs, and the age of the control loop's newest turn, the longest of each second. It reads the ids of far
fragments that have ended, and stops at the end of its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import oakum_service.server
from oakum_service.config import LocalClusterSettings, Settings
from oakum_service.db.engine import open_engine, upgrade
from oakum_service.identity import audit, tokens
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Scheduler
from serving.wide_cluster import WideCluster

_SAMPLE_S = 0.1
_SAMPLES = 10
"""Of the turn's age in one line."""


class _Teller:
    """Writes lines from any thread, also after nobody reads them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def __call__(self, line: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._out.write(json.dumps(line) + "\n")
                self._out.flush()
            except (BrokenPipeError, ValueError):
                pass


def main(folder: Path, num_far: int, num_users: int, near_nodes: int, database: str) -> None:
    """Serve until the standard input ends. An empty `database` means SQLite in the folder."""
    tell = _Teller()
    folder.mkdir(exist_ok=True)
    settings = Settings(
        data_dir=folder,
        database_url=database or None,
        port=0,
        trust_users=True,
        learn_curves=True,
        local=LocalClusterSettings(nodes=near_nodes, load=0.0),
    )
    engine = open_engine(settings.database)
    upgrade(engine)
    engine.dispose()
    opened: list[WideCluster] = []

    def open_wide(settings: Settings, secret: bytes) -> Scheduler:
        opened.append(WideCluster(LocalCluster(settings.local, settings.data_dir), num_far, tell))
        return opened[0]

    setattr(oakum_service.server, "open_scheduler", open_wide)  # noqa: B010 - the server's own name for it
    server = oakum_service.server.OakumServer(settings)
    with server.sessions.begin() as session:
        users = [
            tokens.create(session, audit.local_actor(), f"user{number}", "user") for number in range(num_users)
        ]
    threading.Thread(target=_listen, args=(opened[0],), daemon=True).start()
    threading.Thread(target=_tell_turns, args=(server, tell), daemon=True).start()
    server.run(lambda: tell({"ready": server.url, "admin": server.token, "users": users}))


def _listen(cluster: WideCluster) -> None:
    for line in sys.stdin:
        cluster.end(line.strip())
    os.kill(os.getpid(), signal.SIGTERM)


def _tell_turns(server: oakum_service.server.OakumServer, tell: _Teller) -> None:
    while True:
        oldest_s = 0.0
        for _ in range(_SAMPLES):
            time.sleep(_SAMPLE_S)
            oldest_s = max(oldest_s, server.context.turns.age_s or 0.0)
        tell({"turn_age_s": oldest_s})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
