"""A slurmctld that does not answer: how soon the adapter knows, whatever it is doing, and when it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells import each
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import HookEvent, HookKind
from oakum_service.schedulers.slurm import answers
from oakum_service.schedulers.slurm.answers import ASK_EVERY_S, Answers
from slurm_adapter import FAKE, Site, adapter, make_site, own
from waiting import DEADLINE_S, wait_until

_DEAD = SchedulerError("`scontrol ping`: Slurmctld(primary) at head is DOWN")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose state is read once in ten minutes."""
    monkeypatch.setattr(answers, "ASK_EVERY_S", 0.05)
    monkeypatch.setattr(answers, "_PATIENCE_S", 0.3)
    site = make_site(tmp_path)
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    yield site
    site.scheduler.stop()


def silence(site: Site) -> str:
    """What the adapter says that it has tried; empty while Slurm answers."""
    told = site.scheduler.silence()
    return "" if told is None else told.tried


def test_a_dead_slurmctld_is_noticed_between_two_readings_and_so_is_its_return(site: Site) -> None:
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.nodes) == 2)
    wait_until("it is asked between readings", lambda: site.source.pings)
    assert silence(site) == ""
    began_at = time.time()
    site.source.error = _DEAD
    wait_until("the silence is told", lambda: silence(site) == str(_DEAD))
    told = site.scheduler.silence()
    assert told is not None
    assert began_at - 1.0 <= told.since <= time.time()
    with pytest.raises(SchedulerError, match="does not answer"):
        site.scheduler.submit(site.config())
    assert len(site.scheduler.snapshot().nodes) == 2
    reads = site.source.reads
    site.source.error = None
    wait_until("it answers again", lambda: silence(site) == "")
    assert site.source.reads > reads, "a ping alone shows no state"
    assert site.scheduler.submit(site.config()) == "71"


@each("asked", ["a reading", "a ping", "its statistics", "a cancellation"])
def test_a_slurmctld_that_hangs_is_told_of_while_it_is_waited_for(site: Site, asked: str) -> None:
    """As one does that was stopped: each of Slurm's commands waits for its time limit."""
    go_on = threading.Event()
    site.source.jobs = (own(71, "f1", nodes="n1"),)
    site.scheduler.stop()
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.own_jobs) == 1)

    def hang(*_: object) -> None:
        go_on.wait(DEADLINE_S)

    patches = pytest.MonkeyPatch()
    file = site.folder / "go"
    file.unlink(missing_ok=True)
    if asked == "a cancellation":
        (site.folder / "scancel").write_text(
            FAKE.format(folder=site.folder, answer=f"until [ -e {file} ]; do sleep 0.05; done")
        )
        site.scheduler.cancel("f1")
    elif asked == "a ping":
        patches.setattr(site.source, "ping", hang)
    else:
        patches.setattr(site.source, "cycle_s" if "statistics" in asked else "on_read", hang)
        site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "500", "n2", "main", 1000, None, time.time()))
    wait_until("the silence is told", lambda: asked in silence(site))
    assert "has had no answer for" in silence(site)
    go_on.set()
    patches.undo()
    file.touch()


def test_a_slow_slurm_is_waited_for_as_long_as_it_usually_takes() -> None:
    known = Answers()
    known.ask("a reading", 0.0)
    known.read(14.0)
    assert known.due_in_s(14.0) == 0.0
    known.ask("a reading", 14.0)
    assert known.silence(41.0, 41.0) is None
    assert known.silence(43.0, 1043.0) is not None
    known.heard(43.5)
    assert known.silence(43.5, 43.5) is not None, "what came so late was no answer"
    known.read(44.0)
    assert known.silence(44.0, 44.0) is None


def test_the_longest_time_until_a_silence_is_told_is_below_half_a_minute() -> None:
    known = Answers()
    known.ask("a reading", 0.0)
    known.read(0.1)
    assert known.due_in_s(0.1) <= ASK_EVERY_S
    known.ask("a ping", ASK_EVERY_S)
    assert known.silence(29.0, 29.0) is not None
