"""Whoever is the last to leave makes the state durable, in whichever order it hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fragment_configs import fragment_config
from oakum_worker.channel import Command
from oakum_worker.fragment.agent import Agent, Signalled
from oakum_worker.fragment.rank_handle import RankHandle
from oakum_worker.fragment.rank_starter import RankStarter
from oakum_worker.protocol import Directive, Generation, Member

MEMBERS = tuple(Member(fragment=name, node=name, ranks=()) for name in "ab")
NOBODY = Directive(revision=2, generation=Generation(number=2, members=(), saver="a"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Records the commands that the agent sends to its rank."""
    commands: list[Command] = []
    monkeypatch.setattr(RankHandle, "send", lambda _, command: commands.append(command))
    return commands


@pytest.fixture
def agent(told: list[Command]) -> Agent:
    """The agent of fragment `a`, which trains together with `b`."""
    folder = Path("/nowhere")
    rank = RankStarter(folder / "config.json", local_rank=0, threads=1)
    agent = Agent(fragment_config(folder, fragment="a"), [rank])
    agent._on_directive(Directive(revision=1, generation=Generation(number=1, members=MEMBERS)))
    return agent


@pytest.mark.parametrize("told_first", [True, False], ids=["by the service first", "by the scheduler first"])
def test_the_last_to_leave_saves(agent: Agent, told: list[Command], told_first: bool) -> None:
    hears = [lambda: agent._on_directive(NOBODY), lambda: agent._on_leave(str(Signalled(15)))]
    for hear in hears if told_first else reversed(hears):
        assert not any(command.close for command in told)
        hear()
    assert (told[-1].close, told[-1].save) == (True, True)


def test_one_that_is_not_the_last_only_asks_to_leave(agent: Agent, told: list[Command]) -> None:
    agent._on_leave("SIGTERM")
    assert not any(command.close for command in told)
