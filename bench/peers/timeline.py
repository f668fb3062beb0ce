"""Reads the contestants' step logs: when steps finished, in which membership, and how long the gaps between
memberships are."""

from __future__ import annotations

import json
import statistics
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

    def _read(self) -> None:
        for file in self._folder.glob("*.jsonl"):
            with file.open("rb") as log:
                log.seek(self._offsets.get(file, 0))
                text = log.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(complete)
            for line in complete.splitlines():
                self._take(Finished(**json.loads(line)))
        self._lead.sort(key=lambda finished: finished.at)

    def _take(self, finished: Finished) -> None:
        if finished.rank == 0:
            self._lead.append(finished)
        if finished.rank not in self._newest or finished.at > self._newest[finished.rank].at:
            self._newest[finished.rank] = finished

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
        newest: list[Finished] = []
        for finished in reversed(self.lead()):
            if newest and _membership(finished) != _membership(newest[-1]):
                break
            newest.append(finished)
        return (newest[0].world_size if newest else 0), len(newest)

    def step_s(self, count: int = 30) -> float:
        """Median seconds of the last steps."""
        return statistics.median(after.at - before.at for before, after in pairwise(self.lead()[-count:]))

    def switches(self, since: float) -> Iterator[Switch]:
        """The changes of membership whose first step finished after the given time."""
        lead = self.lead()
        for at, (last, first) in enumerate(pairwise(lead)):
            if first.at > since and _membership(last) != _membership(first):
                around = pairwise(lead[max(0, at - 1) : at + 3])
                yield Switch(last, first, max(after.at - before.at for before, after in around))


def _membership(lead: Finished) -> tuple[int, int]:
    # Every change that is measured here changes one of the two.
    return lead.world_size, lead.pid
