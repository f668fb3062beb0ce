"""What all tests have in common: nothing inherited decides whether they pass, and long ones begin first."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pluggy
import pytest
from hypothesis import HealthCheck, settings

from abandoned_runs import clear_away
from inherited_state import drop_options_of_pytest, replace_inherited_state
from last_lines import last_lines
from logs_of_failures import LINES_OF_CAPTURED, last_lines_of_logs
from needs import fail_if_required, required, skip_without_needs
from processor_time import CostOfTests
from replaced_workers import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from same_examples import ignore_constants_of_modules
from times_of_tests import lines_about

replace_inherited_state()
_COST = CostOfTests()
_cost_s: float | None = None
"""CPU seconds of this process and all that it has started, once the run has ended."""

# What an example takes is no property of the code: on a busy machine any may take long.
# On a CI machine Hypothesis has a profile of its own, which would make the soak's examples the same each time.
settings.register_profile(
    "soak",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=2000,
    derandomize=False,
)
# The same examples in each run: what is random is found by the soak, and does not fail a run that changed nothing.
settings.register_profile("tests", settings.get_profile("soak"), max_examples=50, derandomize=True)
settings.load_profile("tests")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Clear away what killed runs have left, and say so; a worker leaves that to the process that started it."""
    ignore_constants_of_modules()
    if hasattr(session.config, "workerinput"):
        return
    for line in clear_away():
        print(line, flush=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the million objects that imports and collection have made from garbage collection, and collect
    less often. Collection took a fifth of the tests' CPU time."""
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    _COST.begin()


_MANY_THREADS = 24
_num_kept = 0
"""Threads that the last collection has left."""


def pytest_runtest_logfinish() -> None:
    """After each test, collect garbage if this process has many threads more than the last collection has left.

    Tests that run ranks as threads leave process groups behind that only garbage collection frees. Each group has
    threads that look for messages ten times a second; together they took a twelfth of the tests' CPU time. A
    collection takes up to two seconds where a process has run many tests.
    """
    global _num_kept
    if _num_threads() > _num_kept + _MANY_THREADS:
        gc.collect()
        _num_kept = _num_threads()


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


_WORTH_TELLING_S = 30.0
_BEGIN_FIRST = (
    "slurm service",
    "documentation",
    "shared service",
    "browser",
    "slurm",
    "shared service of crashes",
    "exactness",
    "slurm cluster",
    "unix accounts",
    "neighbouring versions",
    "stack of machines",
    "postgres",
)
"""Groups of tests that one worker runs in a row: the longest first, so that no worker is left with one alone, and
those that mostly wait for Slurm between others."""
_WAITING_TIERS = ("integration", "crash")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several workers, begin with long groups, go on with tests that wait for processes, end with short tests.

    The order within a group, and without workers that of all tests, stays as it is.
    """
    drop_options_of_pytest()
    if hasattr(config, "workerinput"):
        items.sort(key=_place_in_run)


def _place_in_run(item: pytest.Item) -> int:
    group = next((marker.args[0] for marker in item.iter_markers("xdist_group")), None)
    if group in _BEGIN_FIRST:
        return _BEGIN_FIRST.index(group)
    tier = item.path.relative_to(Path(__file__).parent).parts[0]
    return len(_BEGIN_FIRST) + (tier not in _WAITING_TIERS)


def pytest_configure() -> None:
    """Refuse names in `OAKUM_TEST_REQUIRE` that nothing has."""
    required()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks `needs` name what is not installed."""
    skip_without_needs(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, pluggy.Result[pytest.CollectReport]]:
    """Have the skip of a whole file be a failure if it is one for a test."""
    outcome = yield
    fail_if_required(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pluggy.Result[pytest.TestReport]]:
    """Keep a failure's report short, and have it tell what the processes that the test started have logged."""
    outcome = yield
    report = outcome.get_result()
    fail_if_required(report)
    if report.when == "teardown":
        _COST.charge(report)
    if not report.failed:
        return
    report.sections = [(title, last_lines(text, LINES_OF_CAPTURED)) for title, text in report.sections]
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if isinstance(folder, Path):
        report.sections.extend(last_lines_of_logs(folder))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Note what the run has cost; where there are workers, the process that has started them tells it."""
    global _cost_s
    _cost_s = _COST.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell where the run's time went, if it was long enough to be asked."""
    reports = [
        each
        for reports in terminalreporter.stats.values()
        for each in reports
        if isinstance(each, pytest.TestReport)
    ]
    if sum(report.duration for report in reports) > _WORTH_TELLING_S:
        terminalreporter.section("test time")
        for line in lines_about(reports, _cost_s):
            terminalreporter.write_line(line)
