"""Slurm's state as a collector posts it: a `SlurmState` as JSON, with its age at the moment of sending.

The collector may run on another machine with a wrong clock. So a state's time is computed from its arrival here
and the age that its sender gave. A state dated too late would hide jobs that were submitted after it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from oakum_service.errors import PayloadError, SchedulerError
from oakum_service.schedulers.port import RequestTime
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmReservation, SlurmState

_LATE_S = 8.0
"""Seconds by which a collector may be late before it counts as gone. With a question every 10 s, one that posts
every 10 s is told of within 30 s."""
_ENDLESS = 1e18
"""Stands for `inf`, which JSON lacks."""
Ending = TypeVar("Ending", SlurmJob, SlurmReservation)
_decoder = msgspec.json.Decoder(SlurmState)


class PushedSource:
    """A `StateSource` that returns the newest state that a collector has posted."""

    def __init__(
        self,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_age_s = max_age_s
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._newest: SlurmState | None = None
        self._failed = ""
        self._heard_s, self._next_s = 0.0, math.inf
        """When a collector posted last, by the steady one, and within how many seconds it means to post again."""

    def take(self, state: SlurmState) -> None:
        """Keep the state, unless a newer one is kept already. With a collector's last state, sent once more since
        Slurm does not answer it, remember that."""
        with self._lock:
            self._failed = state.failed
            self._heard_s = self._steady()
            self._next_s = math.inf if state.next_s is None else max(0.0, state.next_s)
            if state.failed and self._newest is not None:
                return
            if self._newest is None or state.taken_at >= self._newest.taken_at or self._newest_is_ahead():
                self._newest = state

    def read(self) -> SlurmState:
        """The newest posted state. Raises `SchedulerError` if there is none, it is too old, or the collector is
        gone, or has said since that Slurm does not answer it."""
        with self._lock:
            newest, failed = self._newest, self._failed
        if failed:
            raise SchedulerError(f"the collector cannot read Slurm's state: {failed}")
        if newest is None:
            raise SchedulerError(
                "no collector has posted Slurm's state yet: run `oakum collect --to <this service>` where Slurm's "
                "state can be read"
            )
        self.ping()
        age_s = self._clock() - newest.taken_at
        if age_s > self._max_age_s:
            raise SchedulerError(
                f"the newest state that a collector has posted is {age_s:.0f} s old, more than "
                f"{self._max_age_s:g} s: see what `oakum collect` says, or set OAKUM_SLURM_PUSH_MAX_AGE_S"
            )
        return newest

    def ping(self) -> None:
        """Raise `SchedulerError` if the collector has not posted when it meant to: only it can ask Slurm."""
        with self._lock:
            silent_s, next_s = self._steady() - self._heard_s, self._next_s
        if silent_s > next_s + _LATE_S:
            raise SchedulerError(
                f"the collector has posted nothing for {silent_s:.0f} s, and meant to within {next_s:.0f} s: it "
                "has ended, does not reach this service, or waits for Slurm: see what `oakum collect` says"
            )

    def cycle_s(self) -> float | None:
        """Always None: the collector decides how often Slurm is read."""
        return None

    def _newest_is_ahead(self) -> bool:
        """Whether the newest state lies in the future, because the clock here was set back."""
        return self._newest is not None and self._newest.taken_at > self._clock()


def encode_state(state: SlurmState) -> bytes:
    """The state as JSON, in which a very large number stands for infinity."""
    endless = msgspec.structs.replace(
        state,
        jobs=tuple(_with_end(job, math.inf, _ENDLESS) for job in state.jobs),
        reservations=tuple(_with_end(one, math.inf, _ENDLESS) for one in state.reservations),
    )
    return msgspec.json.encode(endless)


def decode_state(body: bytes, arrival: RequestTime) -> SlurmState:
    """The state from JSON. Its time is the request's arrival minus the age that the sender gave, or without an
    age the sender's own time, but never later than the arrival. Raises `PayloadError` if it is not a valid
    state of a cluster."""
    try:
        state = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PayloadError(
            f"the posted state cannot be read: {error}; do collector and service have the same version?"
        ) from error
    if not state.nodes:
        raise PayloadError("the posted state has no nodes")
    for kind, name, states in _all_states(state):
        if not states:
            raise PayloadError(f"the posted state says of {kind} {name} no state at all")
    said_at = state.taken_at if arrival.age_s is None else arrival.at - arrival.age_s
    return msgspec.structs.replace(
        state,
        taken_at=min(said_at, arrival.at),
        jobs=tuple(_with_end(job, _ENDLESS, math.inf) for job in state.jobs),
        reservations=tuple(_with_end(one, _ENDLESS, math.inf) for one in state.reservations),
    )


def _all_states(state: SlurmState) -> list[tuple[str, str, tuple[str, ...]]]:
    nodes = [("node", node.name, node.states) for node in state.nodes]
    return nodes + [("job", str(job.id), job.states) for job in state.jobs]


def _with_end(thing: Ending, given: float, wanted: float) -> Ending:
    return msgspec.structs.replace(thing, end_at=wanted) if thing.end_at == given else thing
