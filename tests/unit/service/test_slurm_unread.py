"""What could not be understood of Slurm's state is told once, counted, and named by `oakum check`."""

from __future__ import annotations

import logging

import pytest

from oakum_service.config import Settings, SlurmSettings
from oakum_service.instruments import UNREAD
from oakum_service.schedulers.slurm.preflight import checks
from oakum_service.schedulers.slurm.preflight.finding import Level
from oakum_service.schedulers.slurm.reading.state import SlurmNode, SlurmState, Unread
from oakum_service.schedulers.slurm.unread import UnreadLog, counted

NODE = Unread("node", "n1", "`scontrol` (Slurm 20.11.9), node n1: state is 'NEW'")


def test_each_is_logged_once_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    told = UnreadLog()
    jobs = tuple(Unread("job", str(number), f"job {number}: start_time is 'soon'") for number in range(12))
    with caplog.at_level(logging.WARNING):
        for unread in ((NODE,), (NODE,), (NODE, *jobs), (NODE, *jobs), (), (NODE,)):
            told.note_reading(unread)
            assert UNREAD.labels("node")._value.get() == len([one for one in unread if one.kind == "node"])
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == lines[-1] == f"{NODE.why}; it counts as unavailable"
    assert len(lines) == 1 + 10 + 1 + 1
    assert lines[11] == "2 more could not be understood either: 12 jobs, 1 node"
    assert counted(()) == ""


def test_a_check_names_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SlurmState(0.0, "20.11.9", (SlurmNode("n1", "", ("UNKNOWN",)),), (), unread=(NODE,))
    monkeypatch.setattr(checks, "open_source", lambda settings: type("Source", (), {"read": lambda self: state})())
    found = checks._state(Settings(slurm=SlurmSettings(partition="fill")))
    assert (found.level, NODE.why in found.found, "1 node could not" in found.found) == (Level.WARNING, True, True)
