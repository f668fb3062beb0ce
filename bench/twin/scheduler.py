"""A scheduler as Slurm is, simulated in virtual time behind the service's scheduler port.

Foreground jobs are those of a log of holes. The state is read at intervals, by the service's own `ReadPace`,
sooner after hooks and submissions; between two readings the service is told what `Overlay` knows. A
submitted fragment is pending for a while, a preempted one has the kill wait to leave, and its node completes
before it is free.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Protocol

from oakum_service.config import SlurmSettings
from oakum_service.documents.node import Node
from oakum_service.documents.silence import Silence
from oakum_service.errors import SchedulerError, SubmissionRefused
from oakum_service.schedulers.port import JobStart, OwnJob, Snapshot
from oakum_service.schedulers.slurm.overlay import Overlay
from oakum_service.schedulers.slurm.read_pace import ReadPace
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig
from twin.node_time import NodeTime, Use
from twin.virtual_time import VirtualTimeLoop

_SPREAD = 0.25
"""Largest part of the time limit by which a fragment's is shorter, as in `schedulers/slurm/submission.py`."""
_MOST_ARRAYS = 4
"""Of one submission, as there."""
_STARTS_TOLD = 2000


@dataclass(frozen=True)
class Manners:
    """How the simulated scheduler behaves; times in seconds."""

    hooks: bool = True
    """Whether it tells at once that a job has got its nodes or given them back."""
    hook_s: float = 0.1
    """From the event to the arrival of what a hook tells."""
    poll_s: float = 10.0
    """Longest time between two readings of its state."""
    pending_s: float = 0.3
    """From a submission to the job's begin on a free node."""
    completing_s: float = 0.3
    """From a job's end until its node is free."""
    kill_wait_s: float = 30.0
    """From SIGTERM to SIGKILL for a preempted job."""
    time_limit_s: float = SlurmSettings.model_fields["time_limit_s"].default
    """Longest time limit of a fragment's job."""
    refused: float = 0.0
    """Share of submissions that are refused."""


class Agents(Protocol):
    """What runs in the fragments' jobs."""

    def start(self, config: FragmentConfig, node: int) -> None:
        """Begin in a job that has just begun on the node."""

    def signal(self, fragment: str, name: str) -> None:
        """Hear a signal of the scheduler."""

    def kill(self, fragment: str) -> None:
        """Be gone without another word."""


class _Phase(Enum):
    PENDING = auto()
    RUNNING = auto()
    COMPLETING = auto()
    GONE = auto()


@dataclass
class _Job:
    """A job of ours."""

    number: int
    config: FragmentConfig
    nodes: tuple[int, ...]
    """Where it may run: one node, or all of its array's."""
    submitted_at: float
    limit_s: float
    """Its time limit, in seconds."""
    phase: _Phase = _Phase.PENDING
    node: int | None = None
    is_preempted: bool = False
    is_overdue: bool = False
    """Whether it was killed at its time limit."""


@dataclass
class _ForegroundJob:
    name: str
    nodes: tuple[int, ...]
    at: float
    """When it was to have its nodes, in virtual seconds."""
    awaited: set[int] = field(default_factory=set)
    """Those of them on which a job of ours still is."""


@dataclass
class Waits:
    """How long foreground jobs waited for us."""

    jobs: int = 0
    kept_waiting: int = 0
    longest_s: float = 0.0

    def count(self, seconds: float) -> None:
        """Count a job that has got its nodes after so many seconds."""
        self.jobs += 1
        self.kept_waiting += seconds > 0
        self.longest_s = max(self.longest_s, seconds)


class SimulatedSlurm:
    """The scheduler, as the service's port wants it, and as the log moves it."""

    name = "twin"
    ends_with_service = False
    array_from = SlurmSettings.model_fields["array_from"].default
    array_most = 1000

    def __init__(
        self, loop: VirtualTimeLoop, names: Sequence[str], manners: Manners, node_time: NodeTime, random: Random
    ) -> None:
        self.grace_s = manners.kill_wait_s
        settings = SlurmSettings(poll_floor_s=manners.poll_s, hook_floor_s=min(2.0, manners.poll_s))
        self.max_age_s = 9 * manners.poll_s + settings.command_timeout_s
        self.agents: Agents
        self.waits = Waits()
        self.submissions = self.refusals = 0
        self.doubled: list[str] = []
        """Nodes on which a second fragment was about to begin, with their jobs: none, if all is well."""
        self._loop, self._manners, self._node_time, self._random = loop, manners, node_time, random
        self._pending_limit_s = settings.pending_limit_s
        self._names = list(names)
        self._number = {name: number for number, name in enumerate(names)}
        self._is_idle = [False] * len(names)
        """Whether no foreground job has, or is to have, the node."""
        self._taker: list[_ForegroundJob | None] = [None] * len(names)
        self._on_node: list[_Job | None] = [None] * len(names)
        """The running or completing job of ours there."""
        self._waiting: dict[str, _Job] = {}
        """Fragment -> its pending job."""
        self._jobs: dict[str, _Job] = {}
        """Fragment -> its job, while it is pending or running."""
        self._numbers = itertools.count(1)
        self._shown = [Node(name, NodeState.UNAVAILABLE, name) for name in names]
        self._changed: set[int] = set(range(len(names)))
        """Nodes that may look different since the last reading."""
        self._pace = ReadPace(settings)
        self._overlay = Overlay()
        self._hinted = False
        self._reading: asyncio.TimerHandle | None = None
        self._picture = Snapshot(loop.now(), (), ())
        self._starts: list[JobStart] = []
        self._preempted: set[str] = set()
        self._withdrawn: set[str] = set()
        self._timed_out: set[str] = set()
        self._on_change: Callable[[], None] = lambda: None

    # What the service asks for.

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._read()

    def snapshot(self) -> Snapshot:
        seen = self._overlay.laid_over(self._picture)
        return replace(seen, starts=tuple(self._starts), withdrawn=frozenset(self._withdrawn))

    def taken_at(self) -> float | None:
        return self._picture.taken_at

    def silence(self) -> Silence | None:
        return None

    def submit(self, config: FragmentConfig) -> str:
        return self.submit_any([config])[config.fragment]

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        now = self._loop.now()
        self.submissions += 1
        if self._random.random() < self._manners.refused:
            self.refusals += 1
            raise SubmissionRefused("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        holes = [config for config in configs if self._is_hole(config.node)]
        if not holes:
            raise SchedulerError(f"{configs[0].node} is not idle any more")
        jobs = [job for array in self._arrays(holes) for job in array]
        for job, config in zip(jobs, holes, strict=True):
            self._waiting[job.config.fragment] = self._jobs[job.config.fragment] = job
            self._node_time.turn(self._number[config.node], Use.PENDING, self._loop.time())
        # Slurm chooses which task of an array gets which node.
        for job in self._random.sample(jobs, len(jobs)):
            self._loop.call_later(self._manners.pending_s, self._begin, job)
        own = [
            OwnJob(str(job.number), job.config.fragment, None if len(job.nodes) > 1 else job.config.node)
            for job in jobs
        ]
        self._overlay.note_submitted(own, now)
        self._hint()
        return {job.fragment: job.job_id for job in own}

    def _arrays(self, configs: Sequence[FragmentConfig]) -> Iterator[list[_Job]]:
        """The jobs of a submission, by array: those of one array have the same nodes and the same time limit, in
        whole minutes."""
        ordered = sorted(configs, key=self._limit_s)
        number = max(1, min(_MOST_ARRAYS, len(configs) // self.array_from))
        for index in range(number):
            some = ordered[index * len(ordered) // number : (index + 1) * len(ordered) // number]
            nodes = tuple(self._number[config.node] for config in some)
            limit_s = min(map(self._limit_s, some)) // 60 * 60
            yield [_Job(next(self._numbers), config, nodes, self._loop.now(), limit_s) for config in some]

    def _limit_s(self, config: FragmentConfig) -> float:
        share = int.from_bytes(hashlib.sha256(config.fragment.encode()).digest()[:4]) / 2**32
        return self._manners.time_limit_s * (1 - _SPREAD * share)

    def cancel(self, fragment: str) -> None:
        job = self._jobs.get(fragment)
        if job is None:
            return
        if job.phase is _Phase.PENDING:
            self._drop(job)
        else:
            self.agents.signal(fragment, "SIGTERM")
            self._loop.call_later(self._manners.kill_wait_s, self._kill, job)
        self._hint()

    def stop(self, *, leave_fragments: bool = False) -> None:
        if self._reading is not None:
            self._reading.cancel()

    # What the log says.

    def change(self, taken: Sequence[int], freed: Sequence[int]) -> None:
        """A foreground job is to have the nodes `taken`, and others are given back by theirs."""
        now = self._loop.time()
        if taken:
            self._take(_ForegroundJob(f"{next(self._numbers)}", tuple(taken), now))
        for node in freed:
            self._is_idle[node], self._taker[node] = True, None
            self._changed.add(node)
            self._node_time.begin_hole(node, now)
            self._begin_waiting(node)
        if freed:
            self._tell_hooks()

    def end(self, fragment: str) -> None:
        """The fragment's agent has exited."""
        job = self._jobs.pop(fragment, None)
        if job is None or job.node is None:
            return
        job.phase = _Phase.COMPLETING
        self._changed.add(job.node)
        self._loop.call_later(self._manners.completing_s, self._clear, job)

    def own_fragments(self) -> set[str]:
        """The fragments whose jobs are there in truth."""
        return set(self._jobs)

    def _take(self, foreground: _ForegroundJob) -> None:
        for node in foreground.nodes:
            self._is_idle[node], self._taker[node] = False, foreground
            self._changed.add(node)
            self._node_time.end_hole(node, foreground.at)
            job = self._on_node[node]
            if job is None:
                continue
            foreground.awaited.add(node)
            if job.phase is _Phase.RUNNING and not job.is_preempted:
                job.is_preempted = True
                self._preempted.add(job.config.fragment)
                self.agents.signal(job.config.fragment, "SIGTERM")
                self._loop.call_later(self._manners.kill_wait_s, self._kill, job)
        if not foreground.awaited:
            self._start_foreground(foreground)

    def _start_foreground(self, job: _ForegroundJob) -> None:
        delay_s = self._loop.time() - job.at
        self.waits.count(delay_s)
        self._starts = [
            *self._starts[1 - _STARTS_TOLD :],
            JobStart(job.name, self._loop.now(), len(job.nodes), delay_s),
        ]
        self._changed.update(job.nodes)
        self._tell_hooks(job)

    def _tell_hooks(self, taken: _ForegroundJob | None = None) -> None:
        """Tell that a foreground job has got its nodes, or else that nodes were given back."""
        if self._manners.hooks:
            self._loop.call_later(self._manners.hook_s, self._hear_hook, taken, self._loop.now())

    def _hear_hook(self, taken: _ForegroundJob | None, at: float) -> None:
        if taken is not None:
            self._overlay.note_taken([self._names[node] for node in taken.nodes], taken.name, at)
            self._on_change()
        self._hint()

    # What becomes of our jobs.

    def _begin(self, job: _Job) -> None:
        if job.phase is not _Phase.PENDING:
            return
        free = [node for node in job.nodes if self._is_idle[node] and self._on_node[node] is None]
        if not free:
            return  # until a node is free, or it is withdrawn
        del self._waiting[job.config.fragment]
        job.phase, job.node = _Phase.RUNNING, free[0]
        self._on_node[job.node] = job
        self._changed.add(job.node)
        self._node_time.turn(job.node, Use.START_UP, self._loop.time())
        self.agents.start(job.config, job.node)
        self._loop.call_later(max(0.0, job.limit_s - self.grace_s), self._near_limit, job)

    def _near_limit(self, job: _Job) -> None:
        if job.phase is _Phase.RUNNING and not job.is_preempted:
            assert job.node is not None
            self._node_time.limit(job.node)
            self.agents.signal(job.config.fragment, "SIGUSR2")
            self._loop.call_later(self.grace_s, self._overdue, job)

    def _overdue(self, job: _Job) -> None:
        if job.phase is _Phase.RUNNING:
            self._timed_out.add(job.config.fragment)
            self._kill(job)

    def _kill(self, job: _Job) -> None:
        if job.phase is _Phase.RUNNING:
            self.agents.kill(job.config.fragment)
            self.end(job.config.fragment)

    def _clear(self, job: _Job) -> None:
        """The node has completed."""
        assert job.node is not None
        node, job.phase = job.node, _Phase.GONE
        self._on_node[node] = None
        self._changed.add(node)
        self._node_time.end_fragment(node, self._loop.time())
        if (foreground := self._taker[node]) is not None and node in foreground.awaited:
            foreground.awaited.discard(node)
            if not foreground.awaited:
                self._start_foreground(foreground)
        self._tell_hooks()
        self._begin_waiting(node)

    def _begin_waiting(self, node: int) -> None:
        for job in [job for job in self._waiting.values() if node in job.nodes]:
            self._begin(job)

    def _drop(self, job: _Job) -> None:
        """Take a pending job out of the queue."""
        job.phase = _Phase.GONE
        del self._waiting[job.config.fragment], self._jobs[job.config.fragment]
        for node in job.nodes:
            if self._is_idle[node] and self._on_node[node] is None:
                self._node_time.end_fragment(node, self._loop.time())
                self._changed.add(node)

    # What the service is shown.

    def _is_hole(self, name: str) -> bool:
        node = self._picture.node(name)
        return node is not None and node.state is NodeState.HOLE

    def _hint(self) -> None:
        self._hinted = True
        self._schedule_reading()

    def _schedule_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        at = self._pace.next_at(self._loop.time(), self._hinted)
        self._reading = self._loop.call_at(at, self._read)

    def _read(self) -> None:
        now = self._loop.time()
        self._hinted = False
        since = self._loop.now() - self._pending_limit_s
        vain = [job for job in self._waiting.values() if job.submitted_at < since]
        for job in vain:
            self._withdrawn.add(job.config.fragment)
            self._drop(job)
        for node in self._changed:
            seen = self._look(node)
            self._shown[node] = seen
            if seen.state is NodeState.HOLE and self._on_node[node] is None:
                self._node_time.show(node, now)
        self._changed.clear()
        own = tuple(
            OwnJob(str(job.number), fragment, None if job.node is None else self._names[job.node])
            for fragment, job in self._jobs.items()
        )
        before = self._picture
        nodes = tuple(self._shown)
        self._picture = Snapshot(
            self._loop.now(),
            before.nodes if before.nodes == nodes else nodes,
            own,
            preempted=frozenset(self._preempted & self._jobs.keys()),
            timed_out=frozenset(self._timed_out),
        )
        self._overlay.note_reading(self._picture.taken_at, set(self._jobs))
        self._pace.took(now, now, None)
        if self._overlay.hides_holes(self._picture) or any(self._on_completing()):
            self._hinted = True
        self._schedule_reading()
        is_news = (before.nodes, before.own_jobs, before.preempted) != (nodes, own, self._picture.preempted)
        if is_news or vain:  # a turn that sees what the last one saw changes nothing
            self._on_change()

    def _on_completing(self) -> list[_Job]:
        if not self._manners.hooks:
            return []
        return [job for job in self._on_node if job is not None and job.phase is _Phase.COMPLETING]

    def _look(self, node: int) -> Node:
        name, job, foreground = self._names[node], self._on_node[node], self._taker[node]
        if job is not None and job.phase is _Phase.RUNNING:
            return Node(name, NodeState.HOLE, name)
        if job is not None:
            return Node(name, NodeState.UNAVAILABLE, name, clearing=foreground is None)
        if self._is_idle[node]:
            return Node(name, NodeState.HOLE, name)
        if foreground is None:
            return Node(name, NodeState.FOREGROUND, name, job="0", job_name="before")
        if foreground.awaited:
            return Node(name, NodeState.UNAVAILABLE, name, job=foreground.name)
        return Node(name, NodeState.FOREGROUND, name, job=foreground.name, job_name=foreground.name)
