"""Whoever is the last to leave makes the state durable, in whichever order it hears of it."""

from __future__ import annotations

import queue
from pathlib import Path

import httpx
import pytest

from fragment_configs import fragment_config
from oakum_worker.channel import Command, News
from oakum_worker.fragment.agent import Agent, Signalled
from oakum_worker.fragment.rank_handle import RankExit, RankHandle, RankNews
from oakum_worker.fragment.rank_starter import RankStarter
from oakum_worker.fragment.service_link import ServiceLink, Unheard
from oakum_worker.protocol import Directive, Generation, Member, Pace, Phase

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


def test_that_the_ranks_have_left_is_told_once_while_their_processes_end(
    agent: Agent, told: list[Command]
) -> None:
    agent._started_s = 0.0
    agent._on_leave("SIGTERM")
    agent._on_news(RankNews(0, 0, News(phase=Phase.LEFT)))
    report = agent._report
    assert report.phase is Phase.LEFT
    assert not agent._has_left
    agent._on_news(RankNews(0, 0, News(pace=Pace(steps=1, seconds=0.1, reading_s=0.0))))
    agent._on_exit(RankExit(0, 0, 0))
    assert agent._has_left
    assert agent._report is report


def test_a_pace_is_of_the_generation_that_is_reported_with_it(agent: Agent) -> None:
    agent._started_s = 0.0
    agent._on_news(RankNews(0, 0, News(generation=1)))
    agent._on_news(RankNews(0, 0, News(pace=Pace(steps=1, seconds=0.1, reading_s=0.0))))
    assert agent._report.pace is not None
    agent._on_news(RankNews(0, 0, News(generation=2)))
    assert (agent._report.generation, agent._report.pace) == (2, None)


@pytest.mark.parametrize("is_broken", [True, False], ids=["it has broken", "it goes on"])
def test_whose_time_is_up_saves_where_its_generation_has_broken(
    agent: Agent, told: list[Command], is_broken: bool
) -> None:
    """Then the other member may be gone for good; else it has the state."""
    agent._ranks[0].holds_state = True
    agent._tell(generation=1, broken=int(is_broken))
    agent._on_leave("SIGTERM")
    assert not any(command.close for command in told)
    agent._on_deadline()
    assert any(command.close and command.save for command in told) == is_broken
    assert agent._has_left != is_broken


@pytest.mark.parametrize("first", ["a", "b"])
def test_without_the_service_all_leave_and_the_first_member_saves(
    agent: Agent, told: list[Command], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(RankHandle, "pid", 0)
    members = MEMBERS if first == "a" else MEMBERS[::-1]
    agent._on_directive(Directive(revision=2, generation=Generation(number=2, members=members)))
    agent._events.put(Unheard(121.0))
    agent._turn()
    assert (told[-1].close, told[-1].save) == (True, first == "a")


def test_a_service_that_stays_silent_is_told_of_after_the_timeout_and_not_before() -> None:
    events: queue.Queue[object] = queue.Queue()
    config = fragment_config(Path("/nowhere"), service_url="http://127.0.0.1:9")
    for timeout_s in (3600.0, 0.0):
        link = ServiceLink(config.model_copy(update={"orphan_timeout_s": timeout_s}), events.put)
        link._fail(httpx.ConnectError("nobody listens"))
        assert events.empty() == (timeout_s > 0)
    assert isinstance(events.get(), Unheard)
