"""What could not be understood of Slurm's state is told once, counted, and named by `oakum check`."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cells import each
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


GPUS = {"partitions": ("fill",), "gres": "gpu:a100:4", "gres_used": "gpu:a100:0"}


@each(
    ("node", "unread", "slots", "why"),
    [
        ({"states": ("UNKNOWN",)}, (NODE,), "node", NODE.why),
        (GPUS | {"gres": "gpu:a100:many"}, (), "gpu", "node n1: gres is 'gpu:a100:many', expected GRES such as"),
        (GPUS | {"gres_used": "gpu:a100:5"}, (), "gpu", "node n1: gres_used is 'gpu:a100:5', expected at most"),
        (GPUS | {"gres": "gpu:a100:many"}, (), "node", None),
        (GPUS, (), "gpu", None),
    ],
)
def test_a_check_names_the_first(
    monkeypatch: pytest.MonkeyPatch, node: dict[str, Any], unread: tuple[Unread, ...], slots: str, why: str | None
) -> None:
    shown = SlurmNode(**({"name": "n1", "address": "", "states": ("IDLE",)} | node))
    state = SlurmState(0.0, "20.11.9", (shown,), (), unread=unread)
    monkeypatch.setattr(checks, "open_source", lambda settings: type("Source", (), {"read": lambda self: state})())
    [found] = checks._state(Settings(slurm=SlurmSettings(partition="fill", slots=slots)))
    if why is None:
        assert found.level is Level.OK
    else:
        assert found.level is Level.WARNING
        assert why in found.found
        assert "1 node could not" in found.found


def test_a_check_names_nodes_that_have_less_than_slurm_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = ("IDLE", "DRAIN", "INVALID_REG")
    nodes = tuple(
        SlurmNode(name, "", invalid, (partition,)) for name, partition in (("n1", "fill"), ("x1", "main"))
    )
    state = SlurmState(0.0, "22.05.8", (*nodes, SlurmNode("n2", "", ("IDLE",), ("fill",))), ())
    monkeypatch.setattr(checks, "open_source", lambda settings: type("Source", (), {"read": lambda self: state})())
    _, found = checks._state(Settings(slurm=SlurmSettings(partition="fill")))
    assert (found.level, found.subject) == (Level.WARNING, "nodes")
    assert found.found == "n1: Slurm starts nothing there, as less was found than slurm.conf says (INVALID_REG)"
