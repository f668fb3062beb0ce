"""Previews and dry runs leave the processor to the controller's turns."""

from __future__ import annotations

import threading

import pytest

from oakum_service.api.trial_plans import TrialPlans
from oakum_service.errors import Busy


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_plan_leaves_as_much_time_to_others_as_it_took() -> None:
    clock = Clock()
    plans = TrialPlans(5.0, clock, clock.pass_s)
    with plans.one():
        clock.pass_s(3.0)
    with plans.one():
        assert clock.now_s == 106.0
        clock.pass_s(6.0)
    with pytest.raises(Busy, match="ask again in a moment"), plans.one():
        pass
    clock.pass_s(2.0)
    with plans.one():
        assert clock.now_s == 118.0


def test_one_plan_is_made_at_a_time_and_an_error_frees_the_place() -> None:
    clock = Clock()
    plans = TrialPlans(0.05, clock, clock.pass_s)
    refused = []

    def ask() -> None:
        with pytest.raises(Busy), plans.one():
            pass
        refused.append(True)

    def fail() -> None:
        with plans.one():
            other = threading.Thread(target=ask)
            other.start()
            other.join(10.0)
            raise KeyError

    for times in (1, 2):
        with pytest.raises(KeyError):
            fail()
        assert refused == [True] * times
