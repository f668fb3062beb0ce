"""The agent: what a fragment runs. It owns the node's rank processes and speaks with the service.

One thread decides: it takes events (a rank's news or exit, a directive, a signal) from a queue. The others only
bring events: a reader for each rank, the long poll for directives, and the reporter that posts the newest state.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from oakum_worker.channel import Command
from oakum_worker.protocol import (
    Directive,
    FragmentConfig,
    FragmentReport,
    Generation,
    Phase,
)
from oakum_worker.rank_handle import RankExit, RankHandle, RankNews
from oakum_worker.service_link import Gone, ServiceLink, Unheard

_log = logging.getLogger("oakum.agent")
_TICK_S = 0.2
_LATE_S = 1.0
"""A turn that comes so late means that the agent was stopped or starved, and heard nobody."""
_RESTART_INTERVAL_S = 30.0
"""Ranks that end again within so long are not started a second time: another try would end alike."""


@dataclass(frozen=True)
class Signalled:
    """The scheduler wants the node back, or the time limit is near."""

    number: int


class Agent:
    """Runs one fragment from its start to its exit."""

    def __init__(self, config: FragmentConfig, config_file: Path) -> None:
        self._config = config
        self._started_s = time.monotonic()
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._ranks = [
            RankHandle(config_file, local_rank, config.spec, self._events.put)
            for local_rank in range(config.spec.ranks_per_node)
        ]
        self._link = ServiceLink(config, self._events.put)
        self._report = FragmentReport(phase=Phase.WARMING, sequence=0, pid=os.getpid(), host=socket.gethostname())
        self._directive = Directive(revision=-1)
        self._current: Generation | None = None
        self._is_wanted_back = False
        self._signalled_s = 0.0
        self._deadline_s: float | None = None
        self._turned_s = time.monotonic()
        self._restarted_s: float | None = None
        self._closing = False
        self._left = False

    def run(self) -> None:
        """Warm up, obey the service, leave when told; returns when every rank process has ended."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s agent %(message)s", force=True)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # After submitit's own handlers, which would ignore SIGTERM and requeue on SIGUSR2.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._on_signal)
        for rank in self._ranks:
            rank.start()
        self._link.start()
        self._tell()
        try:
            while not self._left:
                self._turn()
        finally:
            for rank in self._ranks:
                rank.kill()
            self._link.stop(self._report, lambda: self._is_wanted_back)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_wanted_back = True
        self._events.put(Signalled(number))

    def _turn(self) -> None:
        try:
            event = self._events.get(timeout=_TICK_S)
        except queue.Empty:
            event = None
        match event:
            case RankNews() | RankExit() if event.start != self._ranks[event.local_rank].starts:
                pass  # of a process that has been replaced
            case RankNews():
                self._on_news(event)
            case RankExit():
                self._on_exit(event)
            case Directive():
                self._on_directive(event)
            case Signalled(number):
                self._on_leave(f"signal {signal.Signals(number).name}")
            case Gone():
                self._leave_at_once("the service no longer wants this fragment")
            case Unheard(seconds):
                # The first member of the newest generation has the state that counts, formed already or not.
                members = self._current.members if self._current is not None else ()
                first = bool(members) and members[0].fragment == self._config.fragment
                self._close(f"the service has not answered for {seconds:.0f} s", save=first)
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._leave_at_once("the time to leave is up")
        self._end_hung_ranks()

    def _end_hung_ranks(self) -> None:
        """Nothing else would end them, and the other nodes' ranks wait for them in every collective."""
        late = time.monotonic() - self._turned_s > _LATE_S
        self._turned_s = time.monotonic()
        for local_rank, rank in enumerate(self._ranks):
            if late:
                rank.forgive_silence()
            elif rank.hangs(self._config.rank_timeout_s):
                self._warn(f"rank {local_rank} has given no sign of life for {self._config.rank_timeout_s:g} s")
                self._kill(rank)

    def _kill(self, rank: RankHandle) -> None:
        """End a rank. One that the kernel does not let go of, as in a dead file system, makes the node useless."""
        if not rank.kill():
            self._warn("a rank cannot be killed: its node is given up")
            self._end(Phase.LEFT)

    def _on_news(self, event: RankNews) -> None:
        rank, news = self._ranks[event.local_rank], event.news
        changes = news.model_dump(exclude_none=True, include={"generation", "broken", "failure", "progress"})
        if news.warning is not None:
            self._warn(news.warning)
        if news.hangs:
            self._kill(rank)
        if news.switch is not None:
            changes["switches"] = (*self._report.switches[-7:], news.switch)
        if news.endpoint is not None:
            rank.endpoint = news.endpoint
        if news.phase is not None:
            rank.phase = news.phase
        self._tell(**changes)

    def _on_exit(self, ended: RankExit) -> None:
        """A rank that ended without a word was killed or crashed; the node is of no use without it."""
        if all(rank.phase is Phase.FINISHED for rank in self._ranks):
            self._end(Phase.FINISHED)
        elif any(rank.phase is Phase.FAILED for rank in self._ranks):
            self._end(Phase.FAILED)
        elif all(rank.phase in (Phase.LEFT, Phase.FINISHED) for rank in self._ranks):
            self._end(Phase.LEFT)
        elif (phase := self._ranks[ended.local_rank].phase) not in (Phase.LEFT, Phase.FINISHED):
            self._warn(f"rank {ended.local_rank} ended with status {ended.status}")
            if phase is not Phase.WARMING and self._may_restart():
                self._restart()
            else:
                self._end(Phase.LEFT)

    def _may_restart(self) -> bool:
        if self._deadline_s is not None or self._directive.leave:
            return False
        return self._restarted_s is None or time.monotonic() - self._restarted_s > _RESTART_INTERVAL_S

    def _restart(self) -> None:
        """Begin anew on this node, which is ours still: the state is in its memory or with the other nodes."""
        self._restarted_s = time.monotonic()
        for rank in self._ranks:
            rank.kill()
        newest = max(self._report.generation, self._current.number if self._current else 0)
        self._current = None
        for rank in self._ranks:
            rank.start(after=newest)
            rank.send(Command(directive=self._directive))
        self._tell(broken=newest, progress=None)

    def _on_directive(self, directive: Directive) -> None:
        if directive.revision <= self._directive.revision:
            return
        self._directive = directive
        for rank in self._ranks:
            rank.send(Command(directive=directive))
        generation = directive.generation
        if generation is not None and generation.first_rank(self._config.fragment) is not None:
            if self._report.phase is Phase.WARMING and self._restarted_s is not None:
                # Made before the service knew: the ranks that it names are gone, and nobody is to wait for them.
                self._tell(broken=generation.number)
            else:
                self._current = generation
        elif directive.leave and self._current is None:
            # A rank that was started anew may be the only one to know the state: it has to save it first.
            self._close("no longer wanted before it joined", save=True)
        if self._is_closer and self._deadline_s:
            self._close_last("the last replica to leave")

    def _on_leave(self, why: str) -> None:
        """Ask to be left out of the next generation; go without being left out when time is up."""
        if self._deadline_s is not None:
            return
        _log.info("leaving: %s", why)
        self._signalled_s = time.monotonic()
        self._tell(signalled=True, signalled_at=time.time())
        self._deadline_s = self._signalled_s + min(self._config.leave_deadline_s, self._config.grace_s)
        if self._current is None and self._restarted_s is None:
            self._leave_at_once("was not a member yet")
        elif self._current is None or len(self._current.members) == 1 or self._is_closer:
            self._close_last("the last replica")
        self._tell()

    @property
    def _is_closer(self) -> bool:
        """Whether nobody is left but this fragment; the service may have learnt of the others' leaving first."""
        generation = self._directive.generation
        return generation is not None and generation.closer == self._config.fragment

    def _close_last(self, why: str) -> None:
        """The last replica gets the whole grace for its checkpoint, which does not wait for a step's end."""
        self._deadline_s = self._signalled_s + 0.9 * self._config.grace_s
        self._close(why, save=True)

    def _close(self, why: str, *, save: bool) -> None:
        """Have the ranks stop on their own; with `save`, the first of them makes durable what only it knows."""
        if self._closing:
            return
        self._closing = True
        _log.info("closing: %s", why)
        if self._current is None and self._restarted_s is None:
            self._leave_at_once(why)
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._config.grace_s
        for local_rank, rank in enumerate(self._ranks):
            rank.send(Command(close=True, save=save and local_rank == 0))

    def _leave_at_once(self, why: str) -> None:
        _log.info("left: %s", why)
        self._end(Phase.LEFT)

    def _end(self, phase: Phase) -> None:
        self._tell(phase=phase)
        self._left = True

    def _warn(self, text: str) -> None:
        """Say it in the log and to the service."""
        _log.warning("%s", text)
        self._tell(warnings=(*self._report.warnings[-9:], text))

    def _tell(self, **changes: object) -> None:
        """Make the newest state the one that is reported."""
        phases = {rank.phase for rank in self._ranks}
        if Phase.FAILED in phases:
            changes.setdefault("phase", Phase.FAILED)
        elif self._deadline_s is not None:
            changes.setdefault("phase", Phase.LEAVING)
        elif Phase.WARMING in phases:
            changes.setdefault("phase", Phase.WARMING)
        elif phases == {Phase.READY}:
            changes.setdefault("phase", Phase.READY)
        elif Phase.BROKEN in phases:
            changes.setdefault("phase", Phase.BROKEN)
        elif phases == {Phase.TRAINING}:
            changes.setdefault("phase", Phase.TRAINING)
        if Phase.WARMING not in phases:
            if self._report.startup_s is None:
                changes["startup_s"] = time.monotonic() - self._started_s
            changes["ranks"] = tuple(rank.endpoint for rank in self._ranks if rank.endpoint)
        merged = self._report.model_dump() | changes | {"sequence": self._report.sequence + 1}
        self._report = FragmentReport.model_validate(merged)
        self._link.report(self._report)
