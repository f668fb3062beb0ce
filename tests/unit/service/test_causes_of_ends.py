"""Why a fragment has ended: a cancelled job, a time limit and a preemption are different things."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells import each
from oakum_service.control.observe import end_fragments
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer
from slurm_adapter import Site, make_site, node, own
from waiting import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = make_site(tmp_path)
    site.source.nodes = (node("a"),)
    site.scheduler.start(lambda: None)
    yield site
    site.scheduler.stop()


@each(
    ("states", "signal", "cause"),
    [
        (["CANCELLED"], "SIGTERM", "cancelled"),
        (["CANCELLED"], "", "cancelled"),
        (["TIMEOUT"], "", "time limit"),
        (["COMPLETED"], "SIGUSR2", "time limit"),
        (["PREEMPTED"], "SIGTERM", "preempted"),
        (["PREEMPTED", "COMPLETING"], "", "preempted"),
        (["COMPLETED"], "SIGTERM", "preempted"),
        (["FAILED"], "", "lost"),
        (["FAILED", "COMPLETING"], "", "lost"),
    ],
)
def test_each_end_has_its_own_cause(
    site: Site, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, states: list[str], signal: str, cause: str
) -> None:
    """Also while Slurm clears the node."""
    with monkeypatch.context() as patch:
        trainer = ScriptedTrainer(sessions, patch, name=f"t{'-'.join(states)}{signal}".lower())
        name = trainer.id  # a fragment of its own in each case
        trainer.launch(name)
        trainer.say(name, Phase.TRAINING, signalled=bool(signal), signal=signal)
    with sessions.begin() as session:
        session.get_one(Fragment, name).node = "a"
    site.source.nodes = (node("a", "IDLE", *states[1:]),)
    site.source.jobs = (own(71, name, *states, nodes="a"),)
    site.picture(lambda s: not s.own_jobs)
    reads = site.source.reads
    wait_until("it is read again", lambda: site.source.reads >= reads + 2)
    with sessions.begin() as session:
        end_fragments(session, site.scheduler.snapshot(), 3600.0, now=time.time())
        assert session.get_one(Fragment, name).cause == cause


def test_what_this_service_cancels_is_not_somebodys(site: Site) -> None:
    site.source.jobs = (own(71, "f1", nodes="a"),)
    site.picture(lambda s: bool(s.own_jobs))
    site.scheduler.cancel("f1")
    wait_until("it is cancelled", lambda: site.calls("scancel"))
    site.source.jobs = (own(71, "f1", "CANCELLED", nodes="a"), own(72, "f2", "CANCELLED", nodes="b"))
    assert site.picture(lambda s: not s.own_jobs and bool(s.cancelled)).cancelled == {"f2"}
