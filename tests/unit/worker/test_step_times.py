"""What a step's time goes into, and that it is told while the step still runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from oakum_worker.channel import News, NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import GroupError
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.protocol import Generation, Pace
from oakum_worker.rank.reporter import ProgressReporter
from oakum_worker.rank.threads import give_signs_of_life
from oakum_worker.step.step_times import StepTimes, StepUse
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import Points, build_loop, step_together
from waiting import DEADLINE_S, wait_until


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_is_told_by_what_it_goes_into(clock: Clock) -> None:
    times = StepTimes(clock)
    clock.now_s += 100.0  # between steps
    assert times.pace() is None
    for _ in range(2):
        with times.step():
            with times.reading():
                clock.now_s += 3.0
            clock.now_s += 0.5
            with times.waiting():
                clock.now_s += 1.5
        clock.now_s += 7.0
    assert times.pace() == Pace(steps=2, seconds=10.0, reading_s=6.0, waiting_s=3.0)


def test_a_step_that_runs_counts_with_what_it_has_taken_so_far(clock: Clock) -> None:
    times = StepTimes(clock)
    with times.step(), times.reading():
        clock.now_s += 40.0
        assert times.pace() == Pace(steps=0, seconds=40.0, reading_s=40.0, waiting_s=0.0)
        clock.now_s += 40.0
        assert times.pace() == Pace(steps=0, seconds=80.0, reading_s=80.0, waiting_s=0.0)


def test_the_pace_is_that_of_the_last_seconds(clock: Clock) -> None:
    times = StepTimes(clock)
    with times.step(), times.reading():
        clock.now_s += 12.0
    assert times.pace() == Pace(steps=1, seconds=12.0, reading_s=12.0, waiting_s=0.0)
    with times.step():
        clock.now_s += 2.0
    assert times.pace() == Pace(steps=1, seconds=2.0, reading_s=0.0, waiting_s=0.0)


def test_a_step_that_is_not_taken_is_no_step(clock: Clock) -> None:
    times = StepTimes(clock)

    def read_in_vain() -> None:
        clock.now_s += 1.0
        raise GroupError("a rank is gone")

    with pytest.raises(GroupError), times.step(), times.reading():
        read_in_vain()
    assert times.pace() == Pace(steps=0, seconds=1.0, reading_s=1.0, waiting_s=0.0)


def test_reading_outside_a_step_is_none_of_its_time(clock: Clock) -> None:
    times = StepTimes(clock)
    with times.reading():
        clock.now_s += 5.0
    assert times.pace() is None


def test_where_ranks_wait_in_mid_pass_waiting_is_not_told(clock: Clock) -> None:
    times = StepTimes(clock)
    times.tells_waiting = False
    with times.step(), times.waiting():
        clock.now_s += 5.0
    assert times.pace() == Pace(steps=1, seconds=5.0, reading_s=0.0, waiting_s=None)


class GatedPoints(Points):
    """A data set that can be read only while the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = threading.Event()
        self.gate = threading.Event()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_read.set()
        assert self.gate.wait(DEADLINE_S)
        return super().__getitem__(index)


def test_a_first_step_that_waits_for_its_data_is_told_of_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oakum_worker.rank.reporter._PACE_S", 0.0)
    monkeypatch.setattr("oakum_worker.rank.threads._PULSE_S", 0.01)
    points = GatedPoints()
    loop = build_loop(dataset=points)
    reading, writing = os.pipe()
    news = NewsWriter(writing)
    reporter = ProgressReporter(news, loop, DurableCheckpoints(Path("/nowhere"), keep=1))
    reporter.enter(Generation(number=1, members=()), 0)
    training = threading.Thread(target=loop.step)
    pulse = (news, loop.clock, GenerationGroup("127.0.0.1"), reporter, 3600.0)
    threading.Thread(target=give_signs_of_life, args=pulse, daemon=True).start()
    training.start()
    try:
        assert points.is_read.wait(DEADLINE_S)
        with os.fdopen(reading) as pipe:
            told = (News.model_validate_json(line).pace for line in pipe)
            pace = next(pace for pace in told if pace is not None and pace.reading_s > 0.9 * pace.seconds)
        assert (pace.steps, loop.step_count) == (0, 0)
    finally:
        points.gate.set()
        training.join(DEADLINE_S)


def test_other_ranks_than_the_first_tell_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oakum_worker.rank.reporter._PACE_S", 0.0)
    loop = build_loop()
    news = NewsWriter(os.open(os.devnull, os.O_WRONLY))
    reporter = ProgressReporter(news, loop, DurableCheckpoints(Path("/nowhere"), keep=1))
    told = []
    for rank in (1, 0):
        reporter.enter(Generation(number=1 + rank, members=()), rank)
        loop.step()
        told.append(reporter.new_pace() is not None)
    assert told == [False, True]


def test_every_evaluation_between_two_reports_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oakum_worker.rank.reporter._EVALUATIONS", 3)
    loop = build_loop()
    reading, writing = os.pipe()
    reporter = ProgressReporter(NewsWriter(writing), loop, DurableCheckpoints(Path("/nowhere"), keep=1))
    reporter.enter(Generation(number=1, members=()), 0)
    for value in (0.1, 0.2):
        loop.step()
        reporter.evaluated({"accuracy": value})
    reporter.evaluated({})  # of a task without metrics
    reporter.flush()
    with os.fdopen(reading) as pipe:
        progress = News.model_validate_json(pipe.readline()).progress
    assert progress is not None
    told = [(each.step, each.metrics) for each in progress.evaluations]
    assert told == [(1, {"accuracy": 0.1}), (2, {"accuracy": 0.2})]


class LateReader(Points):
    """A data set that is read only when the other rank has nothing left to do but wait."""

    other: TrainingLoop

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        wait_until("the other rank waits", lambda: self.other.times._spent.use is StepUse.WAITING)
        return super().__getitem__(index)


def test_a_rank_that_waits_for_a_slower_one_tells_so() -> None:
    late = LateReader()
    loops = [build_loop(), build_loop(dataset=late)]
    late.other = loops[0]
    step_together(loops, 1)
    pace = loops[0].times.pace()
    assert pace is not None
    assert pace.waiting_s is not None
    assert pace.waiting_s > 0


def test_a_loop_tells_reading_and_collating_from_computing() -> None:
    clock = Clock()

    class Slow(Points):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            clock.now_s += 5.0
            return super().__getitem__(index)

    loop = build_loop(dataset=Slow())
    loop.times.__init__(clock)  # type: ignore[misc]
    loop.step()
    pace = loop.times.pace()
    assert pace is not None
    assert (pace.reading_s, pace.seconds) == (40.0, 40.0)
