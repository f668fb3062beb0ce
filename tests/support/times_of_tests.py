"""Tells at the end of a run where its time went: each tier's tests, and those that took longest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from processor_time import cost_of
from recorded_run import without_group

MOST_SHOWN = 10


@dataclass
class Spent:
    """What a test, or the tests of a tier, took."""

    num_tests: int = 0
    duration_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Spent) -> None:
        """Count the other's, too."""
        self.num_tests += other.num_tests
        self.duration_s += other.duration_s
        self.cpu_s += other.cpu_s


def lines_about(reports: Iterable[pytest.TestReport], cpu_s: float | None = None) -> Iterator[str]:
    """A line for each tier with its number of tests, their CPU seconds and their test time, then the tests that
    took longest, in CPU time where that is known.

    Test time is what setup, call and teardown of the tests take together. With several workers it is longer than
    the run. `cpu_s` is the CPU seconds of the whole run: what tests have not taken is a line of its own.
    """
    tests: defaultdict[str, Spent] = defaultdict(lambda: Spent(1))
    for report in reports:
        tests[without_group(report.nodeid)].add(Spent(0, report.duration, cost_of(report)))
    tiers: defaultdict[str, Spent] = defaultdict(Spent)
    for name, spent in tests.items():
        tiers[_tier_of(name)].add(spent)
    yield "   CPU-s  test time/s  tests"
    for tier, spent in sorted(tiers.items(), key=lambda each: _weight(each[1])):
        yield f"{spent.cpu_s:8.1f}  {spent.duration_s:11.1f}  {spent.num_tests:5}  {tier}"
    if cpu_s is not None:
        rest_s = cpu_s - sum(spent.cpu_s for spent in tiers.values())
        yield f"{rest_s:8.1f}                      starting, collecting, handing out"
        yield f"{cpu_s:8.1f}                      in all"
    for name, spent in sorted(tests.items(), key=lambda each: _weight(each[1]))[:MOST_SHOWN]:
        yield f"{spent.cpu_s:8.1f}  {spent.duration_s:11.1f}         {name}"


def _weight(spent: Spent) -> tuple[float, float]:
    return -spent.cpu_s, -spent.duration_s


def _tier_of(name: str) -> str:
    """`tests/unit/worker` or `tests/crash`: unit tests are told apart by package."""
    folders = name.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:3]) or name
