"""When a rank is forked, and when it is a process of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_service.schedulers.starting import FragmentStarter
from oakum_worker.errors import ForkError
from oakum_worker.fragment import forking
from oakum_worker.fragment.rank_starter import RankStarter, StartedRank
from waiting import DEADLINE_S


class Server:
    """A fork server that only notes what it is asked for, or is gone."""

    def __init__(self, *, gone: bool = False) -> None:
        self.asked: list[forking.ForkRequest] = []
        self._gone = gone

    def start(self, request: forking.ForkRequest, given: tuple[int, ...] = ()) -> Any:
        self.asked.append(request)
        if self._gone:
            raise ForkError("the fork server has ended")
        return _Process()


class _Process:
    stdin: Any = None

    def watch(self) -> None:
        pass


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks that were started as processes of their own; on a machine without a GPU, unless a test says else."""
    started: list[int] = []
    monkeypatch.setattr(RankStarter, "_start_afresh", lambda self, *_: started.append(self.local_rank))
    monkeypatch.setattr(forking, "_ACCELERATORS", ())
    return started


def start(server: Server | None, threads: int = 1) -> StartedRank:
    return RankStarter(Path("fragment.json"), 0, threads, server).start()  # type: ignore[arg-type]


def test_a_rank_is_forked_where_there_is_a_server(afresh: list[int]) -> None:
    server = Server()
    start(server)
    [request] = server.asked
    assert (request.module, request.arguments[0], request.nice) == (
        "oakum_worker.rank.process",
        "fragment.json",
        5,
    )
    assert request.environment["OMP_NUM_THREADS"] == "1"
    assert afresh == []


def test_a_rank_is_never_forked_beside_a_gpu(
    afresh: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(forking, "_ACCELERATORS", (str(tmp_path),))
    server = Server()
    start(server)
    assert (server.asked, afresh) == ([], [0])


@pytest.mark.parametrize("beside_gpu", [True, False])
def test_no_fork_server_is_loaded_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beside_gpu: bool
) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(FragmentStarter, "_keep_server", lambda _: loaded.set())
    monkeypatch.setattr(forking, "_ACCELERATORS", (str(tmp_path),) if beside_gpu else ())
    FragmentStarter(tmp_path, forks=True).open()
    assert loaded.wait(timeout=0.1 if beside_gpu else DEADLINE_S) is not beside_gpu


def test_a_rank_of_several_threads_is_not_forked(afresh: list[int]) -> None:
    server = Server()
    start(server, threads=2)
    assert (server.asked, afresh) == ([], [0])


def test_a_rank_whose_server_is_gone_is_started_afresh_and_not_asked_for_again(afresh: list[int]) -> None:
    server = Server(gone=True)
    starter = RankStarter(Path("fragment.json"), 0, 1, server)  # type: ignore[arg-type]
    starter.start()
    starter.start(after=3)
    assert (len(server.asked), afresh) == (1, [0, 0])


def test_a_rank_that_was_started_ahead_is_not_started_twice(afresh: list[int]) -> None:
    starter = RankStarter(Path("fragment.json"), 0, 1)
    starter.start_ahead()
    starter.start()
    assert afresh == [0]
    starter.start(after=3)
    assert afresh == [0, 0]


@each("document", [b"{}", b"no JSON", b'{"module": "os"}', b'{"module": "oakum_worker.rank.process", "a": 1}'])
def test_a_request_for_anything_but_an_agent_or_a_rank_is_refused(document: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        forking.ForkRequest.read(document)
