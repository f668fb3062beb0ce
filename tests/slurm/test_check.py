"""`oakum check` on a real cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from oakum_service.config import Settings, SlurmSettings
from oakum_service.schedulers.slurm.accounting_log import read_accounting
from oakum_service.schedulers.slurm.preflight import node
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding
from slurm_site import SlurmSite
from warm_processes import run_warm


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def healthy_url() -> Iterator[str]:
    """URL of a stub that answers like a healthy service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Healthy)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def check(
    site: SlurmSite, data_dir: Path, *options: str, **variables: str
) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and subject -> finding."""
    given = {"OAKUM_SLURM_PARTITION": "fill", "OAKUM_DATA_DIR": str(data_dir)} | site.environment | variables
    done = run_warm("oakum", "check", "--json", *options, environment=os.environ | given)
    assert done.stdout, done.stderr
    return done.returncode, {found["subject"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_fit_cluster_has_no_error_and_its_node_has_what_fragments_need(
    slurm: SlurmSite, tmp_path: Path, healthy_url: str
) -> None:
    code, found = check(slurm, tmp_path, OAKUM_PUBLIC_URL=healthy_url)
    assert [subject for subject, its in found.items() if its["level"] == "error"] == []
    assert code == 0
    needed = ("version", "partition", "submission", "PreemptMode", "PriorityTier", "state", "node", "torch")
    assert {found[subject]["level"] for subject in needed} == {"ok"}
    assert found["shared folder"]["level"] == "ok"
    assert (found["service"]["level"], found["service"]["found"]) == ("ok", f"n001 reaches {healthy_url}")
    slurm.wait_until("its job is gone: {}", lambda: not slurm.jobs(), now=slurm.jobs)
    assert list(tmp_path.iterdir()) == []


def test_a_partition_made_wrong_is_told_the_lines_to_change_and_slurm_has_the_last_word_on_whether_we_may_submit(
    slurm: SlurmSite, tmp_path: Path
) -> None:
    update = "scontrol", "update", "PartitionName=fill"
    slurm.set_grace(0)
    slurm.run(*update, "PreemptMode=OFF", "AllocNodes=elsewhere")
    try:
        code, found = check(slurm, tmp_path, "--no-job")
    finally:
        slurm.run(*update, "PreemptMode=CANCEL", "AllocNodes=ALL")
    assert code == 1
    assert (found["GraceTime"]["level"], found["PreemptMode"]["level"]) == ("warning", "error")
    assert found["GraceTime"]["change"] == "slurm.conf: PartitionName=fill ... GraceTime=60"
    assert found["PreemptMode"]["change"] == "slurm.conf: PartitionName=fill ... PreemptMode=CANCEL"
    assert found["submission"]["level"] == "error"
    assert "sbatch" in found["submission"]["found"]


def test_a_controller_that_does_not_answer_is_one_error(slurm: SlurmSite, tmp_path: Path) -> None:
    slurm.kill("slurmctld")
    code, found = check(slurm, tmp_path, OAKUM_SLURM_COMMAND_TIMEOUT_S="2")
    assert code == 1
    assert list(found) == ["slurmctld"]


def test_the_rest_interface_is_tried_with_its_token(slurm: SlurmSite, tmp_path: Path) -> None:
    token = tmp_path / "jwt"
    token.write_text(slurm.jwt("root"))
    rest = {"OAKUM_SLURM_STATE": "rest", "OAKUM_SLURM_REST_URL": slurm.rest_url}
    rest |= {"OAKUM_SLURM_JWT_FILE": str(token), "OAKUM_SLURM_REST_USER": "root"}
    code, found = check(slurm, tmp_path, "--no-job", **rest)
    assert (code, found["state"]["level"]) == (0, "ok")
    token.write_text("stale")
    code, found = check(slurm, tmp_path, "--no-job", **rest)
    assert (code, found["state"]["level"]) == (1, "error")
    assert "scontrol token" in found["state"]["change"]


def on_a_node(
    site: SlurmSite, data_dir: Path, monkeypatch: pytest.MonkeyPatch, wait_s: int = 30
) -> dict[str, PreflightFinding]:
    """What the job on a node found, by subject."""
    monkeypatch.setenv("SLURM_CONF", site.environment["SLURM_CONF"])
    made = Settings(data_dir=data_dir, slurm=SlurmSettings(partition="fill"))
    return {found.subject: found for found in node.check(made, wait_s)}


def test_a_full_cluster_is_a_warning_and_leaves_no_job(
    slurm: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm.submit_foreground(nodes=8, run_s=300)
    slurm.wait_for_state(job, "RUNNING")
    found = on_a_node(slurm, tmp_path, monkeypatch, wait_s=1)
    assert found["node"].level == "warning"
    assert [left.id for left in slurm.jobs()] == [job]


def test_a_python_that_the_nodes_do_not_have_is_an_error(
    slurm: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    found = on_a_node(slurm, tmp_path, monkeypatch)
    assert found["node"].level == "error"
    assert "/nowhere/bin/python" in found["node"].change
    assert list(tmp_path.iterdir()) == []


def test_what_the_accounting_tells_of_idle_nodes_is_replayed(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    job = slurm.wait_for_sacct(slurm.submit_foreground(nodes=2, run_s=3.0))
    assert job.start is not None
    since, until = job.start - 60.0, job.start + 1.0
    log = read_accounting(SlurmSettings(partition="fill"), since, until)
    # Earlier tests may have left nodes busy at the beginning; at the end, the job alone has two of the eight.
    idle_at_end = {
        log.nodes[node] for node, end_s in zip(log.node, log.end_s, strict=True) if end_s == log.duration_s
    }
    assert idle_at_end == {f"n{number:03}" for number in range(3, 9)}
    assert log.notes[0].endswith("8 nodes")
