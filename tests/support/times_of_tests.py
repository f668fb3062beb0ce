"""Tells at the end of a run where its time went: each tier's tests, and those that took longest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from recorded_run import without_group

MOST_SHOWN = 10


def lines_about(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """A line for each tier with its number of tests and seconds of test time, then the longest tests.

    Test time is what setup, call and teardown of the tests take together. With several workers it is longer than
    the run.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        seconds[without_group(report.nodeid)] += report.duration
    tiers: defaultdict[str, list[float]] = defaultdict(list)
    for name, duration_s in seconds.items():
        tiers[_tier_of(name)].append(duration_s)
    for tier, durations_s in sorted(tiers.items(), key=lambda each: -sum(each[1])):
        yield f"{sum(durations_s):8.1f} s in {len(durations_s):5} tests of {tier}"
    longest = sorted(seconds.items(), key=lambda each: -each[1])[:MOST_SHOWN]
    for name, duration_s in longest:
        yield f"{duration_s:8.1f} s {name}"


def _tier_of(name: str) -> str:
    """`tests/unit/worker` or `tests/crash`: unit tests are told apart by package."""
    folders = name.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:3]) or name
