"""Runs pytest, and runs what failed once more, alone: `python tools/second_look.py PYTEST_ARGUMENTS`.

A test that fails beside many others and passes alone hangs on how busy the machine is. It is a defect, told as
*unsteady* by name and with its first failure, here and in `unsteady-tests.log`, but it does not fail the run.
What fails twice does, and so does a first run that has not reached all tests (`-x`). More than ten failures, an
error while tests are collected and a run that was interrupted get no second look. Nor does a test that was charged
with the failure of a thread: it fails the run.

The second look is a pytest process of its own, so that it makes session fixtures anew, without workers and with
a cache of its own, from which `--last-failed` can choose nothing. Otherwise it has the first run's arguments: with
other warnings, examples or marks a test may pass for another reason than that it runs alone. Every test that it
was asked to run has to be seen passing. One that is skipped or ends the process has failed twice; one that is not
collected or not reached is told as such. Both fail the run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import pytest

from last_lines import last_lines
from recorded_run import Outcomes, run_recorded

MOST_FAILURES = 10
"""More than these are no chance events, and looking at them again would take long."""
LONGEST_RUN_S = 7200.0
"""A first run that takes longer hangs, be it in a test or at its end, and is ended; it has failed."""
LONGEST_LOOK_S = 900.0
"""What a second look has not reached by then fails the run."""
LOG = Path("unsteady-tests.log")
_ALONE = ["-n", "0", "--maxfail", "0", "--continue-on-collection-errors", "--junitxml="]
"""After the first run's arguments: without workers, to the end, and without replacing the first run's report."""
_OF_ANY_TEST = "PytestUnhandledThreadExceptionWarning", "PytestUnraisableExceptionWarning"
"""pytest charges what goes wrong in a thread or a destructor to the test that it is at when it hears of it."""
_SHOWN_LINES = 60


class Verdict(StrEnum):
    """What a second look says of a test that has failed once."""

    UNSTEADY = "UNSTEADY"
    FAILED_TWICE = "FAILED TWICE"
    FAILED = "FAILED"
    """Not looked at again: passing alone would prove nothing."""
    NOT_REACHED = "NOT REACHED"
    """Not collected, or pytest was ended before or amid it."""


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments, then what failed; returns the status to end with."""
    status, first = run_recorded(arguments, LONGEST_RUN_S)
    if status != pytest.ExitCode.TESTS_FAILED or not first.failures:
        return status
    if first.collection_errors:
        _tell("No second look: some tests could not be collected.")
        return status
    if first.num_collected is None:
        _tell("No second look: a test has ended pytest.")
        return status
    if len(first.failures) > MOST_FAILURES:
        _tell(f"No second look at {len(first.failures)} failures: more than {MOST_FAILURES}.")
        return status
    charged = [name for name, told in first.failures.items() if any(warning in told for warning in _OF_ANY_TEST)]
    asked = [name for name in first.failures if name not in charged]
    if asked:
        _tell(f"A second look at {_tests(len(asked))}, one after the other, nothing else running")
    verdicts, is_interrupted = look_again(arguments, asked)
    verdicts |= dict.fromkeys(charged, Verdict.FAILED)
    _tell_verdicts(verdicts, first)
    num_missed = first.num_collected - len(first.ended)
    if num_missed:
        _tell(f"{num_missed} of {_tests(first.num_collected)} were not reached in the first run.")
    if is_interrupted:
        _tell("Interrupted.")
        return pytest.ExitCode.INTERRUPTED
    is_passed = not num_missed and set(verdicts.values()) == {Verdict.UNSTEADY}
    return pytest.ExitCode.OK if is_passed else pytest.ExitCode.TESTS_FAILED


def look_again(arguments: Sequence[str], names: Sequence[str]) -> tuple[dict[str, Verdict], bool]:
    """Run the named tests again; returns what is to be said of each, and whether Ctrl-C has ended it.

    A test that ends the process has failed, and those after it are run in a further one.
    """
    end_s = time.monotonic() + LONGEST_LOOK_S
    verdicts = dict.fromkeys(names, Verdict.NOT_REACHED)
    rest = list(names)
    while rest:
        with tempfile.TemporaryDirectory(prefix="second-look-") as cache:
            alone = [*arguments, *_ALONE, "-o", f"cache_dir={cache}"]
            status, seen = run_recorded(alone, end_s - time.monotonic(), rest)
        is_cut_short = status == pytest.ExitCode.INTERRUPTED
        for name in seen.begun:
            if name in seen.passed:
                verdicts[name] = Verdict.UNSTEADY
            elif name in seen.ended or not is_cut_short:
                verdicts[name] = Verdict.FAILED_TWICE
        if is_cut_short or not seen.begun:
            return verdicts, is_cut_short and time.monotonic() < end_s
        rest = [name for name in rest if name not in seen.begun]
    return verdicts, False


def _tell_verdicts(verdicts: dict[str, Verdict], first: Outcomes) -> None:
    unsteady = {name: first.failures[name] for name, verdict in verdicts.items() if verdict is Verdict.UNSTEADY}
    for name, failure in unsteady.items():
        _tell(f"{Verdict.UNSTEADY} {name}", last_lines(failure, _SHOWN_LINES))
    _keep(unsteady)
    for name, verdict in verdicts.items():
        if verdict is Verdict.FAILED:
            _tell(f"{verdict} {name}", "What failed in a thread or a destructor may be an earlier test's.")
        elif verdict is not Verdict.UNSTEADY:
            _tell(f"{verdict} {name}")
    numbers = Counter(verdicts.values())
    told = [f"{numbers[verdict]} {verdict.lower()}" for verdict in Verdict]
    _tell(", ".join([f"{len(first.passed)} passed", *told]))


def _keep(unsteady: dict[str, str]) -> None:
    if not unsteady:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with LOG.open("a") as log:
        for name, failure in unsteady.items():
            log.write(f"{now} {name}\n{failure}\n\n")


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


def _tell(*lines: str) -> None:
    print("\nsecond look: " + "\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
