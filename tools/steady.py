"""Runs tests again and again on a busy machine and tells which of them ever failed: `make steady`.

    python tools/steady.py --times 3 -- -n 6 --dist loadgroup tests/crash

Runs them beside one endless loop, then beside as many as there are cores, `--times` times each. Nothing is run
twice within a run, so that a test is seen that hangs on how busy the machine is. The exit status is 1 if any
failed.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from recorded_run import run_recorded


def main(words: Sequence[str]) -> int:
    """Run the tests that the words ask for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="runs beside each number of loops (default: 3)")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest, after --")
    asked = parser.parse_args(words)
    if asked.times < 1:
        parser.error(f"--times has to be at least 1, not {asked.times}")
    failed: Counter[str] = Counter()
    broken = 0
    loops = sorted({1, os.cpu_count() or 1})
    for number in loops:
        for turn in range(1, asked.times + 1):
            began_s = time.monotonic()
            with _busy(number):
                status, outcomes = run_recorded(asked.arguments)
            if status not in (0, 1) or (status == 1 and not outcomes.failures):
                broken += 1
            failed.update(outcomes.failures.keys())
            print(
                f"\nsteady: run {turn} of {asked.times} beside {number} endless loops ended with status {status} "
                f"after {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
            if status == 2:  # interrupted
                return status
    runs = len(loops) * asked.times
    for name, times in failed.most_common():
        print(f"steady: failed in {times} of {runs} runs: {name}")
    print(f"steady: {len(failed)} tests failed in any of {runs} runs, {broken} runs could not be judged")
    return 1 if failed or broken else 0


@contextlib.contextmanager
def _busy(number: int) -> Iterator[None]:
    """Keep so many endless loops running meanwhile."""
    fork = multiprocessing.get_context("fork")  # a fork server's child is no child of this process
    loops = [fork.Process(target=_loop, args=(os.getpid(),), daemon=True) for _ in range(number)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _loop(parent: int) -> None:
    while os.getppid() == parent:  # a killed parent ends no child
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
