"""A Slurm cluster behind the scheduler port.

One thread reads Slurm's state, as often as `ReadPace` lets it, and cancels jobs; every caller gets the newest
picture at once. While Slurm does not answer, that picture grows old and nothing is launched on it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from oakum_service.config import SlurmSettings
from oakum_service.documents.silence import Silence
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import HookEvent, HookKind, OwnJob, RequestTime, Snapshot
from oakum_service.schedulers.slurm.answers import Answers
from oakum_service.schedulers.slurm.arrays import JobArrays
from oakum_service.schedulers.slurm.cancellation import Cancellations, cancel_jobs, waiting_in_vain
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.completing import CompletingNodes
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.job_starts import JobStarts
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.overlay import Overlay
from oakum_service.schedulers.slurm.partition import PartitionWatch
from oakum_service.schedulers.slurm.picture import Picture, PictureMaker
from oakum_service.schedulers.slurm.read_pace import MOST_STRETCH, ReadPace
from oakum_service.schedulers.slurm.reading.pushed_source import PushedSource, decode_state
from oakum_service.schedulers.slurm.reading.state import StateSource
from oakum_service.schedulers.slurm.slots import SlotBook
from oakum_service.schedulers.slurm.snapshot import OakumInstance
from oakum_service.schedulers.slurm.submission import Submitter, submitted_for
from oakum_service.schedulers.slurm.unread import UnreadLog
from oakum_worker.fragment_config import FragmentConfig

_log = logging.getLogger("oakum.slurm")
_FIRST_READ_S = 60.0
_KNOWN_AFTER_S = 300.0
"""A reading that began so long after an event shows all that follows from it, the ends of epilogs included."""
_MOST_TASKS = 1000
"""Most tasks of an array where nobody has set MaxArraySize."""
_MOST_KNOWN = 16_384
"""Fragments of which it is remembered what they were submitted for; of others it is read again."""
_ARRAY_REFUSED = "Invalid job array specification"


class SlurmScheduler:
    """A Slurm cluster as a `Scheduler`, which also listens to hooks and takes states from collectors."""

    name = "slurm"
    ends_with_service = False

    def __init__(
        self,
        settings: SlurmSettings,
        data_dir: Path,
        instance: OakumInstance,
        source: StateSource,
        commands: SlurmCommands,
        grace_s: float,
        hand_over_s: float,
    ) -> None:
        """`hand_over_s`: how long Slurm preempts nothing more for a job for which it has preempted others."""
        self.grace_s = grace_s
        # Slurm refuses, or keeps waiting, what an old picture was wrong about: age costs time, not nodes.
        self.max_age_s = (MOST_STRETCH + 1) * settings.poll_floor_s + settings.command_timeout_s
        self.array_from = settings.array_from
        self.array_most = _MOST_TASKS
        self._settings = settings
        fragments_dir = data_dir.resolve() / "fragments"
        self._submitter = Submitter(settings, instance, commands, fragments_dir, grace_s)
        policy = HolePolicy(
            settings.partition,
            settings.planned_are_holes,
            settings.powered_down_are_holes,
            tuple(settings.type_features),
            tuple(settings.allow_constraints),
            tuple(settings.allow_reservations),
            parts_are_holes=settings.slots == "gpu",
            is_preempted=settings.preemption != "none",
        )
        book = SlotBook(lru_cache(_MOST_KNOWN)(partial(submitted_for, fragments_dir)))
        self._pictures = PictureMaker(instance, JobArrays(fragments_dir), policy, hand_over_s, book, grace_s)
        self._source = source
        self._commands = commands
        self._instance = instance
        self._unread = UnreadLog()
        self._partitions = PartitionWatch(commands, settings.partition, settings.poll_floor_s)
        self._on_change: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        """Guards the attributes that `_begin_afresh` makes; notified when any of them changes."""
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Know nothing of the cluster, as before the first reading."""
        self._pace = ReadPace(self._settings)
        self._picture: Picture | None = None
        self._error: SchedulerError | None = None
        """Why the newest reading failed; None if it succeeded."""
        self._answers = Answers()
        self._failed_a_ping = False
        self._overlay = Overlay()
        self._cancellations = Cancellations()
        self._job_starts = JobStarts(self._instance)
        self._completing = CompletingNodes()
        self._closed = ""
        self._hinted = False
        """Whether a reading is wanted sooner than the usual pace allows."""
        self._stopping = False

    def start(self, on_change: Callable[[], None]) -> None:
        """Start the thread that reads Slurm's state and cancels jobs. `on_change` is called, from any thread, when
        a new snapshot is worth taking. May be called again after `stop`: what was known then is forgotten."""
        self._on_change = on_change
        if self._thread is not None:
            self._thread.join()  # until its last command has ended
            with self._changed:
                self._begin_afresh()
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """The newest reading of the cluster, with what is known beyond it: our later submissions and hooks' later
        reports. Raises `SchedulerError` while no reading has succeeded."""
        with self._changed:
            self._changed.wait_for(lambda: self._picture or self._error or self._stopping, _FIRST_READ_S)
            if self._picture is None:
                raise self._error or SchedulerError("Slurm's state has not been read yet")
            seen = self._overlay.laid_over(self._picture.snapshot)
            return replace(
                seen,
                starts=self._job_starts.newest,
                withdrawn=self._cancellations.withdrawn,
                kept_waiting=self._cancellations.kept_waiting,
                cancelled=seen.cancelled - self._cancellations.ours,
                closed=self._closed,
            )

    def taken_at(self) -> float | None:
        """When the newest reading was taken, in Unix seconds; None before the first."""
        with self._changed:
            return None if self._picture is None else self._picture.snapshot.taken_at

    def silence(self) -> Silence | None:
        """Since when Slurm has not answered, and what was tried; None if it does."""
        with self._changed:
            return self._answers.silence(time.monotonic(), time.time())

    def submit(self, config: FragmentConfig) -> str:
        """Submit the fragment's job to its node; returns the job id. Raises `SubmissionRefused` with Slurm's
        words, and `SchedulerError` while Slurm does not answer."""
        job_id = self._submitter.submit(config, self._trusted_picture())
        self._note_submitted([OwnJob(job_id, config.fragment, config.node)])
        return job_id

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        """Submit the fragments to their nodes, any fragment to any of the nodes; returns fragment -> job id for
        those submitted.

        Raises `SubmissionRefused` with Slurm's words if Slurm refuses the array. If it refuses arrays, or arrays
        of this size, no other array is submitted, and `SchedulerError` is raised.
        """
        try:
            job_ids = self._submitter.submit_any(configs, self._trusted_picture())
        except SchedulerError as error:
            if _ARRAY_REFUSED in str(error):
                _log.warning("fragments are submitted one by one from now on: %s", error)
                self.array_from = sys.maxsize
                raise SchedulerError(str(error)) from error  # the next try is another one
            raise
        self._note_submitted([OwnJob(job_id, fragment, None) for fragment, job_id in job_ids.items()])
        return job_ids

    def _trusted_picture(self) -> Picture:
        """The newest reading alone, without what hooks report: jobs are submitted on its word. Raises
        `SchedulerError` while Slurm does not answer."""
        with self._changed:
            if self._error is not None or self._picture is None:
                raise SchedulerError("nothing is submitted while Slurm does not answer") from self._error
            return self._picture

    def _note_submitted(self, jobs: Sequence[OwnJob]) -> None:
        with self._changed:
            self._overlay.note_submitted(jobs, time.time())
            self._hint()

    def cancel(self, fragment: str) -> None:
        """Have the adapter's thread cancel the fragment's job; returns at once."""
        with self._changed:
            self._cancellations.request([fragment], time.time())
            self._changed.notify_all()

    def on_hook(self, event: HookEvent) -> None:
        """Take in a hook's event: nodes that a foreground job got count as taken at once, and Slurm's state is
        read soon, unless it has been read long after."""
        try:
            nodes = unfold(event.nodes)
        except SchedulerError as error:
            _log.warning("a hook of job %s: %s", event.job, error)
            nodes = ()
        with self._changed:
            if self._picture is not None and event.at + _KNOWN_AFTER_S < self._picture.snapshot.taken_at:
                return
            if event.kind is HookKind.ALLOCATED and not self._is_own(event):
                self._overlay.note_taken(nodes, event.job, event.at)
            if event.kind is HookKind.ENDED:
                self._completing.note_ended(nodes, time.monotonic())
                self._overlay.note_ended(event.job)
            self._hint()
        self._on_change()

    def on_state(self, body: bytes, arrival: RequestTime) -> float:
        """Take in a state that a collector has posted; returns when it was read, in Unix seconds. Raises
        `PayloadError` if it is no state, and `SchedulerError` if this service reads the state itself."""
        if not isinstance(self._source, PushedSource):
            raise SchedulerError(
                "this service reads Slurm's state itself: set OAKUM_SLURM_STATE=push to have it posted"
            )
        state = decode_state(body, arrival)
        self._source.take(state)
        with self._changed:
            self._hint()
        return state.taken_at

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Stop reading Slurm's state and cancelling jobs. Fragments go on in any case: they belong to Slurm."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _is_own(self, event: HookEvent) -> bool:
        """Whether the event is about a job of ours. The number of an array's task is known only from a reading;
        before, the event's user and partition decide."""
        if self._picture is not None and event.job in self._picture.own_numbers:
            return True
        if event.job in self._overlay.job_ids().values():
            return True
        return event.uid == os.getuid() and event.partition == self._settings.partition

    def _hint(self) -> None:
        self._hinted = True
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._stopping and not self._cancellations.are_due:
                    # A hint may come meanwhile and bring the next reading forward: the turn after this one sees.
                    self._changed.wait(min(self._wait_s(), self._answers.due_in_s(time.monotonic())))
                if self._stopping:
                    return
                cancels = self._cancellations.take(time.time())
                due = self._wait_s() <= 0
            try:
                if cancels:
                    self._cancel(cancels)
                if due:
                    self._read()
                elif self._answers.due_in_s(time.monotonic()) <= 0:
                    self._ping()
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
        self._ask("a reading of its state")
        try:
            state = self._source.read()
            self._partitions.look(began_s)
            self._take(self._pictures.make(state, self._partitions.exclusive), self._partitions.closed, began_s)
            ended_s = time.monotonic()
            self._ask("a question for its statistics")
            self._pace.took(began_s, ended_s, self._source.cycle_s())
            self._note_heard()
        except SchedulerError as error:
            _log.warning("Slurm's state could not be read: %s", error)
            self._note_failed_reading(error, hinted=hinted)
        except Exception as error:
            _log.exception("Slurm's state could not be understood")
            text = f"Slurm's state could not be understood ({type(error).__name__}: {error}); the log says where"
            self._note_failed_reading(SchedulerError(text), hinted=hinted)
        else:
            self._on_change()

    def _note_failed_reading(self, error: SchedulerError, *, hinted: bool) -> None:
        """Serve the newest picture and submit nothing until a reading succeeds; `hinted`: one was wanted soon."""
        self._pace.failed(time.monotonic())
        with self._changed:
            self._error = error
            self._answers.fail(str(error))
            # Without any picture nobody is served: that is no state to wait in for the usual pace.
            self._hinted |= hinted or self._picture is None
            self._changed.notify_all()

    def _ping(self) -> None:
        """Find out between two readings whether Slurm answers. Once it does again, its state is read soon."""
        self._ask("a ping")
        try:
            self._source.ping()
        except SchedulerError as error:
            _log.warning("Slurm does not answer: %s", error)
            with self._changed:
                self._error, self._failed_a_ping = error, True
                self._answers.fail(str(error))
                self._changed.notify_all()
            self._on_change()
            return
        self._note_heard()
        with self._changed:
            self._hinted |= self._failed_a_ping
            self._failed_a_ping = False

    def _ask(self, what: str) -> None:
        with self._changed:
            self._answers.ask(what, time.monotonic())

    def _note_heard(self) -> None:
        with self._changed:
            self._answers.heard(time.monotonic())

    def _take(self, picture: Picture, closed: str, began_s: float) -> None:
        """Make a picture the newest one; its reading began at `began_s` (monotonic). `closed`: why no job begins
        in the partition."""
        state, own = picture.state, picture.own
        self._unread.note_reading(picture.unread)
        vain = waiting_in_vain(own, state.taken_at, self._settings.pending_limit_s)
        with self._changed:
            self._picture, self._closed, self._error = picture, closed, None
            self._answers.read(time.monotonic())
            self._failed_a_ping = False
            self._overlay.note_reading(state.taken_at, own.keys())
            self._cancellations.note_reading(own.keys())
            reasons = {fragment: own[fragment].job.reason for fragment in vain}
            self._cancellations.withdraw(vain | picture.in_the_way, time.time(), reasons)
            self._job_starts.note_reading(state.jobs)
            self._completing.note_reading(state.nodes, began_s)
            # What a hook told may be from before or after the reading; only a later reading decides.
            self._hinted |= bool(self._completing) or self._overlay.hides_holes(picture.snapshot)
            self._changed.notify_all()

    def _cancel(self, fragments: set[str]) -> None:
        """Cancel the fragments' jobs, and have Slurm's state read again soon. A job that no reading has shown
        has no known id; it is cancelled as an orphan once a reading shows it."""
        with self._changed:
            shown = {} if self._picture is None else self._picture.job_ids
            ids = shown | self._overlay.job_ids()
        known = [ids[fragment] for fragment in fragments if fragment in ids]
        self._ask("a cancellation")
        cancel_jobs(self._commands, known)
        self._note_heard()
        with self._changed:
            self._hint()
