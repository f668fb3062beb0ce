"""The agent: what a fragment runs. It owns the node's rank processes and speaks with the service.

One thread decides: it takes events (a rank's news or exit, a directive, a signal) from a queue. The others only
bring events: a reader for each rank, the long poll for directives, and the reporter that posts the newest state.
One more looks at the node's use, for which nobody waits.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from oakum_worker.channel import Command
from oakum_worker.fragment.deaths import DeathWatch
from oakum_worker.fragment.rank_handle import RankExit, RankHandle, RankNews
from oakum_worker.fragment.rank_starter import RankStarter
from oakum_worker.fragment.service_link import Gone, ServiceLink, Unheard
from oakum_worker.fragment.use_watch import UseWatch
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import Crash, Directive, Failure, FragmentReport, Generation, Held, Phase

_log = logging.getLogger("oakum.agent")
_TICK_S = 0.2
_LATE_S = 1.0
"""Seconds between two turns from which the agent was stopped or starved itself and missed signs of life."""
_RESTART_INTERVAL_S = 30.0
"""Seconds that have to lie between two starts of the node's ranks anew."""
_MOST_RAISED = 3
_LOOK_S = 1.0
_KEPT_CRASHES = 2
"""Older crashes that each report repeats beside the newest, because reports may be lost."""


@dataclass(frozen=True)
class Signalled:
    """A signal came: the scheduler wants the node back, or the time limit is near."""

    number: int


class Agent:
    """Runs one fragment: starts its ranks, passes the service's directives to them, reports to the service, and
    leaves when told to."""

    def __init__(self, config: FragmentConfig, ranks: Sequence[RankStarter]) -> None:
        self._config = config
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._ranks = [RankHandle(starter, self._events.put) for starter in ranks]
        self._use = UseWatch(lambda: [os.getpid(), *(rank.pid for rank in self._ranks)])
        self._link = ServiceLink(config, self._events.put, self._use.take)
        self._report = FragmentReport(phase=Phase.WARMING, sequence=0, pid=os.getpid(), host=socket.gethostname())
        self._directive = Directive(revision=-1)
        self._current: Generation | None = None
        self._sizes: dict[int, int] = {}
        """Generation that names this fragment -> its number of members."""
        self._is_wanted_back = False
        self._signalled_s = 0.0
        self._deadline_s: float | None = None
        self._turned_s = time.monotonic()
        self._restarted_s: float | None = None
        self._deaths = DeathWatch(config.spec)
        self._looked_s = 0.0
        self._ended_as: dict[int, str] = {}
        """Local rank -> why the agent has killed that rank."""
        self._raised: list[Failure] = []
        """Errors that steps raised. The ranks were restarted after each, except maybe the last."""
        self._closing = False
        self._has_left = False

    def run(self) -> None:
        """Warm up, obey the service, leave when told; returns when every rank process has ended."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s agent %(message)s", force=True)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # After submitit's own handlers, which would ignore SIGTERM and requeue on SIGUSR2.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._on_signal)
        self._started_s = min(rank.start() for rank in self._ranks)
        self._link.start()
        self._use.start()
        self._tell()
        try:
            while not self._has_left:
                self._turn()
        finally:
            for rank in self._ranks:
                rank.kill()
                rank.drain()
            self._use.stop()
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
                pass  # from a process that has been replaced
            case RankNews():
                self._on_news(event)
            case RankExit():
                self._on_exit(event)
            case Directive():
                self._on_directive(event)
            case Signalled(number):
                self._on_leave(signal.Signals(number).name)
            case Gone():
                self._leave_at_once("the service no longer wants this fragment")
            case Unheard(seconds):
                # The first member of the newest generation has the state that counts, formed already or not.
                members = self._current.members if self._current is not None else ()
                first = bool(members) and members[0].fragment == self._config.fragment
                self._close(f"the service has not answered for {seconds:.0f} s", save=first)
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._on_deadline()
        self._end_hung_ranks()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            self._deaths.look([rank.pid for rank in self._ranks])

    def _end_hung_ranks(self) -> None:
        """Kill ranks that have given no sign of life for too long: the ranks of other nodes wait for them. Where
        the agent itself was stopped meanwhile, the time counts anew."""
        late = time.monotonic() - self._turned_s > _LATE_S
        self._turned_s = time.monotonic()
        for local_rank, rank in enumerate(self._ranks):
            if late:
                rank.forgive_silence()
            elif rank.hangs(self._config.rank_timeout_s):
                self._end_rank(local_rank, f"has given no sign of life for {self._config.rank_timeout_s:g} s")

    def _end_rank(self, local_rank: int, why: str) -> None:
        self._ended_as[local_rank] = f"rank {local_rank} {why}"
        self._warn(self._ended_as[local_rank])
        self._kill(self._ranks[local_rank])

    def _kill(self, rank: RankHandle) -> None:
        """Kill a rank. If the kernel cannot end it, as on a dead file system, the fragment fails."""
        if not rank.kill():
            self._warn("a rank cannot be killed: its node is given up")
            self._end(Phase.LEFT)

    def _on_news(self, event: RankNews) -> None:
        rank, news = self._ranks[event.local_rank], event.news
        if rank.phase is Phase.LEFT:
            return  # a sign of life of a process that ends: it has told all that counts
        changes = news.model_dump(
            exclude_none=True, include={"generation", "broken", "failure", "progress", "pace"}
        )
        if news.generation not in (None, self._report.generation):
            changes.setdefault("pace", None)  # that of other nodes says nothing of these
        if news.failure is not None and news.failure.stage == "train":
            self._raised.append(news.failure)  # not reported as the fragment's failure: ranks may be restarted
            del changes["failure"]
        if news.warning is not None:
            self._warn(news.warning)
        if news.hangs:
            self._ended_as[event.local_rank] = f"rank {event.local_rank} hung: {news.warning}"
            self._kill(rank)
        if news.switch is not None:
            changes["switches"] = (*self._report.switches[-7:], news.switch)
        if news.endpoint is not None:
            rank.endpoint = news.endpoint
        if news.phase is not None:
            rank.phase = news.phase
        if news.phase is Phase.READY and not self._is_named(self._directive):
            self._current = None
        if news.holds is not None:
            rank.holds_state = news.holds
        self._tell(**changes)

    def _on_exit(self, ended: RankExit) -> None:
        """Decide what follows from the end of a rank's process: the fragment has finished, has failed, or
        leaves, or its ranks are restarted. A rank that ended without a message was killed or crashed, which is
        reported."""
        if all(rank.phase is Phase.FINISHED for rank in self._ranks):
            self._end(Phase.FINISHED)
        elif any(rank.phase is Phase.FAILED for rank in self._ranks):
            if self._may_retry():
                self._tell_crash(self._raised[-1])
                self._restart()
            else:
                self._end(Phase.FAILED, **({"failure": self._raised[-1].model_dump()} if self._raised else {}))
        elif all(rank.phase in (Phase.LEFT, Phase.FINISHED) for rank in self._ranks):
            self._end(Phase.LEFT)
        elif (phase := self._ranks[ended.local_rank].phase) not in (Phase.LEFT, Phase.FINISHED):
            self._tell_death(ended, phase)
            if phase is not Phase.WARMING and self._may_restart():
                self._restart()
            else:
                self._end(Phase.LEFT)
        elif phase is Phase.LEFT:
            self._close("one of this node's ranks has left", save=False)

    def _may_retry(self) -> bool:
        """Whether to restart the ranks at once after an error: not if the same step raised the same error
        before."""
        if not self._raised or not self._is_staying:
            return False
        raised = [(failure.identity, failure.step) for failure in self._raised]
        return len(raised) < _MOST_RAISED and raised[-1] not in raised[:-1]

    def _tell_death(self, ended: RankExit, phase: Phase) -> None:
        """Report why a rank has died, as a warning and, while the fragment stays, as a crash."""
        progress = self._report.progress
        where = "" if progress is None else f" after step {progress.step}"
        pid = self._ranks[ended.local_rank].pid
        is_explained, message = False, self._ended_as.pop(ended.local_rank, "")
        if not message:
            message, is_explained = self._deaths.explain(pid, ended.status, f"rank {ended.local_rank}", where)
            self._warn(message)
        if self._is_staying:
            self._tell_crash(
                Failure(stage="train", step=0 if progress is None else progress.step, message=message),
                is_explained=is_explained,
                is_member=phase in (Phase.TRAINING, Phase.BROKEN),
            )

    def _tell_crash(self, failure: Failure, *, is_explained: bool = True, is_member: bool = True) -> None:
        crashes = self._report.crashes
        crash = Crash(
            number=crashes[-1].number + 1 if crashes else 1,
            generation=self._report.generation if is_member else 0,
            step=failure.step,
            message=failure.message,
            identity=failure.identity,
            is_explained=is_explained,
            traceback=failure.traceback,
        )
        self._tell(crashes=(*crashes[-_KEPT_CRASHES:], crash))

    @property
    def _is_staying(self) -> bool:
        return self._deadline_s is None and not self._directive.leave

    def _may_restart(self) -> bool:
        if not self._is_staying:
            return False
        return self._restarted_s is None or time.monotonic() - self._restarted_s > _RESTART_INTERVAL_S

    def _restart(self) -> None:
        """Kill the node's ranks, start them again, and report the present generation as broken. The new ranks
        find the state in the node's memory or get it from other nodes."""
        self._restarted_s = time.monotonic()
        for rank in self._ranks:
            rank.kill()
        newest = max(self._report.generation, self._current.number if self._current else 0)
        self._current = None
        for rank in self._ranks:
            rank.start(after=newest)
            rank.send(Command(directive=self._directive))
        self._tell(broken=newest, progress=None, pace=None)

    def _on_directive(self, directive: Directive) -> None:
        if directive.revision <= self._directive.revision:
            return
        generation = directive.generation
        is_named = self._is_named(directive)
        is_outdated = is_named and self._report.phase is Phase.WARMING and self._restarted_s is not None
        if generation is not None and is_outdated:
            # The service made this generation before it heard of the restart: the ranks in it are gone, so report
            # it as broken, and nobody waits for them.
            directive = directive.model_copy(
                update={"ended_through": max(directive.ended_through, generation.number)}
            )
        self._directive = directive
        for rank in self._ranks:
            rank.send(Command(directive=directive))
        if generation is not None and is_outdated:
            self._tell(broken=generation.number)
        elif generation is not None and is_named:
            self._current = generation
            self._sizes[generation.number] = len(generation.members)
        elif directive.leave and self._current is None:
            # A restarted rank may be the only one with the state, and then has to save it first.
            self._close("no longer wanted before it joined", save=True)
        if self._is_saver and self._deadline_s:
            self._close_last("the last replica to leave")

    def _is_named(self, directive: Directive) -> bool:
        generation = directive.generation
        return generation is not None and generation.first_rank(self._config.fragment) is not None

    def _on_leave(self, by: str) -> None:
        """React to a signal to leave: tell the service, which is to make a generation without this fragment, and
        set the time at which the agent leaves in any case. Later signals do nothing.

        A fragment that was no member yet leaves at once; the last one with the state saves a checkpoint. `by` is
        the signal's name.
        """
        if self._deadline_s is not None:
            return
        _log.info("leaving: signal %s", by)
        self._signalled_s = time.monotonic()
        self._tell(signalled=True, signalled_at=time.time(), signal=by)
        self._deadline_s = self._signalled_s + min(self._config.leave_deadline_s, self._config.grace_s)
        for rank in self._ranks:
            rank.send(Command(leave=True))
        if self._current is None and self._held is Held.NOWHERE:
            self._leave_at_once("was not a member yet")
        elif self._current is None or len(self._current.members) == 1 or self._is_saver:
            self._close_last("the last replica")
        self._tell()

    def _on_deadline(self) -> None:
        """Leave now that the time is up; save the state first if perhaps no other fragment has it.

        No other fragment may have the state if the newest generation that formed had only this member, or broke.
        """
        is_last = self._sizes.get(self._report.generation) == 1 or self._report.broken >= self._report.generation
        if is_last and self._held is not Held.NOWHERE and not self._closing and self._signalled_s:
            self._close_last("nobody else may have the state")
        else:
            self._leave_at_once("the time to leave is up")

    @property
    def _is_saver(self) -> bool:
        """Whether the service has named this fragment to save the state, as no member of the trainer is left."""
        generation = self._directive.generation
        return generation is not None and generation.saver == self._config.fragment

    def _close_last(self, why: str) -> None:
        """Leave as the last fragment that has the state: its ranks save a checkpoint, which may take 90 % of the
        scheduler's grace time, counted from the signal. `why` goes to the log."""
        self._deadline_s = self._signalled_s + 0.9 * self._config.grace_s
        self._close(why, save=True)

    def _close(self, why: str, *, save: bool) -> None:
        """Tell the ranks to leave, once; with `save`, local rank 0 first writes a durable checkpoint. A fragment
        that was never a member and has no state leaves at once. `why` goes to the log."""
        if self._closing:
            return
        self._closing = True
        _log.info("closing: %s", why)
        if self._current is None and self._held is Held.NOWHERE:
            self._leave_at_once(why)
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._config.grace_s
        for local_rank, rank in enumerate(self._ranks):
            rank.send(Command(close=True, save=save and local_rank == 0))

    def _leave_at_once(self, why: str) -> None:
        _log.info("left: %s", why)
        self._end(Phase.LEFT)

    def _end(self, phase: Phase, **changes: object) -> None:
        if changes or self._report.phase is not phase:
            self._tell(phase=phase, **changes)
        self._has_left = True

    def _warn(self, text: str) -> None:
        """Write the warning to the log and report it to the service."""
        _log.warning("%s", text)
        self._tell(warnings=(*self._report.warnings[-9:], text))

    @property
    def _held(self) -> Held:
        if any(rank.holds_state for rank in self._ranks):
            return Held.RANKS
        return Held.MEMORY if any(rank.recalls for rank in self._ranks) else Held.NOWHERE

    def _tell(self, **changes: object) -> None:
        """Make a new report and post it: with the phase that follows from the ranks' phases, the place of the
        state on this node, the endpoints of ranks that have warmed up, and the given `changes`, which overrule
        all but the endpoints and the place of the state."""
        phases = {rank.phase for rank in self._ranks}
        if Phase.FAILED in phases and not self._raised:
            changes.setdefault("phase", Phase.FAILED)
        elif Phase.LEFT in phases and phases <= {Phase.LEFT, Phase.FINISHED}:
            changes.setdefault("phase", Phase.LEFT)  # told while their processes end
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
        changes["holds"] = self._held
        merged = self._report.model_dump() | changes | {"sequence": self._report.sequence + 1}
        self._report = FragmentReport.model_validate(merged)
        self._link.report(self._report)
