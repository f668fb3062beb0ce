"""What a test has cost: the processor time of this process and of all that it has started, still running or not.

The kernel counts it by control group. Each process of the tests enters a group of its own, and what it starts is
born into it. Where no group can be made, for want of rights, nothing is told.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

COST = "cpu_s"
"""Name of the property of a test's last report that holds its CPU seconds."""
_CGROUPS = Path("/sys/fs/cgroup")
_NAME = "oakum-tests-"


class ProcessorTime:
    """The CPU seconds that this process and its descendants have taken since this was made."""

    def __init__(self) -> None:
        self._group = _enter_group()

    def __bool__(self) -> bool:
        return self._group is not None

    def seconds(self) -> float:
        """CPU seconds until now."""
        assert self._group is not None
        if (nanoseconds := self._group / "cpuacct.usage").exists():
            return int(nanoseconds.read_text(encoding="ascii")) / 1e9
        told = (self._group / "cpu.stat").read_text(encoding="ascii").split()
        return int(told[told.index("usage_usec") + 1]) / 1e6

    def close(self) -> None:
        """Leave the group. It goes with the next run if something that was started is still ending in it."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
                self._group.rmdir()


def _enter_group() -> Path | None:
    """A new control group with this process in it, of version 1 or 2; None where none can be made."""
    for controller, above in _own_groups():
        for left in above.glob(f"{_NAME}*"):
            with contextlib.suppress(OSError):  # it is in use
                left.rmdir()
        group = above / f"{_NAME}{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        except OSError:
            continue
        if (group / ("cpuacct.usage" if controller else "cpu.stat")).exists():
            return group
    return None


def _own_groups() -> list[tuple[str, Path]]:
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                if name in ("", "cpuacct"):
                    found.append((name, _CGROUPS / name / path.strip("/")))
    return found


class CostOfTests:
    """Tells what each test of this process has cost, and what the process has cost in all."""

    def __init__(self) -> None:
        self._time = ProcessorTime()
        self._told_s = 0.0

    def begin(self) -> None:
        """Charge what was taken so far, for imports and collection, to no test."""
        if self._time:
            self._told_s = self._time.seconds()

    def charge(self, report: pytest.TestReport) -> None:
        """Charge what was taken since the test before to the test whose last report this is."""
        if self._time:
            before_s, self._told_s = self._told_s, self._time.seconds()
            report.user_properties.append((COST, self._told_s - before_s))

    def end(self) -> float | None:
        """All CPU seconds, None where they are not known."""
        total_s = self._time.seconds() if self._time else None
        self._time.close()
        return total_s


def cost_of(report: pytest.TestReport) -> float:
    """CPU seconds of the report's test, 0.0 for all but its last report."""
    return sum((float(str(value)) for name, value in report.user_properties if name == COST), start=0.0)
