"""When a rank is taken for hung."""

from __future__ import annotations

import pytest

from oakum_worker import rank_handle


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(rank_handle, "time", fake)
    return fake


def silent_for(clock: Clock, seconds: float, cpu_per_s: float) -> list[bool]:
    """Whether it is taken for hung, asked each half second of a silence; it computes meanwhile or not."""
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
