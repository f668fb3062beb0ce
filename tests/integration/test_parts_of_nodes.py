"""Agents whose fragments have parts of nodes, and what stands in for the service."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from oakum_service.schedulers.starting import FragmentStarter
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import Directive, FragmentReport, Generation, Member, Phase
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from running_service import TASKS
from waiting import wait_until


class Publisher:
    """Hears agents' reports, and tells all of them the newest directive."""

    def __init__(self) -> None:
        self.reports: dict[str, FragmentReport] = {}
        self._directive = Directive(revision=0)
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                report = FragmentReport.model_validate_json(body)
                outer.hear(urlsplit(self.path).path.split("/")[3], report)
                self.send_response(204)
                self.end_headers()

            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                found = outer.directive(int(asked["after"][0]), float(asked["wait_s"][0]))
                body = b"" if found is None else found.model_dump_json().encode()
                self.send_response(204 if found is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def hear(self, fragment: str, report: FragmentReport) -> None:
        """Keep the newest report of the fragment: two that are sent at once may arrive in either order."""
        with self._changed:
            last = self.reports.get(fragment)
            if last is None or report.sequence > last.sequence:
                self.reports[fragment] = report

    def publish(self, generation: Generation) -> None:
        with self._changed:
            self._directive = Directive(revision=self._directive.revision + 1, generation=generation)
            self._changed.notify_all()

    def directive(self, after: int, wait_s: float) -> Directive | None:
        with self._changed:
            is_newer = self._changed.wait_for(lambda: self._directive.revision > after, wait_s)
            return self._directive if is_newer else None

    def wait_for(self, phase: Phase, number: int) -> None:
        def there() -> bool:
            return [report.phase for report in list(self.reports.values())] == [phase] * number

        wait_until(f"{number} fragments are {phase}: {{}}", there, now=lambda: self.reports)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[FragmentStarter]:
    made = FragmentStarter(tmp_path / "fragments", forks=True)
    made.open()
    made.prepare()
    yield made
    made.close()


@contextlib.contextmanager
def started(starter: FragmentStarter, configs: list[FragmentConfig]) -> Iterator[None]:
    agents = [starter.start(config) for config in configs]
    try:
        yield
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)  # with which its ranks end


def test_fragments_of_parts_of_nodes_train_as_one_process_does(
    publisher: Publisher, starter: FragmentStarter, tmp_path: Path
) -> None:
    """Two fragments of one rank on a node, and one of two on another, of nodes that have room for four."""
    spec = TrainerSpec(
        name="parts",
        entrypoint="small_task:task",
        arguments={"step_s": 0.0},
        workdir=str(TASKS),
        global_batch=192,
        epochs=1,
        max_nodes=4,
        ranks_per_node=4,
        rehearsal=False,
    )
    parts = {"a": ("n1", 1), "b": ("n2", 2), "c": ("n1", 1)}
    configs = [
        FragmentConfig(
            fragment=fragment,
            trainer=spec.name,
            node=node,
            node_address="127.0.0.1",
            service_url=publisher.url,
            token="a secret",
            spec=spec,
            ranks=ranks,
            checkpoint_dir=str(tmp_path / "checkpoints"),
            rank_timeout_s=60.0,
        )
        for fragment, (node, ranks) in parts.items()
    ]
    with started(starter, configs):
        publisher.wait_for(Phase.READY, 3)
        told = publisher.reports
        assert {fragment: len(told[fragment].ranks) for fragment in parts} == {"a": 1, "b": 2, "c": 1}
        members = [Member(fragment=name, node=node, ranks=told[name].ranks) for name, (node, _) in parts.items()]
        publisher.publish(Generation(number=1, members=tuple(members), secret="ab" * 16))
        publisher.wait_for(Phase.FINISHED, 3)
    progress = publisher.reports["a"].progress
    assert progress is not None
    assert (progress.final, progress.nodes) == (True, 3)
    alone = TrainingLoop(load_task(spec), spec)
    losses = [alone.step().loss for _ in range(5)]
    assert (progress.step, progress.loss) == (5, pytest.approx(losses[-1], rel=1e-9))
