"""States that a collector reads and posts: what becomes of them on the way, and when something fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.errors import PayloadError, SchedulerError
from oakum_service.schedulers.port import AGE_HEADER, RequestTime
from oakum_service.schedulers.slurm.answers import ASK_EVERY_S
from oakum_service.schedulers.slurm.collector import Collector, PostError, PostRefused, StatePoster
from oakum_service.schedulers.slurm.reading.pushed_source import (
    PushedSource,
    decode_state,
    encode_state,
)
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState

NODE = SlurmNode("n1", "10.0.0.1", ("IDLE", "PLANNED"), ("main",), "gpu:4", ("ib",))
JOB = SlurmJob(7, "train", "ada", "main", ("RUNNING",), nodes="n1", num_nodes=1, start_at=900.0, end_at=math.inf)
UPKEEP = SlurmReservation("upkeep", "n[1-2]", 2000.0, math.inf, ("MAINT",))
STATE = SlurmState(1000.0, "22.05.8", (NODE,), (JOB,), (UPKEEP,))


def at(taken_at: float) -> SlurmState:
    return SlurmState(taken_at, "22.05.8", (NODE,), ())


def test_a_state_survives_the_way_whole() -> None:
    assert decode_state(encode_state(STATE), RequestTime(5000.0, 4000.0)) == STATE


def test_its_age_counts_and_not_the_senders_clock() -> None:
    assert decode_state(encode_state(at(9e9)), RequestTime(5000.0, 2.5)).taken_at == 4997.5
    assert decode_state(encode_state(at(3.0)), RequestTime(5000.0, 0.0)).taken_at == 5000.0


def test_without_an_age_a_state_is_never_newer_than_its_arrival() -> None:
    assert decode_state(encode_state(at(9e9)), RequestTime(5000.0, None)).taken_at == 5000.0
    assert decode_state(encode_state(at(4990.0)), RequestTime(5000.0, None)).taken_at == 4990.0


@each(
    ("body", "said"),
    [
        (b"", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"\xff", "cannot be read"),
        (encode_state(SlurmState(1.0, "", (), ())), "no nodes"),
        (encode_state(SlurmState(1.0, "", (SlurmNode("n1", "", ()),), ())), "node n1 no state"),
        (encode_state(SlurmState(1.0, "", (NODE,), (SlurmJob(7, "", "", "", ()),))), "job 7 no state"),
    ],
)
def test_what_is_no_state_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        decode_state(body, RequestTime(1.0, 0.0))


def test_the_newest_state_is_read_until_it_is_too_old() -> None:
    now = [1000.0]
    source = PushedSource(60.0, lambda: now[0])
    with pytest.raises(SchedulerError, match="no collector has posted"):
        source.read()
    source.take(at(1000.0))
    source.take(at(990.0))
    now[0] = 1060.0
    assert source.read().taken_at == 1000.0
    now[0] = 1061.0
    with pytest.raises(SchedulerError, match=r"61 s old, more than 60 s.*OAKUM_SLURM_PUSH_MAX_AGE_S"):
        source.read()


def test_a_collector_that_is_gone_is_told_of_within_half_a_minute_and_one_that_says_nothing_is_not() -> None:
    steady = [50.0]
    source = PushedSource(120.0, lambda: 1000.0, lambda: steady[0])
    source.ping()  # none has posted yet: reading says so
    source.take(msgspec.structs.replace(at(1000.0), next_s=10.6))
    steady[0] += 18.0
    source.ping()
    assert source.read().taken_at == 1000.0
    steady[0] += 29.0 - ASK_EVERY_S - 18.0
    told = r"posted nothing for 19 s, and meant to within 11 s: .*`oakum collect`"
    for ask in (source.ping, source.read):
        with pytest.raises(SchedulerError, match=told):
            ask()
    source.take(at(1000.0))
    steady[0] += 100.0
    source.ping()
    assert source.read().taken_at == 1000.0


def test_a_collector_says_when_it_posts_again_and_keeps_to_it() -> None:
    now, posted = [0.0], list[tuple[float, float | None]]()

    class Slow(FakeSource):
        def read(self) -> SlurmState:
            now[0] += 3.0 + self.reads  # each reading takes longer than the one before
            return super().read()

    def post(state: SlurmState, _: Callable[[], float]) -> None:
        posted.append((now[0], state.next_s))
        if len(posted) == 8:
            raise Enough

    def sleep(seconds: float) -> None:
        now[0] += seconds

    source = Slow(errors=[SchedulerError("no")], cycles=[1.0, 60.0, 60.0, 1.0])
    with pytest.raises(Enough):
        Collector(source, post, SlurmSettings(), sleep, lambda: now[0]).run()
    for (before, said_s), (after, _) in pairwise(posted):
        assert said_s is not None
        assert after - before <= said_s
    posted.clear()
    Collector(source, post, SlurmSettings(), sleep, lambda: now[0]).once()
    assert posted[0][1] is None


def test_a_clock_that_is_set_back_shuts_no_state_out() -> None:
    now = [1000.0]
    source = PushedSource(60.0, lambda: now[0])
    source.take(at(1000.0))
    now[0] = 500.0
    source.take(at(499.0))
    assert source.read().taken_at == 499.0


@dataclass
class FakeSource:
    """Gives states, or raises what it is told to."""

    errors: list[SchedulerError] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    reads: int = 0

    def read(self) -> SlurmState:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        return STATE

    def ping(self) -> None:
        """The collector does not ask."""

    def cycle_s(self) -> float | None:
        return self.cycles.pop(0) if self.cycles else None


class Enough(Exception):  # noqa: N818
    """Ends a collector that would go on."""


def run(source: FakeSource, failures: list[PostError | None], rounds: int) -> tuple[list[float], list[float]]:
    """Run the collector; returns the pauses between the rounds and the ages that were posted. The clock moves
    by the pauses alone."""
    now, pauses, ages = [0.0], list[float](), list[float]()

    def post(_: SlurmState, age_s: Callable[[], float]) -> None:
        ages.append(age_s())
        if failures and (failure := failures.pop(0)):
            raise failure

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds
        if len(pauses) == rounds:
            raise Enough

    settings = SlurmSettings(poll_floor_s=10.0, slow_cycle_s=5.0)
    with pytest.raises(Enough):
        Collector(source, post, settings, sleep, lambda: now[0]).run()
    return pauses, ages


def test_a_collector_posts_at_its_pace() -> None:
    assert run(FakeSource(), [], 3) == ([10.0, 10.0, 10.0], [0.0, 0.0, 0.0])


def test_a_slow_slurm_is_asked_less_often() -> None:
    assert run(FakeSource(cycles=[9.0, 9.0, 1.0]), [], 3)[0] == [20.0, 40.0, 10.0]


def test_a_slurm_that_fails_is_asked_less_often_and_nothing_is_posted() -> None:
    source = FakeSource(errors=[SchedulerError("down"), SchedulerError("down")])
    pauses, ages = run(source, [], 3)
    assert (pauses, len(ages), source.reads) == ([20.0, 40.0, 10.0], 1, 3)


def test_the_service_is_told_at_once_that_slurm_does_not_answer_the_collector() -> None:
    """And again that it does; without that a silence is told when the last state is too old."""
    now, source, pushed = [1000.0], FakeSource(), PushedSource(120.0, lambda: now[0])
    heard: list[str] = []

    def post(state: SlurmState, age_s: Callable[[], float]) -> None:
        pushed.take(decode_state(encode_state(state), RequestTime(now[0], age_s())))
        try:
            heard.append(str(pushed.read().taken_at))
        except SchedulerError as error:
            heard.append(str(error))

    def sleep(seconds: float) -> None:
        now[0] += seconds
        source.errors = [SchedulerError("squeue: timed out")] if len(heard) in (1, 2) else []
        if len(heard) == 4:
            raise Enough

    with pytest.raises(Enough):
        Collector(source, post, SlurmSettings(), sleep, lambda: now[0]).run()
    silent = "the collector cannot read Slurm's state: squeue: timed out"
    assert heard == ["1000.0", silent, silent, "1070.0"]


def test_a_service_that_is_away_is_tried_less_often_with_a_new_state_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = FakeSource()
    failures: list[PostError | None] = [PostError("away") for _ in range(7)]
    pauses, _ = run(source, failures, 8)
    assert pauses == [10.0, 10.0, 10.0, 10.0, 16.0, 32.0, 60.0, 10.0]
    assert source.reads == 8
    assert caplog.messages[-1] == "posting again: 1 nodes, 1 jobs"


def test_a_refusal_ends_the_collector() -> None:
    def refuse(_: SlurmState, __: Any) -> None:
        raise PostRefused("no")

    with pytest.raises(PostRefused):
        Collector(FakeSource(), refuse, SlurmSettings(), lambda _: None).run()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def poster(token_file: Path, answer: Callable[[httpx.Request], httpx.Response]) -> StatePoster:
    return StatePoster("http://head:8470/", token_file, httpx.MockTransport(answer))


def test_a_post_carries_the_state_its_age_and_the_newest_token(token_file: Path) -> None:
    seen: list[httpx.Request] = []

    def take(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    sender = poster(token_file, take)
    sender.post(STATE, lambda: 1.5)
    token_file.write_text("second")
    sender.post(STATE, lambda: 2.5)
    assert [str(request.url) for request in seen] == ["http://head:8470/v1/cluster/snapshots"] * 2
    assert [request.headers["Authorization"] for request in seen] == ["Bearer first", "Bearer second"]
    assert [request.headers[AGE_HEADER] for request in seen] == ["1.500000", "2.500000"]
    assert decode_state(seen[0].content, RequestTime(1001.5, 1.5)) == STATE


@pytest.mark.parametrize(
    ("status", "error"), [(401, PostRefused), (403, PostRefused), (409, PostRefused), (503, PostError)]
)
def test_what_the_service_says_is_passed_on(token_file: Path, status: int, error: type[PostError]) -> None:
    sender = poster(token_file, lambda _: httpx.Response(status, json={"detail": "because"}))
    with pytest.raises(PostError, match=f"status {status}: because") as caught:
        sender.post(STATE, lambda: 0.0)
    assert type(caught.value) is error
    assert "first" not in str(caught.value)


def test_a_service_that_is_away_is_named(token_file: Path) -> None:
    with pytest.raises(PostError, match=r"http://127\.0\.0\.1:1/v1/cluster/snapshots cannot be reached"):
        StatePoster("http://127.0.0.1:1", token_file).post(STATE, lambda: 0.0)


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb", "ü".encode(), b"\xff"])
def test_a_file_without_a_token_is_refused(token_file: Path, content: bytes) -> None:
    token_file.write_bytes(content)
    with pytest.raises(PostRefused, match="token"):
        poster(token_file, lambda _: httpx.Response(204)).post(STATE, lambda: 0.0)
    token_file.unlink()
    with pytest.raises(PostRefused, match="cannot be read"):
        poster(token_file, lambda _: httpx.Response(204)).post(STATE, lambda: 0.0)
