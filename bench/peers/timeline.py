"""Reads the contestants' step logs: when steps finished, in which membership, and how long the gaps between
memberships are."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Finished:
    """One process's finished step."""

    at: float
    pid: int
    step: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Switch:
    """A change of membership: the time from the last finished step of one membership to the first of the next,
    by each one's rank 0."""

    last: Finished
    first: Finished
    gap_s: float
    """Seconds without a finished step, the longest of those at the switch, the step before and the one after: some
    let newcomers catch up within a step of the old membership. One step's own time is part of it."""

    @property
    def steps_lost(self) -> int:
        """Number of finished steps that are repeated after the switch."""
        return max(0, self.last.step + 1 - self.first.step)


class StepLogs:
    """Follows the logs in a folder; each file is read once, however often it is asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._lead: list[Finished] = []
        self._newest: dict[int, Finished] = {}
        self._taken_over: list[Finished] = []

    def _read(self) -> None:
        fresh: list[Finished] = []
        for file in self._folder.glob("*.jsonl"):
            with file.open("rb") as log:
                log.seek(self._offsets.get(file, 0))
                text = log.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(complete)
            fresh += [Finished(**json.loads(line)) for line in complete.splitlines()]
        for finished in sorted(fresh, key=lambda finished: finished.at):
            self._take(finished)
        self._lead.sort(key=lambda finished: finished.at)

    def _take(self, finished: Finished) -> None:
        if finished.rank == 0:
            self._lead.append(finished)
        before = self._newest.get(finished.rank)
        if before is None or finished.at > before.at:
            self._newest[finished.rank] = finished
            # Replicas of torchft that only look on share the rank -1.
            if before is not None and before.pid != finished.pid and finished.rank >= 0:
                self._taken_over.append(finished)

    def lead(self) -> list[Finished]:
        """The steps that each membership's rank 0 finished, in order of time."""
        self._read()
        return self._lead

    def pid_of(self, rank: int) -> int:
        """The process that last was this rank."""
        self._read()
        return self._newest[rank].pid

    def steps_together(self) -> tuple[int, int]:
        """World size of the newest membership, and how many steps it has finished."""
        begins = self._begins()
        return (self._lead[-1].world_size if self._lead else 0), len(self._lead) - (begins[-1] if begins else 0)

    def step_s(self, count: int = 30) -> float:
        """Median seconds of the last steps."""
        return statistics.median(after.at - before.at for before, after in pairwise(self.lead()[-count:]))

    def switches(self, since: float) -> Iterator[Switch]:
        """The changes of membership whose first step finished after the given time."""
        for at in self._begins():
            last, first = self._lead[at - 1 : at + 1]
            if first.at > since:
                around = pairwise(self._lead[max(0, at - 2) : at + 2])
                yield Switch(last, first, max(after.at - before.at for before, after in around))

    def _begins(self) -> list[int]:
        """Where in `lead` another membership begins: one of another size, or with another process as some rank."""
        lead = self.lead()
        begins = {at for at, (last, first) in enumerate(pairwise(lead), 1) if last.world_size != first.world_size}
        for finished in self._taken_over:
            # Ranks take each step together: rank 0's same step is the one before or after it in time, and where
            # both count the same the earlier one is the old membership's, repeated.
            after = bisect_left(lead, finished.at, key=lambda one: one.at)
            same = [at for at in (after - 1, after) if 0 < at < len(lead) and lead[at].step == finished.step]
            begins.update(same[-1:])
        return sorted(begins)
