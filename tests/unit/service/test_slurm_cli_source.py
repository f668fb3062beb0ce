"""Slurm's state from its commands, of every version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.reading.cli_source import CliSource
from oakum_service.schedulers.slurm.reading.pushed_source import PushedSource
from oakum_service.schedulers.slurm.reading.rest_source import RestSource
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.reading.text import job_format
from slurm_payloads import RELEASES, answer, generation, job, node, reservation

NODE_LINES = (
    b"NodeName=n1 ActiveFeatures=ib Gres=(null) NodeAddr=n1 State=IDLE+PLANNED Partitions=main  BootTime=1\n"
    b"NodeName=n2 ActiveFeatures=ib Gres=(null) NodeAddr=n2 State=ALLOCATED Partitions=main  BootTime=1\n"
)
RESERVATION_LINES = b"ReservationName=r StartTime=10 EndTime=20 Nodes=n1 Flags=MAINT\n"


@dataclass
class FakeSlurm:
    """Takes the place of `SlurmCommands`, and answers as one version of Slurm does."""

    release: str
    parser: str | None = None
    """Whose JSON it speaks."""
    controller: str = ""
    calls: list[str] = field(default_factory=list)
    failing: dict[str, CommandFailed] = field(default_factory=dict)

    def run(self, name: str, *arguments: str, **how: Any) -> bytes:
        call = " ".join([name, *arguments])
        self.calls.append(call)
        for part, error in self.failing.items():
            if part in call:
                raise error
        if arguments == ("--version",):
            return f"slurm {self.release}\n".encode()
        if call == "scontrol show config":
            return f"SLURM_VERSION           = {self.controller or self.release}\n".encode()
        if name == "sdiag":
            return b"Main schedule statistics (microseconds):\n\tLast cycle:   2500000\n"
        assert how == {"epoch_times": True}
        return self._json(call) if "--json" in call else self._text(call)

    def _json(self, call: str) -> bytes:
        assert self.parser is not None
        if call.startswith("squeue"):
            return answer(self.parser, "jobs", [job(self.parser, 7, "RUNNING", nodes="n2")])
        if "reservations" in call:
            return answer(self.parser, "reservations", [reservation(self.parser, "r")])
        if call.startswith("sinfo") and generation(self.parser) >= 39:
            return answer(self.parser, "sinfo", [])
        states = {"n1": ["IDLE", "PLANNED"], "n2": ["ALLOCATED"]}
        return answer(self.parser, "nodes", [node(self.parser, name, *told) for name, told in states.items()])

    def _text(self, call: str) -> bytes:
        if call.startswith("squeue"):
            mark = call.rpartition("|")[2]
            assert call.endswith(f"--Format={job_format(mark)}")
            return f"7|7|N/A|ada|main|RUNNING|normal|n2|(null)|1|5|6|7|N/A|None|gres/gpu:1|train|{mark}\n".encode()
        return NODE_LINES if "nodes" in call else RESERVATION_LINES


def make(slurm: FakeSlurm, clock: Callable[[], float] = lambda: 1000.0, **settings: Any) -> CliSource:
    return CliSource(SlurmSettings(**settings), slurm, clock)  # type: ignore[arg-type]


def asked(slurm: FakeSlurm) -> list[str]:
    """What it was asked for, without formats and what comes before the first read."""
    return [call.partition(" --Format")[0] for call in slurm.calls[2:]]


@each("parser", RELEASES)
def test_every_version_tells_the_same(parser: str) -> None:
    slurm = FakeSlurm(RELEASES[parser], parser)
    state = make(slurm).read()
    assert (state.taken_at, state.version) == (1000.0, RELEASES[parser])
    assert [(n.name, n.states) for n in state.nodes] == [("n1", ("IDLE", "PLANNED")), ("n2", ("ALLOCATED",))]
    assert [(j.id, j.states, j.nodes, j.user) for j in state.jobs] == [(7, ("RUNNING",), "n2", "ada")]
    assert [r.name for r in state.reservations] == ["r"]


@each(
    ("release", "parser", "format", "calls"),
    [
        (
            "20.11.9",
            None,
            "auto",
            [
                "scontrol --all --oneliner --details show nodes",
                "squeue --all --states=all --noheader",
                "scontrol --all --oneliner show reservations",
            ],
        ),
        (
            "22.05.8",
            "v0.0.38",
            "json",
            [
                "sinfo --all --json",
                "squeue --all --states=all --json",
                "scontrol --all --oneliner show reservations",
            ],
        ),
        (
            "23.02.7",
            "v0.0.39",
            "auto",
            [
                "scontrol --all show nodes --json",
                "squeue --all --states=all --json",
                "scontrol --all show reservations --json",
            ],
        ),
        (
            "24.11.5",
            "v0.0.42",
            "auto",
            [
                "scontrol --all show nodes --json=v0.0.42",
                "squeue --all --states=all --json=v0.0.42",
                "scontrol --all show reservations --json=v0.0.42",
            ],
        ),
    ],
)
def test_each_version_is_asked_in_its_own_way(
    release: str, parser: str | None, format: Any, calls: list[str]
) -> None:
    slurm = FakeSlurm(release, parser)
    make(slurm, format=format).read()
    assert asked(slurm) == calls


def test_the_version_is_asked_once_and_reservations_once_a_minute() -> None:
    now = [1000.0]
    slurm = FakeSlurm("22.05.8", controller="22.05.9")
    source = make(slurm, lambda: now[0])
    for at in (1000.0, 1030.0, 1059.0, 1061.0):
        now[0] = at
        assert source.read().version == "22.05.9"
    assert slurm.calls.count("scontrol --version") == 1
    assert slurm.calls.count("scontrol --all --oneliner show reservations") == 2


def test_a_clock_that_is_set_back_keeps_no_old_reservations() -> None:
    now = [1000.0]
    slurm = FakeSlurm("22.05.8")
    source = make(slurm, lambda: now[0])
    source.read()
    now[0] = 10.0
    source.read()
    assert slurm.calls.count("scontrol --all --oneliner show reservations") == 2


def test_after_an_error_the_version_is_asked_again() -> None:
    slurm = FakeSlurm("22.05.8")
    source = make(slurm)
    source.read()
    slurm.failing["squeue"] = CommandFailed("slurm_load_jobs error", last_line="slurm_load_jobs error")
    with pytest.raises(SchedulerError, match="slurm_load_jobs error"):
        source.read()
    slurm.failing.clear()
    slurm.release, slurm.parser = "25.11.0", "v0.0.44"
    assert source.read().version == "25.11.0"
    assert slurm.calls[-1] == "squeue --all --states=all --json=v0.0.44"


def test_commands_built_without_json_are_read_as_text() -> None:
    slurm = FakeSlurm("23.02.7", "v0.0.39")
    line = "error: Unable to find plugin for type:application/json"
    slurm.failing["--json"] = CommandFailed(line, last_line=line)
    source = make(slurm)
    assert [j.id for j in source.read().jobs] == [7]
    slurm.calls.clear()
    source.read()
    assert not [call for call in slurm.calls if "--json" in call]


def test_json_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    slurm = FakeSlurm("23.02.7", "v0.0.39")
    slurm.failing["--json"] = CommandFailed("no serializer", last_line="no serializer")
    with pytest.raises(CommandFailed):
        make(slurm, format="json").read()


def test_an_error_that_has_nothing_to_do_with_json_changes_no_format() -> None:
    slurm = FakeSlurm("23.02.7", "v0.0.39")
    slurm.failing["squeue"] = CommandFailed("down", last_line="Unable to contact slurm controller")
    with pytest.raises(CommandFailed):
        make(slurm).read()
    assert not [call for call in slurm.calls if "--oneliner" in call]


def test_an_error_in_an_answer_names_the_command_and_the_parser() -> None:
    slurm = FakeSlurm("24.11.5", "v0.0.42")
    slurm._json = lambda call: b"{}"  # type: ignore[method-assign]
    with pytest.raises(SchedulerError) as caught:
        make(slurm).read()
    assert str(caught.value).startswith(
        "`scontrol --all show nodes --json=v0.0.42` (Slurm 24.11.5, parser v0.0.42) answered without 'nodes'"
    )


def test_the_cycle_comes_from_sdiag_and_is_unknown_without_it() -> None:
    slurm = FakeSlurm("22.05.8")
    assert make(slurm).cycle_s() == 2.5
    slurm.failing["sdiag"] = CommandFailed("no")
    assert make(slurm).cycle_s() is None


def test_settings_choose_the_source(tmp_path: Path) -> None:
    assert isinstance(open_source(SlurmSettings(state="cli")), CliSource)
    assert isinstance(open_source(SlurmSettings(state="rest", rest_url="http://head:6820")), RestSource)
    assert isinstance(open_source(SlurmSettings(state="push")), PushedSource)
