"""When a rank is taken for hung."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from counting_rounds import counting_task, spec_fields
from gathering_tasks import build_gathering_task
from oakum_worker.fragment import rank_handle
from oakum_worker.gathering import Gathering, gather_batch
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.rank import step_clock
from oakum_worker.rank.step_clock import StepClock, Vigil, waits_for_others
from oakum_worker.rank.threads import give_signs_of_life
from oakum_worker.step.training_loop import TrainingLoop
from pipeline_ranks import meeting_at
from training_ranks import build_spec

DEADLINE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(rank_handle, "time", fake)
    monkeypatch.setattr(step_clock, "time", fake)
    return fake


def silent_for(clock: Clock, seconds: float, cpu_per_s: float) -> list[bool]:
    """Whether a rank counts as hung during a silence of this length, asked every half second; it computes
    meanwhile or not."""
    pulse, began_s = rank_handle._Pulse(), clock.now_s
    answers = []
    while clock.now_s - began_s < seconds:
        answers.append(pulse.stopped(5.0, cpu_s=7.0 + cpu_per_s * (clock.now_s - began_s)))
        clock.now_s += 0.5
    return answers


def test_a_silent_process_that_does_nothing_hangs_after_the_timeout(clock: Clock) -> None:
    assert silent_for(clock, 6.0, cpu_per_s=0.0) == [False] * 10 + [True] * 2


def test_a_silent_process_that_computes_is_busy(clock: Clock) -> None:
    assert not any(silent_for(clock, 60.0, cpu_per_s=0.5))


def test_a_sign_of_life_begins_the_count_anew(clock: Clock) -> None:
    pulse = rank_handle._Pulse()
    for _ in range(20):
        clock.now_s += 4.9
        assert not pulse.stopped(5.0, cpu_s=0.0)
        pulse.beat()


def time_until_hung(clock: Clock, waits: str, limit_s: float) -> float | None:
    """After which time of a step it is too long; `waits` has a `w` for each second that others hold it up."""
    began_s = clock.now_s
    seconds = iter(waits)
    step = StepClock(lambda: began_s, lambda: next(seconds) == "w")
    for _ in waits:
        clock.now_s += 1.0
        if step.exceeds(limit_s):
            return clock.now_s - began_s
    return None


def test_a_step_hangs_by_the_time_that_it_does_not_wait_for_others(clock: Clock) -> None:
    assert time_until_hung(clock, "ooooooo", 5.0) == 6.0
    assert time_until_hung(clock, "wwwwwwwwwwwww", 5.0) is None
    assert time_until_hung(clock, "oowwwwwwwoooooo", 5.0) == 13.0
    assert time_until_hung(clock, "owowowowowow", 5.0) == 11.0


def test_a_wait_that_nothing_ends_hangs_as_well(clock: Clock) -> None:
    assert time_until_hung(clock, "w" * 60, 5.0) == 51.0


def test_each_step_is_counted_anew_and_none_between_steps(clock: Clock) -> None:
    looks = [  # at which time, the step that runs, whether others hold it up
        (103.0, 100.0, True),
        (104.0, None, False),
        (107.0, 105.0, False),
        (110.0, 105.0, False),
        (110.5, 105.0, False),
    ]
    steps, waits = (
        iter(column) for column in ([look[1] for look in looks], [look[2] for look in looks if look[1]])
    )
    step = StepClock(lambda: next(steps), lambda: next(waits))
    answers = []
    for clock.now_s, _, _ in looks:
        answers.append(step.exceeds(5.0))
    assert answers == [False] * 4 + [True]


def test_what_lasts_is_seen_by_all_samples_of_its_time(clock: Clock) -> None:
    samples = iter("yyyynyyyyyyy")
    vigil = Vigil(lambda: next(samples) == "y")
    answers = []
    for _ in range(12):
        clock.now_s += 1.0
        answers.append(vigil.lasts(5.0))
    assert answers == [False] * 10 + [True] * 2


def as_if_of_torch(source: str, folder: str = "") -> dict[str, Any]:
    """The names that this source defines, as if it were part of torch's code for collectives."""
    names: dict[str, Any] = {}
    exec(compile(source, f"{dist.__path__[0]}/{folder}made_up.py", "exec"), names)
    return names


def seen_while(run: Any) -> bool:
    """Whether the main thread is seen to wait while it is in `run(entered, left)`."""
    entered, left, seen = SimpleQueue[None](), SimpleQueue[None](), SimpleQueue[bool]()

    def look() -> None:
        entered.get()
        seen.put(waits_for_others())
        left.put(None)

    threading.Thread(target=look).start()
    run(entered, left)
    return seen.get()


def test_a_thread_waits_where_the_innermost_code_is_that_of_collectives() -> None:
    def meet(entered: SimpleQueue[None], left: SimpleQueue[None]) -> None:
        entered.put(None)
        left.get()

    source = "def run(entered, left):\n    entered.put(None)\n    left.get()"
    collective, checkpoint = (as_if_of_torch(source, folder)["run"] for folder in ("", "checkpoint/"))
    around_the_task = as_if_of_torch("def call(inner, entered, left):\n    inner(entered, left)")["call"]
    assert seen_while(collective)
    assert not seen_while(checkpoint)
    assert not seen_while(meet)
    assert not seen_while(lambda entered, left: around_the_task(meet, entered, left))


def test_a_rank_that_waits_on_when_its_generation_is_over_says_that_it_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits in code of torch's, which does not ask whether a message can still arrive."""
    monkeypatch.setattr("oakum_worker.rank.threads._LEAVE_S", 0.0)
    news, task_clock, group, reporter = (Mock() for _ in range(4))
    task_clock.computing_since_s = None
    told: SimpleQueue[str] = SimpleQueue()
    news.send.side_effect = lambda hangs=False, warning="", **_: told.put(warning) if hangs else None
    group.is_aborting = False
    wait = as_if_of_torch("def wait(told, timeout):\n    return told.get(timeout=timeout)")["wait"]
    pulse = (news, task_clock, group, reporter, 3600.0)
    threading.Thread(target=give_signs_of_life, args=pulse, daemon=True).start()
    assert wait(told, DEADLINE_S) == "it still waited for lost ranks after 0 s"


def test_a_rank_whose_collectives_are_not_ended_by_their_abort_says_that_it_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver of a GPU may wait for ever; no thread then stands where ranks wait for others."""
    monkeypatch.setattr("oakum_worker.rank.threads._LEAVE_S", 0.0)
    news, task_clock, group, reporter = (Mock() for _ in range(4))
    task_clock.computing_since_s = None
    group.is_aborting = True
    give_signs_of_life(news, task_clock, group, reporter, 3600.0)
    news.send.assert_called_once_with(hangs=True, warning="it still waited for lost ranks after 0 s")


def test_a_rank_that_gathers_a_batch_waits_for_the_others() -> None:
    """Forward and backward: for each, another rank comes only when this one has been seen to wait."""
    groups, seen, task = dict[int, Any](), list[bool](), build_gathering_task()
    met = threading.Barrier(2)
    store = dist.HashStore()

    def gather(rank: int, wait: Callable[[], None]) -> None:
        groups[rank] = meeting_at(store, rank).form("pair", [0, 1])
        gathering = Gathering(task, build_spec())
        gathering.join(groups[rank], rank, None)
        with gathering.of(2, Chunk(range(rank, rank + 1), 1)):
            met.wait()
            wait()
            gathered = gather_batch(torch.ones(1, requires_grad=True))
            met.wait()
            wait()
            gathered.sum().backward()

    def come_late() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (waits := waits_for_others()) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        seen.append(waits)

    late = threading.Thread(target=gather, args=(1, come_late))
    late.start()
    gather(0, lambda: None)
    late.join()
    assert seen == [True, True]


def test_a_mapper_that_has_begun_a_round_waits_for_the_others() -> None:
    """And one that has mapped its blocks."""
    store, seen = dist.HashStore(), list[bool]()

    def train(rank: int, wait: Callable[[], None]) -> None:
        loop = TrainingLoop(counting_task(lambda _state, _block: wait()), build_spec(**spec_fields()))
        loop.join(meeting_at(store, rank).form("pair", [0, 1]), rank, 2)
        if rank:
            wait()
        loop.step()

    def come_late() -> None:
        if len(seen) < 2:
            deadline_s = time.monotonic() + DEADLINE_S
            while not (waits := waits_for_others()) and time.monotonic() < deadline_s:
                time.sleep(0.005)
            seen.append(waits)

    late = threading.Thread(target=train, args=(1, come_late))
    late.start()
    train(0, lambda: None)
    late.join()
    assert seen == [True, True]


def test_a_rank_that_is_early_at_a_subgroup_waits_for_the_others() -> None:
    store, timeout = dist.HashStore(), timedelta(seconds=DEADLINE_S)
    seen: list[bool] = []
    formed: list[object] = []  # kept until both have connected

    def come_late() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (waits := waits_for_others()) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        seen.append(waits)
        formed.append(StoreSubgroups(store, 1, timeout).form("pair", [0, 1]))

    late = threading.Thread(target=come_late)
    late.start()
    formed.append(StoreSubgroups(store, 0, timeout).form("pair", [0, 1]))
    late.join()
    assert seen == [True]
