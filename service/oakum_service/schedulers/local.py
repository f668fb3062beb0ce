"""The embedded cluster: virtual nodes of this machine, with foreground jobs as real processes, scheduled first
come first served with EASY backfill.

Towards Oakum it behaves like Slurm with preemption. Foreground jobs know nothing of fragments, take nodes without
asking, and start when the fragments there have ended. A fragment gets SIGTERM, its grace, then SIGKILL. The
cluster runs in the service's process and ends with it. Fragments outlive a crash of the service and are found
again by their command lines.
"""

from __future__ import annotations

import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from oakum_service.config import LocalClusterSettings
from oakum_service.documents.announcement import AnnouncedKind, Announcement, Announcements
from oakum_service.documents.node import Node
from oakum_service.documents.slots import slot_name, slots_in
from oakum_service.errors import SchedulerError, SubmissionRefused
from oakum_service.schedulers import fragment_processes
from oakum_service.schedulers.port import JobStart, OwnJob, Snapshot
from oakum_service.schedulers.starting import FragmentStarter
from oakum_service.schedulers.workload import ForegroundRequest, foreground_jobs, skip
from oakum_service.states import NodeState
from oakum_solver.logs.easy import Backfill, QueuedJob, RunningJob, easy_backfill
from oakum_worker.fragment import CONFIG_NAME
from oakum_worker.fragment_config import FragmentConfig

_log = logging.getLogger("oakum.local")

_SIGNAL_EVERY_S = 0.5
_KEPT_ENDS = 1000
_STARTED_S = 30.0
"""Longest time in seconds that the end of the cluster waits for fragments that are being started."""
# A foreground job's process on a node: sleeps for its run time, or until the cluster that started it is gone.
_SLEEP = "import select, sys; select.select([sys.stdin], [], [], float(sys.argv[1]))"


@dataclass
class _Fragment:
    """One of our jobs on the embedded cluster, with its first process."""

    id: str
    node: str
    """Its node or slot, or several slots of a node."""
    process: psutil.Process
    kill_at_s: float | None = None
    """When SIGKILL follows its first SIGTERM; None before that."""
    leaves_at: float | None = None
    """When its time limit ends it; None where there is none."""
    signal_at_s: float = 0.0
    """When SIGTERM is sent again: a process that was just being started may have missed the first one."""


@dataclass
class _ForegroundJob:
    """A foreground job from its allocation to its end."""

    request: ForegroundRequest
    nodes: tuple[str, ...]
    allocated_at_s: float
    started_at_s: float | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def expected_end_s(self) -> float:
        return (self.started_at_s or self.allocated_at_s) + self.request.requested_s


class LocalCluster:
    """The embedded cluster, as a `Scheduler`. One thread runs it; any thread may call its methods."""

    name = "local"
    ends_with_service = True
    max_age_s = 1.0

    def __init__(self, settings: LocalClusterSettings, data_dir: Path) -> None:
        self._settings = settings
        self.grace_s = settings.grace_s
        self.num_nodes = settings.num_slots
        self._fragments_dir = data_dir.resolve() / "fragments"
        self._position_file = data_dir.resolve() / "local-cluster.json"
        self._nodes = tuple(_slots(settings))
        self._changed = threading.Condition()
        self._starter = FragmentStarter(self._fragments_dir, forks=settings.fork_server)
        self._fragments: dict[str, _Fragment] = {}
        self._timed_out: deque[str] = deque(maxlen=_KEPT_ENDS)
        """The newest fragments that have reached their time limit."""
        self._starting: set[str] = set()
        """Nodes on which a fragment is being started."""
        self._queue: deque[ForegroundRequest] = deque()
        self._jobs: dict[str, _ForegroundJob] = {}
        self._starts: deque[JobStart] = deque(maxlen=200)
        self._backfill = Backfill(())
        # Ids must not repeat after a restart: the database remembers each job by its id.
        self._user_jobs = itertools.count(int(time.time()))
        self._stopping = False
        self._on_change: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """Take over the fragments that still run, and begin to run foreground jobs."""
        self._on_change = on_change
        self._starter.open()
        self._adopt()
        self._position = self._read_position()
        self._coming = skip(foreground_jobs(self._settings), self._position)
        self._next = next(self._coming, None)
        self._next_at_s = time.time() + (self._next.gap_s if self._next else 0.0)
        self._thread = threading.Thread(target=self._run, name="local-cluster", daemon=True)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """The cluster's state now: nodes, our jobs, and the newest foreground starts."""
        with self._changed:
            holders = {node: job for job in self._jobs.values() for node in job.nodes}
            announced = dict(self._announced(holders))
            nodes = tuple(
                Node(
                    name=node,
                    state=NodeState.FOREGROUND if node in holders else NodeState.HOLE,
                    address="127.0.0.1",
                    job=holders[node].request.id if node in holders else None,
                    job_name=holders[node].request.id if node in holders else "",
                    announced_at=announced.get(node),
                )
                for node in self._nodes
            )
            own = tuple(OwnJob(str(f.process.pid), f.id, f.node, f.leaves_at) for f in self._fragments.values())
            return Snapshot(
                time.time(),
                nodes,
                own,
                tuple(self._starts),
                timed_out=frozenset(self._timed_out),
                announced=self._announcements(announced),
            )

    def taken_at(self) -> float | None:
        """The present time in Unix seconds: the embedded cluster's state is never old."""
        return time.time()

    def silence(self) -> None:
        """It is in this process and always answers."""

    def submit(self, config: FragmentConfig) -> str:
        """Start a fragment on an idle node; returns its process id. Raises `SchedulerError` if the node is no
        longer idle, and `SubmissionRefused` if the fragment cannot be started."""
        self._starter.prepare()
        with self._changed:
            taken = {node for job in self._jobs.values() for node in job.nodes}
            slots = set(slots_in(config.node))
            if not slots.isdisjoint(taken | self._held_nodes()) or self._stopping:
                raise SchedulerError(f"{config.node} is no longer idle")
            self._starting |= slots
        try:
            # Without the lock, so that other nodes can be given back however long this takes.
            pid = self._starter.start(config)
            fragment = _Fragment(config.fragment, config.node, psutil.Process(pid))
        except (OSError, psutil.Error) as error:
            self._conclude(config.node, None)
            raise SubmissionRefused(f"the fragment could not be started: {error}") from error
        self._conclude(config.node, fragment)
        return str(pid)

    def _conclude(self, node: str, fragment: _Fragment | None) -> None:
        """End the start of a fragment: watch it, and evict it if a foreground job got the node meanwhile. A
        `fragment` of None is one whose start failed."""
        with self._changed:
            slots = set(slots_in(node))
            self._starting -= slots
            if fragment is not None:
                self._watch(fragment)
                if any(not slots.isdisjoint(job.nodes) for job in self._jobs.values()):
                    self._evict(fragment)
            self._changed.notify_all()

    def _held_nodes(self) -> set[str]:
        """The nodes that fragments run on or are being started on."""
        return self._starting | {slot for each in self._fragments.values() for slot in slots_in(each.node)}

    def cancel(self, fragment: str) -> None:
        """Send the fragment SIGTERM now and SIGKILL after its grace. Does nothing where it has ended."""
        with self._changed:
            running = self._fragments.get(fragment)
            if running is not None:
                self._evict(running)
            self._changed.notify_all()

    def submit_foreground(self, nodes: int, run_s: float) -> str:
        """Submit a foreground job as a user of the cluster would; returns its id."""
        with self._changed:
            job = f"user-{next(self._user_jobs)}"
            self._queue.append(ForegroundRequest(job, 0.0, nodes, run_s, requested_s=run_s))
            self._changed.notify_all()
        return job

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Kill the foreground jobs and, unless `leave_fragments`, all fragments at once, without their grace;
        then end the fork server and the cluster's thread."""
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._starting, timeout=_STARTED_S)
            jobs = list(self._jobs.values())
            fragments = [] if leave_fragments else list(self._fragments.values())
            self._changed.notify_all()
        for job in jobs:
            for process in job.processes:
                process.kill()
        for fragment in fragments:
            fragment_processes.send(self._processes(fragment.id), signal.SIGKILL)
        self._starter.close()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _adopt(self) -> None:
        for fragment, processes in fragment_processes.find(self._fragments_dir).items():
            config_file = self._fragments_dir / fragment / CONFIG_NAME
            try:
                node = FragmentConfig.model_validate_json(config_file.read_text(encoding="utf-8")).node
            except (OSError, ValueError):
                _log.warning("fragment %s has no readable config: killed", fragment)
                fragment_processes.send(processes, signal.SIGKILL)
                continue
            self._watch(_Fragment(fragment, node, processes[0]))

    def _watch(self, fragment: _Fragment) -> None:
        """Keep the fragment in the cluster's list until its last process has ended. Returns at once: a thread
        waits for the fragment's first process and then kills all others."""
        if (limit_s := self._settings.time_limit_s) is not None:
            fragment.leaves_at = fragment.process.create_time() + limit_s
        self._fragments[fragment.id] = fragment

        def wait() -> None:
            fragment.process.wait()
            # Kill what outlives the job's first process, as Slurm does at the end of a step.
            while leftovers := self._processes(fragment.id):
                fragment_processes.send(leftovers, signal.SIGKILL)
                psutil.wait_procs(leftovers, timeout=1.0)
            with self._changed:
                self._fragments.pop(fragment.id, None)
                self._changed.notify_all()
            self._on_change()

        threading.Thread(target=wait, name=f"fragment-{fragment.id[:8]}", daemon=True).start()

    def _processes(self, fragment: str) -> list[psutil.Process]:
        return fragment_processes.find(self._fragments_dir).get(fragment, [])

    def _evict(self, fragment: _Fragment) -> None:
        if fragment.kill_at_s is None:
            fragment.kill_at_s = time.time() + self._settings.grace_s
            self._signal(fragment)

    def _signal(self, fragment: _Fragment) -> None:
        fragment.signal_at_s = time.time() + _SIGNAL_EVERY_S
        fragment_processes.send(self._processes(fragment.id), signal.SIGTERM)

    def _run(self) -> None:
        """The cluster's thread: handles arrivals, starts, ends and kills when they are due."""
        with self._changed:
            while not self._stopping:
                try:
                    wake_at_s = self._turn()
                except OSError as error:
                    # Perhaps no process can be started for now; nodes still have to be given back.
                    _log.warning("the embedded cluster: %s; it goes on", error)
                    wake_at_s = time.time() + 1.0
                self._changed.wait(timeout=max(0.0, wake_at_s - time.time()))

    def _turn(self) -> float:
        """Do what is due; returns when the next thing is due, in Unix seconds, unless an event comes before."""
        self._evict_timed_out()
        self._press_evicted()
        changed = self._take_arrivals() | self._take_ends() | self._allocate() | self._start_allocated()
        if changed:
            self._on_change()
        return self._wake_at_s()

    def _wake_at_s(self) -> float:
        evicted = [f for f in self._fragments.values() if f.kill_at_s is not None]
        kills = [min(f.signal_at_s, f.kill_at_s or f.signal_at_s) for f in evicted]
        limits = [f.leaves_at for f in self._fragments.values() if f.leaves_at is not None and f.kill_at_s is None]
        arrivals = [self._next_at_s] if self._next is not None else []
        return min(itertools.chain(kills, limits, arrivals), default=time.time() + 60.0)

    def _take_arrivals(self) -> bool:
        arrived = False
        while self._next is not None and self._next_at_s <= time.time():
            self._queue.append(self._next)
            self._position += 1
            self._next = next(self._coming, None)
            self._next_at_s += self._next.gap_s if self._next else 0.0
            arrived = True
        if arrived:
            self._position_file.write_text(json.dumps({"jobs": self._position}), encoding="utf-8")
        return arrived

    def _read_position(self) -> int:
        """Number of jobs that earlier runs took from the stream, so that a restart does not repeat them."""
        try:
            return int(json.loads(self._position_file.read_text(encoding="utf-8"))["jobs"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _take_ends(self) -> bool:
        ended = [
            job
            for job in self._jobs.values()
            if job.started_at_s is not None and all(process.poll() is not None for process in job.processes)
        ]
        for job in ended:
            del self._jobs[job.request.id]
        return bool(ended)

    def _free(self) -> list[str]:
        taken = {node for job in self._jobs.values() for node in job.nodes}
        return [node for node in self._nodes if node not in taken]

    def _allocate(self) -> bool:
        """Give waiting jobs their nodes, by EASY backfill, and evict the fragments there. Returns whether any job
        got nodes."""
        free = self._free()
        queue = [QueuedJob(job.id, job.nodes, job.requested_s) for job in self._queue]
        running = [RunningJob(len(job.nodes), job.expected_end_s) for job in self._jobs.values()]
        self._backfill = easy_backfill(time.time(), len(free), queue, running)
        for request in [job for job in self._queue if job.id in self._backfill.start]:
            self._queue.remove(request)
            nodes, free = tuple(free[: request.nodes]), free[request.nodes :]
            self._jobs[request.id] = _ForegroundJob(request, nodes, time.time())
            for fragment in self._fragments.values():
                if not set(slots_in(fragment.node)).isdisjoint(nodes):
                    self._evict(fragment)
        return bool(self._backfill.start)

    def _start_allocated(self) -> bool:
        """Start the foreground jobs whose nodes are free of fragments. Returns whether any was started."""
        busy = self._held_nodes()
        started = False
        for job in self._jobs.values():
            if job.started_at_s is None and not busy.intersection(job.nodes):
                self._start_job(job)
                started = True
        return started

    def _start_job(self, job: _ForegroundJob) -> None:
        job.started_at_s = time.time()
        delay_s = job.started_at_s - job.allocated_at_s
        self._starts.append(JobStart(job.request.id, job.started_at_s, len(job.nodes), delay_s, tuple(job.nodes)))
        for _ in job.nodes:
            command = [sys.executable, "-P", "-S", "-c", _SLEEP, f"{job.request.run_s:.3f}"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            job.processes.append(process)
            threading.Thread(target=self._wait, args=(process,), daemon=True).start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self._changed:
            self._changed.notify_all()

    def _evict_timed_out(self) -> None:
        for fragment in self._fragments.values():
            if fragment.leaves_at is not None and fragment.leaves_at <= time.time() and fragment.kill_at_s is None:
                self._timed_out.append(fragment.id)
                self._evict(fragment)

    def _press_evicted(self) -> None:
        for fragment in self._fragments.values():
            if fragment.kill_at_s is None:
                continue
            if fragment.signal_at_s <= time.time():
                self._signal(fragment)
            if fragment.kill_at_s <= time.time():
                _log.warning(
                    "fragment %s was still running after its grace on %s: killed", fragment.id, fragment.node
                )
                fragment_processes.send(self._processes(fragment.id), signal.SIGKILL)
                fragment.kill_at_s = time.time() + self._settings.grace_s

    def _announced(self, holders: dict[str, _ForegroundJob]) -> Iterator[tuple[str, float]]:
        """(node, expected start in Unix seconds) for each idle node that the first waiting job is expected to
        take; nothing where its start cannot be told."""
        head = self._head()
        if head is None:
            return
        from_running = sum(len(job.nodes) for job in self._ending(head))
        idle = [node for node in self._nodes if node not in holders]
        for node in idle[: max(0, head.nodes - from_running)]:
            yield node, self._backfill.shadow_s

    def _announcements(self, idle: Iterable[str]) -> Announcements:
        """The first waiting job, on the `idle` nodes that it is expected to take and on those of jobs that end
        before it. Nobody knows yet where the others will start."""
        head = self._head()
        if head is None:
            return Announcements()
        nodes = [*idle, *(node for job in self._ending(head) for node in job.nodes)][: head.nodes]
        start_at = self._backfill.shadow_s
        end_at = start_at + head.requested_s
        return Announcements(
            (Announcement(AnnouncedKind.JOB, head.id, head.id, ",".join(nodes), start_at, end_at),)
        )

    def _head(self) -> ForegroundRequest | None:
        """The first waiting job, if its start can be told."""
        if self._backfill.shadow_s == float("inf"):
            return None
        return next((job for job in self._queue if job.id == self._backfill.head), None)

    def _ending(self, head: ForegroundRequest) -> list[_ForegroundJob]:
        """The running jobs that have to end for `head` to start: the first to end. Not those that are expected to
        end by its expected start, which was computed before the newest of them started."""
        missing = head.nodes - len(self._free())
        ending: list[_ForegroundJob] = []
        for job in sorted(self._jobs.values(), key=lambda job: job.expected_end_s):
            if missing <= 0:
                break
            ending.append(job)
            missing -= len(job.nodes)
        return ending


def _slots(settings: LocalClusterSettings) -> Iterator[str]:
    """Names of the nodes, or of their slots where they have several."""
    for number in range(1, settings.nodes + 1):
        node = f"node{number}"
        yield from [node] if settings.slots == 1 else (slot_name(node, slot) for slot in range(settings.slots))
