"""A Slurm cluster behind the scheduler port.

One thread reads the state, as often as `Pace` lets it, and carries out cancellations; whoever asks gets the
newest picture at once. While Slurm does not answer that picture grows old, and nothing is launched on it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import JobStart, Node, OwnJob, Snapshot
from oakum_service.schedulers.slurm.arrays import ArrayBook
from oakum_service.schedulers.slurm.cancellation import cancel_jobs
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.handover import find_hand_over, in_the_way
from oakum_service.schedulers.slurm.hook_event import HookEvent, HookKind
from oakum_service.schedulers.slurm.pace import MOST_STRETCH, Pace
from oakum_service.schedulers.slurm.pushed_source import PushedSource
from oakum_service.schedulers.slurm.snapshot import (
    HolePolicy,
    Instance,
    OwnTask,
    is_live,
    own_tasks,
    taken_fragments,
    to_snapshot,
    unfold,
)
from oakum_service.schedulers.slurm.state import SlurmJob, SlurmState, StateSource
from oakum_service.schedulers.slurm.submission import Submitter
from oakum_service.states import NodeState
from oakum_worker.protocol import FragmentConfig

_log = logging.getLogger("oakum.slurm")
_CANCEL_AGAIN_S = 60.0
_CLEAR_WITHIN_S = 300.0
"""For a node's epilogs. After that it is looked at no more often than others."""
_FIRST_READ_S = 60.0
_RUNNING = "RUNNING"
_MOST_TASKS = 1000
"""Of an array where nobody has set MaxArraySize."""
_ARRAY_REFUSED = "Invalid job array specification"


class SlurmScheduler:
    """Implements the scheduler port, and listens to hooks."""

    name = "slurm"
    ends_with_service = False

    def __init__(
        self,
        settings: SlurmSettings,
        data_dir: Path,
        instance: Instance,
        source: StateSource,
        commands: SlurmCommands,
        grace_s: float,
        hand_over_s: float,
    ) -> None:
        """`hand_over_s`: for so long Slurm preempts nothing more for a job that it has preempted others for."""
        self.grace_s = grace_s
        # Slurm refuses, or keeps waiting, what an old picture was wrong about: age costs time, not nodes.
        self.max_age_s = (MOST_STRETCH + 1) * settings.poll_floor_s + settings.command_timeout_s
        self.array_from = settings.array_from
        self.array_most = _MOST_TASKS
        self._hand_over_s = hand_over_s
        self._settings = settings
        fragments_dir = data_dir.resolve() / "fragments"
        self._submitter = Submitter(settings, instance, commands, fragments_dir, grace_s)
        self._arrays = ArrayBook(fragments_dir)
        self._instance = instance
        self._policy = HolePolicy(settings.partition, settings.planned_are_holes, tuple(settings.type_features))
        self._source = source
        self._commands = commands
        self._pace = Pace(settings)
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._error: SchedulerError | None = None
        self._submitted: dict[str, tuple[float, OwnJob]] = {}
        """Jobs that no reading has shown yet, with the time of their submission."""
        self._job_ids: dict[str, str] = {}
        """Fragment -> job, of those in the newest reading."""
        self._own_numbers: set[str] = set()
        """What hooks call those jobs: a task of an array has a number of its own, too."""
        self._to_cancel: set[str] = set()
        self._cancelled: dict[str, float] = {}
        self._withdrawn: deque[str] = deque(maxlen=10_000)
        self._told: dict[str, tuple[float, str]] = {}
        """Node -> when a hook told that a foreground job has it, and which."""
        self._starts: deque[JobStart] = deque(maxlen=1000)
        self._running: set[int] | None = None
        self._hinted = False
        self._clearing: dict[str, float] = {}
        """Node -> when a hook told of a job's end there (monotonic), until a later reading shows it clear."""
        self._stopping = False
        self._on_change: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to read."""
        self._on_change = on_change
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """The newest picture, with what is known beyond it: our own submissions, and what hooks have told.

        Raises `SchedulerError` while there is none at all.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot or self._error or self._stopping, _FIRST_READ_S)
            if self._snapshot is None:
                raise self._error or SchedulerError("Slurm's state has not been read yet")
            seen = self._snapshot
            nodes = tuple(self._as_told(node) for node in seen.nodes)
            newer = [job for _, job in self._submitted.values()]
            starts = tuple(self._starts)
            withdrawn = frozenset(self._withdrawn)
        return replace(seen, nodes=nodes, own_jobs=(*seen.own_jobs, *newer), starts=starts, withdrawn=withdrawn)

    def taken_at(self) -> float | None:
        """When the newest picture was taken."""
        with self._changed:
            return None if self._snapshot is None else self._snapshot.taken_at

    def submit(self, config: FragmentConfig) -> str:
        """Submit the fragment's job to its node. Raises `SchedulerError` with Slurm's reason."""
        job_id = self._submitter.submit(config, self._picture())
        self._note_submitted([OwnJob(job_id, config.fragment, config.node)])
        return job_id

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        """Submit the fragments to their nodes, any to any; returns the job id of each that was submitted.

        Raises `SchedulerError` with Slurm's reason if none was. Where Slurm takes no arrays, or none of this size,
        no other is tried.
        """
        try:
            job_ids = self._submitter.submit_any(configs, self._picture())
        except SchedulerError as error:
            if _ARRAY_REFUSED in str(error):
                _log.warning("fragments are submitted one by one from now on: %s", error)
                self.array_from = sys.maxsize
            raise
        self._note_submitted([OwnJob(job_id, fragment, None) for fragment, job_id in job_ids.items()])
        return job_ids

    def _picture(self) -> Snapshot:
        """What is submitted on."""
        with self._changed:
            if self._error is not None or self._snapshot is None:
                raise SchedulerError("nothing is submitted while Slurm does not answer") from self._error
            return self._snapshot

    def _note_submitted(self, jobs: Sequence[OwnJob]) -> None:
        with self._changed:
            self._submitted |= {job.fragment: (time.time(), job) for job in jobs}
            self._hint()

    def cancel(self, fragment: str) -> None:
        """Have the job end: soon, by this adapter's thread, and again if it is still there much later."""
        with self._changed:
            self._to_cancel |= self._not_yet_cancelled([fragment])
            self._changed.notify_all()

    def on_hook(self, event: HookEvent) -> None:
        """Believe at once that nodes are taken; read the state soon."""
        try:
            nodes = unfold(event.nodes)
        except SchedulerError as error:
            _log.warning("a hook of job %s: %s", event.job, error)
            nodes = ()
        with self._changed:
            if event.kind is HookKind.ALLOCATED and not self._is_own(event) and self._is_news(event.at):
                self._told |= dict.fromkeys(nodes, (event.at, event.job))
            if event.kind is HookKind.ENDED:
                self._clearing |= dict.fromkeys(nodes, time.monotonic())
                # The next reading knows better, however soon after the job's start it comes.
                self._told |= {node: (0.0, job) for node, (_, job) in self._told.items() if job == event.job}
            self._hint()
        self._on_change()

    def on_state(self, state: SlurmState) -> None:
        """Take a state that a collector has read."""
        if not isinstance(self._source, PushedSource):
            raise SchedulerError("Slurm's state is read from here: set OAKUM_SLURM_STATE=push to have it posted")
        self._source.take(state)
        with self._changed:
            self._hint()

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Stop reading. Fragments stay in any case: they belong to Slurm."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _is_own(self, event: HookEvent) -> bool:
        """Whether it tells of a job of ours. The number of an array's task is known only once it was read."""
        if event.job in self._own_numbers or any(job.job_id == event.job for _, job in self._submitted.values()):
            return True
        return event.uid == os.getuid() and event.partition == self._settings.partition

    def _is_news(self, told_at: float) -> bool:
        """Whether a hook's word may be newer than the picture; hooks tell the time in whole seconds."""
        return self._snapshot is None or told_at + 1.0 >= self._snapshot.taken_at

    def _hint(self) -> None:
        self._hinted = True
        self._changed.notify_all()

    def _as_told(self, node: Node) -> Node:
        if node.name not in self._told or node.state is not NodeState.HOLE:
            return node
        job = self._told[node.name][1]
        return replace(node, state=NodeState.FOREGROUND, job=job, job_name=job, announced_at=None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._stopping and not self._to_cancel:
                    # A hint may come meanwhile and bring the next reading forward: the turn after this one sees.
                    self._changed.wait(self._wait_s())
                if self._stopping:
                    return
                cancels, self._to_cancel = self._to_cancel, set()
                self._cancelled |= dict.fromkeys(cancels, time.time())
                due = self._wait_s() <= 0
            try:
                if cancels:
                    self._cancel(cancels)
                if due:
                    self._read()
            except Exception:
                # Without this thread nothing would be seen or cancelled any more.
                _log.exception("a turn of the Slurm adapter failed; the next one tries again")
                self._pace.failed(time.monotonic())

    def _wait_s(self) -> float:
        now = time.monotonic()
        return max(0.0, self._pace.next_at(now, self._hinted) - now)

    def _read(self) -> None:
        began_s = time.monotonic()
        with self._changed:
            hinted, self._hinted = self._hinted, False
        try:
            state = self._source.read()
            self._take(state)
            self._read_on_until_clear(state, began_s)
            self._pace.took(began_s, time.monotonic(), self._source.cycle_s())
        except SchedulerError as error:
            _log.warning("Slurm's state could not be read: %s", error)
            self._pace.failed(time.monotonic())
            with self._changed:
                self._error = error
                self._hinted |= hinted
                self._changed.notify_all()
            return
        self._on_change()

    def _take(self, state: SlurmState) -> None:
        """Make a reading the newest picture."""
        arrays = self._arrays.look_up(self._array_tasks(state))
        own = own_tasks(state.jobs, self._instance, arrays)
        hand_over = find_hand_over(state, self._instance, self._hand_over_s)
        snapshot = replace(
            to_snapshot(state, self._instance, self._policy, own, hand_over.wanted),
            preempted=taken_fragments(state.jobs, self._instance, arrays),
        )
        with self._changed:
            self._snapshot, self._error = snapshot, None
            self._job_ids = {fragment: task.id for fragment, task in own.items()}
            self._own_numbers = {str(task.job.id) for task in own.values()}
            self._submitted = {
                fragment: (at, job)
                for fragment, (at, job) in self._submitted.items()
                if at >= state.taken_at and fragment not in self._job_ids
            }
            self._told = {node: told for node, told in self._told.items() if self._is_news(told[0])}
            self._cancelled = {f: at for f, at in self._cancelled.items() if f in self._job_ids}
            withdrawn = self._overdue(own, state.taken_at) | self._not_yet_cancelled(in_the_way(own, hand_over))
            self._to_cancel |= withdrawn
            self._withdrawn.extend(withdrawn)
            self._note_starts(state)
            self._changed.notify_all()

    def _read_on_until_clear(self, state: SlurmState, began_s: float) -> None:
        """The head node's epilog runs beside those of the nodes, which complete a little later.

        A reading that began before the end was told is too early. A node that does not answer may never complete.
        """
        completing = {node.name for node in state.nodes if "COMPLETING" in node.states}
        with self._changed:
            self._clearing = {
                node: told_s
                for node, told_s in self._clearing.items()
                if told_s >= began_s or (node in completing and began_s - told_s < _CLEAR_WITHIN_S)
            }
            self._hinted |= bool(self._clearing)

    def _array_tasks(self, state: SlurmState) -> Iterator[tuple[str, int | None]]:
        for job in state.jobs:
            if job.array_job_id is not None and (intent := self._instance.intent_of(job)) is not None:
                yield intent, job.array_task_id

    def _overdue(self, own: Mapping[str, OwnTask], now: float) -> set[str]:
        """Our jobs that wait for a node which somebody else got."""
        return self._not_yet_cancelled(
            fragment
            for fragment, task in own.items()
            if task.waits
            and task.job.submitted_at is not None
            and now - task.job.submitted_at > self._settings.pending_limit_s
        )

    def _not_yet_cancelled(self, fragments: Iterable[str]) -> set[str]:
        now = time.time()
        return {one for one in fragments if now - self._cancelled.get(one, 0.0) > _CANCEL_AGAIN_S}

    def _note_starts(self, state: SlurmState) -> None:
        """Foreground jobs that run and did not at the last reading; how long they waited is for others to tell."""
        running = {job.id: job for job in state.jobs if self._is_foreground(job)}
        if self._running is not None:
            for job in running.values():
                if job.id not in self._running and job.start_at is not None:
                    nodes = unfold(job.nodes)
                    self._starts.append(JobStart(str(job.id), job.start_at, len(nodes), None, nodes))
        self._running = set(running)

    def _is_foreground(self, job: SlurmJob) -> bool:
        return job.states[0] == _RUNNING and is_live(job) and self._instance.intent_of(job) is None

    def _cancel(self, fragments: set[str]) -> None:
        """One call for all of them. One whose job was never seen has none, or is found to be a stranger later."""
        with self._changed:
            ids = self._job_ids | {fragment: job.job_id for fragment, (_, job) in self._submitted.items()}
        known = [ids[fragment] for fragment in fragments if fragment in ids]
        cancel_jobs(self._commands, known)
        with self._changed:
            self._hint()
