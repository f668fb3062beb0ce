"""How often Slurm is asked."""

from __future__ import annotations

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.read_pace import ReadPace

SETTINGS = SlurmSettings(poll_floor_s=10.0, hook_floor_s=2.0, slow_cycle_s=5.0)


@pytest.fixture
def pace() -> ReadPace:
    return ReadPace(SETTINGS)


def test_the_first_read_is_at_once(pace: ReadPace) -> None:
    assert pace.next_at(100.0, hinted=False) == 100.0


def test_reads_keep_the_floor_and_a_hint_shortens_it(pace: ReadPace) -> None:
    pace.took(99.0, 100.0, 0.1)
    assert (pace.next_at(100.0, hinted=False), pace.next_at(100.0, hinted=True)) == (110.0, 102.0)
    assert pace.next_at(150.0, hinted=False) == 150.0


def test_a_slow_scheduler_is_asked_half_as_often_each_time_up_to_a_bound(pace: ReadPace) -> None:
    waits = []
    for _ in range(5):
        pace.took(100.0, 100.0, 6.0)
        waits.append((pace.next_at(100.0, hinted=False) - 100.0, pace.next_at(100.0, hinted=True) - 100.0))
    assert waits == [(20.0, 4.0), (40.0, 8.0), (80.0, 16.0), (80.0, 16.0), (80.0, 16.0)]


def test_failed_reads_grow_rarer_and_one_that_works_ends_that(pace: ReadPace) -> None:
    pace.failed(100.0)
    pace.failed(200.0)
    assert pace.next_at(200.0, hinted=False) == 240.0
    pace.took(240.0, 241.0, 1.0)
    assert pace.next_at(241.0, hinted=False) == 251.0


def test_an_unknown_cycle_is_no_slow_one(pace: ReadPace) -> None:
    pace.took(100.0, 100.0, None)
    assert pace.next_at(100.0, hinted=False) == 110.0


def test_reading_never_takes_more_than_half_of_the_time(pace: ReadPace) -> None:
    pace.took(100.0, 130.0, 1.0)
    assert pace.next_at(130.0, hinted=True) == 160.0


def test_a_clock_that_is_set_back_stops_nothing(pace: ReadPace) -> None:
    pace.took(100.0, 101.0, 1.0)
    assert pace.next_at(50.0, hinted=False) == 50.0


def test_a_hint_never_makes_reads_rarer() -> None:
    pace = ReadPace(SlurmSettings(poll_floor_s=1.0, hook_floor_s=2.0))
    pace.took(100.0, 100.0, 0.0)
    assert pace.next_at(100.0, hinted=True) == 101.0
