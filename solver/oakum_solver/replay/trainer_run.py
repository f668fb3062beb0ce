"""One trainer in a replay: its nodes, its stalls and start-ups, and where its node-time goes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from oakum_solver.guard import StarvationGuard, Wait
from oakum_solver.problem import PlannedTrainer
from oakum_solver.replay.rate_book import RateBook
from oakum_solver.replay.workload import WorkItem


class Cause(StrEnum):
    """Causes for which granted node-time trains nothing."""

    STARTUP = "startup"
    GROW = "grow"
    SHRINK = "shrink"
    PREEMPTION = "preemption"


@dataclass
class TrainerRun:
    """One trainer's state at the time `now_s`: nodes, stalls, start-ups, samples. All times are seconds since the
    log's start.

    A rescale stops the whole trainer for its stall; stalls that overlap are served one after the other. Nodes that
    join together become productive `startup_s` seconds later, by one rescale. A trainer with fewer productive
    nodes than its minimum trains nothing.
    """

    item: WorkItem
    trainer: PlannedTrainer
    """The trainer, with the stalls and the start-up that the cost model charges."""
    rates: tuple[float, ...]
    """Samples/s at 0, 1, 2, ... nodes; 0 below the minimum."""
    now_s: float = 0.0
    samples: float = 0.0
    nodes: set[int] = field(default_factory=set)
    joining: deque[tuple[float, set[int]]] = field(default_factory=deque)
    """(ready_s, nodes) of the nodes that are still starting up, in order of `ready_s`."""
    stalls: deque[tuple[float, Cause]] = field(default_factory=deque)
    """(until_s, cause) of the stalls from now on, one after the other."""
    lost_node_s: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    productive_node_s: float = 0.0
    granted_node_s: float = 0.0
    rescales: int = 0
    start_s: float | None = None
    end_s: float | None = None
    sizes: list[tuple[float, int]] = field(default_factory=list)
    waiting_since_s: float = 0.0
    wait: Wait = field(default_factory=Wait)
    """The starvation guard's account of this trainer, as of `waited_to_s`."""
    waited_to_s: float = 0.0
    book: RateBook | None = None
    """What is measured of the trainer; None where its curve is known."""

    def arrive(self, now_s: float) -> None:
        """Let the trainer begin at `now_s`: it may have nodes from now on, and waits."""
        self.now_s = self.waiting_since_s = self.waited_to_s = now_s

    def wait_until(self, now_s: float, guard: StarvationGuard) -> None:
        """Bring the starvation guard's account `wait` up to `now_s`. Since the last call the trainer must have had
        nodes all the time or lacked them all the time."""
        self.wait = guard.after(self.wait, now_s - self.waited_to_s, bool(self.nodes))
        self.waited_to_s = now_s

    @property
    def productive(self) -> int:
        """Number of nodes that have started up."""
        return len(self.nodes) - sum(len(nodes) for _, nodes in self.joining)

    @property
    def remaining_samples(self) -> float:
        """Samples left to train; infinite for an endless trainer."""
        return math.inf if self.item.samples is None else max(0.0, self.item.samples - self.samples)

    def advance(self, to_s: float) -> None:
        """Train until `to_s`, and account for the node-time."""
        while self.now_s < to_s:
            self._advance_alike(min(to_s, self._next_change_s()))
            self._switch_to_ready_nodes()
        if not self.nodes:
            self.now_s = to_s

    def finish_s(self) -> float:
        """Time at which the last sample is trained if the nodes do not change; infinite where never."""
        if self.item.samples is None or not self.nodes:
            return math.inf
        ahead = self._ahead()
        while True:
            rate = 0.0 if ahead.stalls else ahead._rate()
            until_s = ahead._next_change_s()
            if rate > 0 and ahead.now_s + ahead.remaining_samples / rate <= until_s:
                return ahead.now_s + ahead.remaining_samples / rate
            if until_s == math.inf:
                return math.inf
            ahead._advance_alike(until_s)
            ahead._switch_to_ready_nodes()

    def measured_s(self) -> float:
        """Time at which enough is measured to change a plan if the nodes do not change; infinite where never."""
        if self.book is None or not self.nodes:
            return math.inf
        ahead = self._ahead()
        while True:
            missing_s = self.book.missing_s(self.trainer.fitting(ahead.productive))
            until_s = ahead._next_change_s()
            if not ahead.stalls and ahead._rate() and ahead.now_s + missing_s <= until_s:
                return ahead.now_s + missing_s
            if until_s == math.inf:
                return math.inf
            ahead._advance_alike(until_s)
            ahead._switch_to_ready_nodes()

    def _ahead(self) -> TrainerRun:
        """A copy that can be advanced beyond the present time; it measures nothing."""
        ahead = TrainerRun(self.item, self.trainer, self.rates, self.now_s, self.samples, self.nodes)
        ahead.joining, ahead.stalls = deque(self.joining), deque(self.stalls)
        return ahead

    def take(self, nodes: set[int], cause: Cause) -> None:
        """Take `nodes` away at the present time, which costs a shrink stall if productive ones are among them and
        others stay. `cause` tells whether foreground jobs or the plan took them."""
        before = self.productive
        self.nodes = self.nodes - nodes
        self.joining = deque((ready_s, rest) for ready_s, joining in self.joining if (rest := joining - nodes))
        if self.productive < before and self.productive:
            self._stall(self.trainer.shrink_stall_s, cause)
        self._resized()

    def give(self, nodes: set[int]) -> None:
        """Give the trainer `nodes`, which begin to start up at the present time."""
        if self.start_s is None:
            self.start_s = self.now_s
        self.nodes = self.nodes | nodes
        self.joining.append((self.now_s + self.trainer.startup_s, nodes))
        self._switch_to_ready_nodes()
        self._resized()

    def end(self) -> None:
        """End the run: the last sample is trained now, and all its nodes become free."""
        self.samples, self.end_s = float(self.item.samples or 0.0), self.now_s
        self.nodes = set()
        self.joining.clear()
        self.stalls.clear()
        self._sized()

    def _resized(self) -> None:
        self.rescales += 1
        if not self.nodes:
            self.stalls.clear()
            self.waiting_since_s = self.now_s
        self._sized()

    def _sized(self) -> None:
        if self.sizes and self.sizes[-1][0] == self.now_s:
            self.sizes.pop()
        self.sizes.append((self.now_s, len(self.nodes)))

    def _switch_to_ready_nodes(self) -> None:
        while self.joining and self.joining[0][0] <= self.now_s:
            self.joining.popleft()
            self._stall(self.trainer.grow_stall_s, Cause.GROW)

    def _stall(self, seconds: float, cause: Cause) -> None:
        if seconds > 0:
            begins_s = self.stalls[-1][0] if self.stalls else self.now_s
            self.stalls.append((begins_s + seconds, cause))

    def _rate(self) -> float:
        return self.rates[min(self.productive, len(self.rates) - 1)]

    def _next_change_s(self) -> float:
        """Time at which a stall or a start-up ends next."""
        ready_s = self.joining[0][0] if self.joining else math.inf
        stalled_s = self.stalls[0][0] if self.stalls else math.inf
        return min(ready_s, stalled_s)

    def _advance_alike(self, to_s: float) -> None:
        """Train until `to_s`; no stall or start-up ends before."""
        seconds = to_s - self.now_s
        self.now_s = to_s
        if not self.nodes:
            return
        productive = self.productive
        self.granted_node_s += len(self.nodes) * seconds
        self.lost_node_s[Cause.STARTUP] += (len(self.nodes) - productive) * seconds
        if self.stalls:
            self.lost_node_s[self.stalls[0][1]] += productive * seconds
        elif rate := self._rate():
            self.samples += rate * seconds
            if self.book is not None:
                self.book.take(self.trainer.fitting(productive), seconds, rate)
            self.productive_node_s += productive * seconds
        else:
            self.lost_node_s[Cause.STARTUP] += productive * seconds
        while self.stalls and self.stalls[0][0] <= to_s:
            self.stalls.popleft()
